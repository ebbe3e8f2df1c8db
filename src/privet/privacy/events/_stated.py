"""Events of which only the epsilon (and delta) is known: stated by a theorem, a parameter or a paper."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from privet.errors import InputError
from privet.privacy.events._base import Event, Leaf, require_number, require_whole
from privet.privacy.guarantees import Claimed, Guarantee


@dataclass(frozen=True)
class PureEpsilon(Event):
    """Any (epsilon, 0)-DP mechanism for adding or removing one record.

    Formal guarantees: dominated by randomised response with the same epsilon (Kairouz, Oh and Viswanath 2015).
    Replacing one record is removing it and adding another: at most twice the epsilon.
    """

    epsilon: float

    def __post_init__(self) -> None:
        require_number(self, "epsilon", self.epsilon)


@dataclass(frozen=True)
class ApproximateDP(Event):
    """Any (epsilon, delta)-DP mechanism for adding or removing one record, proved elsewhere.

    Formal guarantees: dominated by randomised response that reveals everything with probability delta (Kairouz et al.).
    Replacing one record costs (2 epsilon, (1 + e^epsilon) delta).
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        require_number(self, "epsilon", self.epsilon)
        require_number(self, "delta", self.delta, high=1.0)


@dataclass(frozen=True)
class PublishedClaim(Event):
    """An (epsilon, delta) that a paper states and that does not hold for what was run.

    Formal guarantees: none; it is composed as if it held, and the guarantee says that it does not.
    """

    epsilon: float
    delta: float
    by: str
    because: str

    def __post_init__(self) -> None:
        require_number(self, "epsilon", self.epsilon)
        require_number(self, "delta", self.delta, high=1.0)
        if not self.by or not self.because:
            raise InputError("A published claim needs both who claims it and why it does not hold.")

    @property
    def guarantee(self) -> Guarantee:
        return Claimed(self.by, self.because)


@dataclass(frozen=True)
class RandomizedResponse(Event):
    """Each record's value, one of `buckets`, is kept with probability 1 - noise and otherwise drawn uniformly.

    Formal guarantees: pure epsilon ln((1 - noise + noise/buckets) / (noise/buckets)) for replacing one record. The
    number of answers is the number of records, so that adding or removing one is not covered.
    """

    noise: float
    buckets: int

    def __post_init__(self) -> None:
        require_number(self, "noise", self.noise, high=1.0)
        require_whole(self, "buckets", self.buckets, low=2)


@dataclass(frozen=True)
class NotPrivate(Event):
    """The data was used without protection: epsilon is infinite."""


@dataclass(frozen=True)
class PublicRecords(Event):
    """`count` records that whoever ran it states to be public, and that are not among the protected ones.

    Formal guarantees: none is needed: the protected records were not used, so it costs nothing. It stands in a ledger
    so that nobody takes these records for protected ones.
    """

    count: int
    named: str

    def __post_init__(self) -> None:
        require_whole(self, "count", self.count)
        if not isinstance(self.named, str) or not self.named:
            raise InputError("Public records need a name, so that it can be checked that they are public.")

    def leaves(self) -> Iterator[Leaf]:
        return iter(())
