"""Fixed-size sampling: so many records at once, uniformly, without replacement."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privet.errors import InputError
from privet.privacy import Event, FixedSizeSampled
from privet.randomness import Source
from privet.randomness.sources import permutation
from privet.sampling.poisson import uniform_subset


@dataclass(frozen=True)
class FixedSizeSampling:
    """Exactly `size` of `records` records, every subset equally likely, in random order.

    Formal guarantees: amplification holds for replacing one record. The order is random: a batch without a record and the batch
    in which another has taken its place then differ in one place, also where each place is released by itself.
    """

    size: int
    records: int

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.records:
            raise InputError(f"A batch has from 1 to {self.records} of {self.records} records, not {self.size}.")

    @property
    def rows(self) -> int:
        """How many rows a batch has, whatever the records."""
        return self.size

    def draw(self, records: int, source: Source) -> Tensor:
        """The indices of one batch, in random order."""
        if records != self.records:
            raise InputError(
                f"The sampling is for {self.records} records, and there are {records}: their number is public here."
            )
        if isinstance(source, torch.Generator):
            return uniform_subset(records, self.size, source)[permutation(self.size, source)]
        return permutation(records, source)[: self.size]

    def event(self, each: Event) -> Event:
        """What a batch costs when `each` is done to it."""
        return FixedSizeSampled(self.size, self.records, each) if self.size < self.records else each
