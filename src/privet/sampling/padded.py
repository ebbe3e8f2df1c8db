"""Padded Poisson sampling: a Poisson sample among places of which some stay empty, so that its size is not seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.special import bdtrc
from torch import Tensor

from privet.errors import InputError, PrivetError
from privet.privacy import Event, PaddedPoisson
from privet.randomness import Source
from privet.randomness.sources import permutation
from privet.sampling.poisson import PoissonSampling

EMPTY = -1
"""The index of a place that holds no record."""


class SampleOverflowError(PrivetError):
    """A sample had more records than there are places; the probability of it is part of delta."""


@dataclass(frozen=True)
class PaddedPoissonSampling:
    """Each of at most `records` records takes one of `rows` places with probability `rate`; the others stay empty.

    Formal guarantees: places are a random permutation, so that adding a record fills one empty place and changes nothing
    else: releasing every place with noise of its own costs what Poisson sampling costs, and a step adds the
    probability of more than `rows` records to delta, as its event says. Such a draw raises `SampleOverflowError`.
    """

    rate: float
    records: int
    rows: int

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise InputError(f"The sampling rate must lie in (0, 1], not {self.rate}.")
        if self.records < 1 or self.rows < 1:
            raise InputError(f"There must be at least one record and one row, not {self.records} and {self.rows}.")

    @classmethod
    def for_steps(cls, size: int, records: int, steps: int, overflow: float) -> PaddedPoissonSampling:
        """The fewest rows with which `steps` batches of `size` expected records overflow with probability `overflow`."""
        if not 1 <= size <= records:
            raise InputError(f"A batch has from 1 to {records} of {records} records, not {size}.")
        low, high, rate = size, records, size / records
        while low < high:
            rows = (low + high) // 2
            low, high = (low, rows) if steps * bdtrc(rows, records, rate) <= overflow else (rows + 1, high)
        return cls(rate, records, low)

    def draw(self, records: int, source: Source) -> Tensor:
        """The index of the record in each place, or `EMPTY`."""
        if records > self.records:
            raise InputError(f"The sampling is for at most {self.records} records, and there are more.")
        chosen = PoissonSampling(self.rate).draw(records, source)
        if len(chosen) > self.rows:
            raise SampleOverflowError(
                f"More than {self.rows} records were drawn: the step is void. Nothing was released."
            )
        places = torch.full((self.rows,), EMPTY)
        places[: len(chosen)] = chosen
        return places[permutation(self.rows, source)]

    def event(self, each: Event) -> Event:
        """What a batch costs when `each` is done to every place."""
        return PaddedPoisson(self.rate, self.records, self.rows, each)
