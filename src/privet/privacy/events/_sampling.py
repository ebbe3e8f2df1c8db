"""Releases from a random part of the records."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.special import bdtrc

from privet.errors import InputError
from privet.privacy.events._base import Event, require_event, require_number, require_whole


@dataclass(frozen=True)
class PoissonSampled(Event):
    """`event` on a sample that holds each record independently with probability `rate`; an empty sample counts too."""

    rate: float
    event: Event

    def __post_init__(self) -> None:
        require_number(self, "rate", self.rate, high=1.0)
        require_event(self, "event", self.event)

    @property
    def sampling(self) -> str:
        return "Poisson sampling"


@dataclass(frozen=True)
class PaddedPoisson(Event):
    """Poisson sampling from at most `examples` records, padded with dummies to exactly `rows` rows.

    A sample of more than `rows` records aborts the step.

    Formal guarantees: as `PoissonSampled`, and each step adds the probability of an abort,
    P[Binomial(examples, rate) > rows], to delta. `examples` is a public upper bound of the number of records.
    """

    rate: float
    examples: int
    rows: int
    event: Event

    def __post_init__(self) -> None:
        require_number(self, "rate", self.rate, high=1.0)
        require_event(self, "event", self.event)
        require_whole(self, "examples", self.examples)
        require_whole(self, "rows", self.rows)

    @property
    def sampling(self) -> str:
        return "padded Poisson sampling"

    @property
    def overflow(self) -> float:
        """The probability that one step aborts."""
        return float(bdtrc(self.rows, self.examples, self.rate)) if self.rows < self.examples else 0.0


@dataclass(frozen=True)
class FixedSizeSampled(Event):
    """`event` on exactly `size` of `examples` records, drawn uniformly without replacement.

    Formal guarantees: amplification holds for replacing one record, where both data sets have the same known size.
    """

    size: int
    examples: int
    event: Event

    def __post_init__(self) -> None:
        require_event(self, "event", self.event)
        require_whole(self, "size", self.size)
        require_whole(self, "examples", self.examples)
        if self.size > self.examples:
            raise InputError(
                f"A sample of {self.size} records cannot be drawn from {self.examples} without replacement."
            )

    @property
    def rate(self) -> float:
        return self.size / self.examples

    @property
    def sampling(self) -> str:
        return "fixed-size sampling without replacement"


@dataclass(frozen=True)
class ShuffledEpoch(Event):
    """One pass over shuffled records in `batches` disjoint batches, `event` on each batch.

    Formal guarantees: a replaced record is in one batch, so one epoch costs one `event` (parallel composition) and the
    shuffling earns no amplification. Removing a record moves others between batches, so that is not covered.
    """

    batches: int
    event: Event

    def __post_init__(self) -> None:
        require_whole(self, "batches", self.batches)
        require_event(self, "event", self.event)

    @property
    def sampling(self) -> str:
        return "shuffled epochs"
