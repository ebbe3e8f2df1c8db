"""Poisson sampling: every record is in the batch with the same probability, independently of all others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privet.errors import InputError
from privet.privacy import Event, PoissonSampled
from privet.randomness import SecureSource, Source


@dataclass(frozen=True)
class PoissonSampling:
    """Each record joins a batch with probability `rate`.

    Formal guarantees: `draw` is exactly Poisson sampling. A secure source throws one coin for each record. A seeded one
    draws the number of records from the binomial distribution, and the records are then a uniform subset of that
    size, which is the same distribution and faster.
    """

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise InputError(
                f"The sampling rate must lie in (0, 1], not {self.rate}: is the batch larger than the data?"
            )

    def draw(self, records: int, source: Source) -> Tensor:
        """The indices of one batch, sorted; possibly none."""
        if isinstance(source, SecureSource):
            return source.coins(records, self.rate).nonzero().flatten()
        trials = torch.tensor(float(records), dtype=torch.float64)
        chosen = int(torch.binomial(trials, torch.tensor(self.rate, dtype=torch.float64), generator=source))
        return uniform_subset(records, chosen, source)

    def event(self, each: Event) -> Event:
        """What a batch costs when `each` is done to it."""
        return PoissonSampled(self.rate, each) if self.rate < 1 else each


def uniform_subset(records: int, size: int, generator: torch.Generator) -> Tensor:
    """A uniformly random subset of ``range(records)``, sorted."""
    if 4 * size > records:
        return torch.randperm(records, generator=generator)[:size].sort().values
    # Draw with replacement and draw again what collided: each new member is uniform among those not yet chosen.
    chosen = torch.empty(0, dtype=torch.int64)
    while len(chosen) < size:
        more = torch.randint(records, (size - len(chosen),), generator=generator)
        chosen = torch.cat([chosen, more]).unique()
    return chosen
