"""Events: what was done to the data, as frozen values that compose with `+` and `*` and can be written as JSON.

First the composition of events, then releases with noise, releases from a sample, and events of which only epsilon is known.
At the end are the views of an event that several theorems share: as one Gaussian, as a pure epsilon or as an (epsilon,
delta), and the list of the events that theorems cover inside a sample. An event that is not listed is refused.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from scipy.special import bdtrc

from privet.errors import InputError
from privet.io import printable
from privet.privacy.guarantees import (
    Claimed,
    Guarantee,
    Proved,
    Relation,
    guarantee_from_dict,
    guarantee_to_dict,
    weakest,
)
from privet.privacy.selection import Trials

Leaf = tuple["Event", int]


@dataclass(frozen=True)
class Event:
    """One use of the data. `a + b` is both, `a * n` is n times; an accountant computes what it costs.

    Formal guarantees: an event means exactly what the docstring of its class says. This meaning never changes, so a ledger
    written today has the same cost tomorrow.
    """

    _kinds: ClassVar[dict[str, type[Event]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        known = Event._kinds.get(cls.__name__)
        if known is not None and known.__module__ == __name__:
            raise InputError(f"There is an event {cls.__name__} already, and ledgers name it: choose another name.")
        Event._kinds[cls.__name__] = cls

    def __add__(self, other: Event) -> Event:
        if not isinstance(other, Event):
            return NotImplemented
        return composed(self, other)

    def __mul__(self, count: int) -> Event:
        if isinstance(count, bool) or not hasattr(count, "__index__"):
            return NotImplemented
        return repeated(self, count.__index__())

    __rmul__ = __mul__

    @property
    def guarantee(self) -> Guarantee:
        """How well the cost of this event is founded."""
        return weakest(inner.guarantee for inner in self.inner) if self.inner else Proved()

    @property
    def sampling(self) -> str:
        """How records were sampled, in two or three words; empty if every record was used."""
        return " and ".join(dict.fromkeys(event.sampling for event in self.inner if event.sampling))

    @property
    def inner(self) -> tuple[Event, ...]:
        """The events inside this one."""
        values = (getattr(self, field.name) for field in dataclasses.fields(self))
        listed = (each for value in values for each in (value if isinstance(value, tuple) else (value,)))
        return tuple(each for each in listed if isinstance(each, Event))

    def under(self, guarantee: Guarantee) -> Event:
        """The same event with a weaker guarantee, for a run that does not do what the theorem requires."""
        return Under(self, guarantee)

    def leaves(self) -> Iterator[Leaf]:
        """The single events that this one is composed of, each with its count."""
        yield self, 1

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dictionary for JSON, which `Event.from_dict` reads back."""
        fields = {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return {"kind": type(self).__name__, **fields}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Event:
        if not isinstance(data, dict) or data.get("kind") not in Event._kinds:
            raise InputError(f"This version of Privet knows no event like {_shown(data)}.")
        kind = Event._kinds[data["kind"]]
        values = {key: _revive(value) for key, value in data.items() if key != "kind"}
        if set(values) != {field.name for field in dataclasses.fields(kind)}:
            raise InputError(f"{kind.__name__} does not have the fields {_shown(sorted(values))}.")
        return kind(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, Event):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        return guarantee_to_dict(value)  # type: ignore[arg-type]
    return value


def _revive(value: Any) -> Any:
    if isinstance(value, dict):
        return Event.from_dict(value) if "kind" in value else guarantee_from_dict(value)
    if isinstance(value, list):
        return tuple(_revive(item) for item in value)
    return value


@dataclass(frozen=True)
class Nothing(Event):
    """The data was not used: epsilon 0."""

    def leaves(self) -> Iterator[Leaf]:
        return iter(())


NOTHING = Nothing()
"""The data was not used."""


@dataclass(frozen=True)
class Repeated(Event):
    """The same event `count` times, each with fresh randomness, adaptively chosen."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        require_event(self, "event", self.event)
        require_whole(self, "count", self.count)

    def leaves(self) -> Iterator[Leaf]:
        for leaf, count in self.event.leaves():
            yield leaf, count * self.count


@dataclass(frozen=True)
class Composed(Event):
    """All of these events on the same data, adaptively chosen."""

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        for event in self.events:
            require_event(self, "events", event)

    def leaves(self) -> Iterator[Leaf]:
        for event in self.events:
            yield from event.leaves()


@dataclass(frozen=True)
class Under(Event):
    """An event with the weaker guarantee `basis`, because the run differs from what the theorem requires."""

    event: Event
    basis: Guarantee

    def __post_init__(self) -> None:
        require_event(self, "event", self.event)
        if not isinstance(self.basis, Guarantee):
            raise InputError(f"A guarantee is Proved, Assumed or Claimed, and this is {self.basis!r}.")

    @property
    def guarantee(self) -> Guarantee:
        return weakest((self.event.guarantee, self.basis))

    def leaves(self) -> Iterator[Leaf]:
        return self.event.leaves()


@dataclass(frozen=True)
class Adaptive(Event):
    """`event`, chosen after earlier releases were seen (its parameters, or whether it happens), within a filter's limit.

    `order` and `limit` belong to the filter and were fixed before any release: the order and the largest total divergence
    of a Renyi filter, or no order and the largest total mu of Gaussian releases. `relation` names the neighbors for which
    the limit was kept.

    Formal guarantees: every accountant hands a run with such an event to that filter (`privet.privacy.Filter`). The filter
    states the cost of its whole limit, not only of the part that was used, because when to stop was chosen as well.
    """

    event: Event
    order: float | None
    limit: float
    relation: str = "add-remove"

    def __post_init__(self) -> None:
        require_event(self, "event", self.event)
        require_number(self, "limit", self.limit)
        object.__setattr__(self, "relation", Relation.of(self.relation).value)
        if self.order is not None:
            require_number(self, "order", self.order, low=1.0)
            if self.order == 1:
                raise InputError("order of Adaptive must be above 1: a divergence of order 1 gives no delta.")

    def leaves(self) -> Iterator[Leaf]:
        for leaf, count in self.event.leaves():
            yield (leaf if isinstance(leaf, Adaptive) else replace(self, event=leaf)), count


def composed(*events: Event) -> Event:
    """Compose events in order; equal events in a row are counted instead of listed."""
    runs: list[list[Any]] = []
    for event in events:
        for part in event.events if isinstance(event, Composed) else (event,):
            if isinstance(part, Nothing):
                continue
            base, count = (part.event, part.count) if isinstance(part, Repeated) else (part, 1)
            if runs and runs[-1][0] == base:
                runs[-1][1] += count
            else:
                runs.append([base, count])
    parts = tuple(repeated(base, count) for base, count in runs)
    if len(parts) == 1:
        return parts[0]
    return Composed(parts) if parts else Nothing()


def repeated(event: Event, count: int) -> Event:
    if count < 0:
        raise InputError(f"An event cannot happen {count} times.")
    if count == 0 or isinstance(event, Nothing):
        return Nothing()
    if isinstance(event, Repeated):
        return Repeated(event.event, event.count * count)
    return event if count == 1 else Repeated(event, count)


def tally(event: Event) -> tuple[Leaf, ...]:
    """The leaves of an event with their total counts, in an order that does not depend on the order of composition."""
    counts: dict[Event, int] = {}
    for leaf, count in event.leaves():
        counts[leaf] = counts.get(leaf, 0) + count
    return tuple(sorted(counts.items(), key=lambda item: repr(item[0])))


MOST = 10**18
"""The largest count of anything in an event."""

_LARGEST = sys.float_info.max


def require_event(owner: object, name: str, value: Event) -> None:
    """Raise unless `value` is an event: accountants count nothing else."""
    if not isinstance(value, Event):
        raise InputError(f"{name} of {type(owner).__name__} must be an event, and is {_shown(value)}.")


def require_number(owner: object, name: str, value: float, *, low: float = 0.0, high: float = math.inf) -> None:
    """Raise unless `value` is a real number in [low, high]."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= min(high, _LARGEST)
    if not good:
        bound = f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
        raise InputError(f"{name} of {type(owner).__name__} must be a number {bound}, and is {_shown(value)}.")


def require_whole(owner: object, name: str, value: int, *, low: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= MOST:
        bound = f"of at least {low}" if not isinstance(value, int) or value < low else f"up to {MOST:,}"
        raise InputError(f"{name} of {type(owner).__name__} must be a whole number {bound}, and is {_shown(value)}.")


def _shown(value: object) -> str:
    """A value for a message; a ledger from elsewhere may hold anything, of any length."""
    try:
        return printable(repr(value), 120)
    except (ValueError, RecursionError):  # an integer of too many digits, or too deep a list
        return f"a {type(value).__name__}"


@dataclass(frozen=True)
class Gaussian(Event):
    """A sum of contributions of L2 norm at most C, plus N(0, (noise_multiplier * C)^2) in every coordinate.

    Formal guarantees: C bounds what one record adds to the sum. Replacing a record moves the sum by up to 2C; accountants
    apply this factor. With a noise multiplier of 0 epsilon is infinite.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        require_number(self, "noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class Laplace(Event):
    """A sum of contributions of L1 norm at most C, plus Laplace noise of scale noise_multiplier * C.

    Formal guarantees: pure epsilon 1/noise_multiplier for adding or removing a record, and twice that for replacing one.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        require_number(self, "noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class IsotropicL2(Event):
    """A sum of contributions of L2 norm at most C in `dimension` coordinates, plus noise of density ~ exp(-|z|_2 / s).

    `noise_multiplier` is s/C.

    Formal guarantees: pure epsilon 1/noise_multiplier. The exact privacy loss is that of a shift of length C: the density
    along any line is log-concave, so the loss grows with the length of the shift.
    """

    noise_multiplier: float
    dimension: int

    def __post_init__(self) -> None:
        require_number(self, "noise_multiplier", self.noise_multiplier)
        require_whole(self, "dimension", self.dimension)


@dataclass(frozen=True)
class GroupedL2(Event):
    """A sum of contributions of L2 norm at most C, plus noise of density ~ exp(-sum_g a_g |z_g|_2).

    `rates` holds a_g * C for each group of coordinates. Product Laplace noise has one group for each coordinate.

    Formal guarantees: pure epsilon sqrt(sum rates^2) (Cauchy-Schwarz), and zCDP with rho = max(rates)^2 / 2 (the groups
    are independent and group g is (a_g t_g)-DP for a shift t_g, with sum t_g^2 <= C^2).
    """

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.rates, tuple) or not self.rates:
            raise InputError("rates of GroupedL2 must be a non-empty tuple, one rate for each group.")
        for rate in self.rates:
            require_number(self, "rates", rate)

    @property
    def epsilon(self) -> float:
        return math.hypot(*self.rates)

    @property
    def rho(self) -> float:
        return max(self.rates) ** 2 / 2


@dataclass(frozen=True)
class NoisyVotes(Event):
    """Counts of votes of teachers trained on disjoint records, plus noise of scale `noise_multiplier` votes per count.

    The noise is "gaussian" (standard deviation) or "laplace" (scale). The winner or the noisy counts may be released.

    Formal guarantees: adding, removing or replacing one record changes one teacher, whose vote moves from one label to
    another. The sensitivity is sqrt(2) in L2 and 2 in L1, for either relation.
    """

    noise_multiplier: float
    noise: str = "gaussian"

    def __post_init__(self) -> None:
        require_number(self, "noise_multiplier", self.noise_multiplier)
        if self.noise not in ("gaussian", "laplace"):
            raise InputError(f"noise of NoisyVotes must be 'gaussian' or 'laplace', and is {self.noise!r}.")


@dataclass(frozen=True)
class NoisyTopCount(Event):
    """The largest count of votes, plus N(0, noise_multiplier^2); the teachers are as in `NoisyVotes`.

    Formal guarantees: adding, removing or replacing one record changes one vote, which moves the largest count by at most
    1. The sensitivity is 1, for either relation.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        require_number(self, "noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class CovarianceRelease(Event):
    """X^T X for rows of L2 norm at most 1, plus N(0, noise_multiplier^2) in each entry of a triangle (DP-PCA).

    Formal guarantees: the Frobenius sensitivity is 1 for adding or removing a row, and sqrt(2) for replacing one.
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        require_number(self, "noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class PoissonSampled(Event):
    """`event` on a sample that includes each record independently with probability `rate`; it may be empty."""

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

    Formal guarantees: as `PoissonSampled`; each step also adds to delta the probability that it aborts,
    P[Binomial(examples, rate) > rows]. `examples` is a public upper bound of the number of records.
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

    Formal guarantees: sampling amplifies privacy only for replacing one record, where both data sets have one known size.
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

    Formal guarantees: a replaced record is in one batch, so one epoch costs one `event` (parallel composition). Shuffling
    gives no amplification here. Removing a record moves others between batches, so add/remove is not covered.
    """

    batches: int
    event: Event

    def __post_init__(self) -> None:
        require_whole(self, "batches", self.batches)
        require_event(self, "event", self.event)

    @property
    def sampling(self) -> str:
        return "shuffled epochs"


@dataclass(frozen=True)
class PureEpsilon(Event):
    """Any (epsilon, 0)-DP mechanism for adding or removing one record.

    Formal guarantees: dominated by randomized response with the same epsilon (Kairouz, Oh and Viswanath 2015).
    Replacing a record is removing it and adding another, so it costs at most twice the epsilon.
    """

    epsilon: float

    def __post_init__(self) -> None:
        require_number(self, "epsilon", self.epsilon)


@dataclass(frozen=True)
class ApproximateDP(Event):
    """Any (epsilon, delta)-DP mechanism for adding or removing one record, proved elsewhere.

    Formal guarantees: dominated by randomized response that reveals everything with probability delta (Kairouz et al.).
    Replacing a record costs (2 epsilon, (1 + e^epsilon) delta).
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        require_number(self, "epsilon", self.epsilon)
        require_number(self, "delta", self.delta, high=1.0)


@dataclass(frozen=True)
class PublishedClaim(Event):
    """An (epsilon, delta) from a paper that does not hold for this run.

    Formal guarantees: none. It is composed as if it held, and its guarantee says that it does not.
    """

    epsilon: float
    delta: float
    by: str
    because: str

    def __post_init__(self) -> None:
        require_number(self, "epsilon", self.epsilon)
        require_number(self, "delta", self.delta, high=1.0)
        if not self.by or not self.because:
            raise InputError("A published claim needs both: who made it, and why it does not hold.")

    @property
    def guarantee(self) -> Guarantee:
        return Claimed(self.by, self.because)


@dataclass(frozen=True)
class RandomizedResponse(Event):
    """Each record's value, one of `buckets`, is kept with probability 1 - noise and otherwise drawn uniformly.

    Formal guarantees: pure epsilon ln((1 - noise + noise/buckets) / (noise/buckets)) for replacing one record. The number
    of answers reveals the number of records, so adding or removing a record is not covered.
    """

    noise: float
    buckets: int

    def __post_init__(self) -> None:
        require_number(self, "noise", self.noise, high=1.0)
        require_whole(self, "buckets", self.buckets, low=2)


@dataclass(frozen=True)
class RepeatAndSelect(Event):
    """The best of a random number of trials, each of which does one of `events`, drawn at random; only the best is released.

    The number of trials is drawn before the first one and stays secret: from a truncated negative binomial
    distribution of this mean and shape, or a Poisson distribution, whose shape is None. Without trials, nothing is released.

    Formal guarantees: the trials are independent and alike, and all of them are made, whatever the earlier ones gave. The
    score by which the best one is chosen is part of each trial: it is in `events`, or follows from what the trial released
    and from public records. Which of `events` a trial does is drawn with public probabilities, so at each order of a Renyi
    divergence a trial costs at most as much as the most expensive of them. The best trial then costs what `Trials.best` says
    (Papernot and Steinke 2022, theorems 2 and 6), for either relation. Only the RDP accountant has a theorem for it.
    """

    events: tuple[Event, ...]
    mean: float
    shape: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.events, tuple) or not self.events:
            raise InputError("events of RepeatAndSelect must be a non-empty tuple with the events that a trial can do.")
        for event in self.events:
            require_event(self, "events", event)
        _ = self.trials  # raises for a mean or a shape that no distribution has

    @property
    def trials(self) -> Trials:
        """The distribution of the number of trials."""
        return Trials(self.mean, self.shape)


@dataclass(frozen=True)
class NotPrivate(Event):
    """The data was used without protection: epsilon is infinite."""


@dataclass(frozen=True)
class PublicRecords(Event):
    """Use of `count` records that the user states to be public; they are not among the protected ones.

    Formal guarantees: the protected records were not used, so this costs nothing. The ledger lists it so that nobody takes
    these records for protected ones.
    """

    count: int
    named: str

    def __post_init__(self) -> None:
        require_whole(self, "count", self.count)
        if not isinstance(self.named, str) or not self.named:
            raise InputError("Public records need a name, so that others can check that they are public.")

    def leaves(self) -> Iterator[Leaf]:
        return iter(())


def bare(event: Event) -> Event:
    """The event without the wrappers that only weaken its guarantee."""
    while isinstance(event, Under):
        event = event.event
    return event


def gaussian_multiplier(event: Event, relation: Relation) -> float | None:
    """Standard deviation over sensitivity if the event is one joint Gaussian release, else None.

    Several Gaussian releases of the same sample count as one, since 1/sigma^2 adds up. Sampling at rate 1 is no sampling.
    """
    match bare(event):
        case Gaussian(noise_multiplier=sigma):
            return sigma / relation.factor
        case CovarianceRelease(noise_multiplier=sigma):
            return sigma / math.sqrt(relation.factor)
        case NoisyVotes(noise_multiplier=sigma, noise="gaussian"):
            return sigma / math.sqrt(2)
        case NoisyTopCount(noise_multiplier=sigma):
            return sigma
        case ShuffledEpoch(event=inner) if relation is Relation.REPLACE_ONE:
            return gaussian_multiplier(inner, relation)
        case PoissonSampled(rate=1, event=inner):
            return gaussian_multiplier(inner, relation)
        case Repeated(event=inner, count=count):
            single = gaussian_multiplier(inner, relation)
            return None if single is None else single / math.sqrt(count)
        case Composed(events=events):
            sigmas = [gaussian_multiplier(inner, relation) for inner in events]
            return None if None in sigmas else joint_multiplier([sigma for sigma in sigmas if sigma is not None])
    return None


def joint_multiplier(sigmas: list[float]) -> float:
    """The multiplier of several Gaussian releases together."""
    if min(sigmas) == 0:
        return 0.0
    return 1 / math.hypot(*(1 / sigma for sigma in sigmas))


def pure_epsilon(event: Event, relation: Relation) -> float | None:
    """The pure epsilon of an event that has one, else None."""
    match bare(event):
        case Nothing():
            return 0.0
        case Laplace(noise_multiplier=scale) | IsotropicL2(noise_multiplier=scale):
            return relation.factor / scale if scale else math.inf
        case NoisyVotes(noise_multiplier=scale, noise="laplace"):
            return 2 / scale if scale else math.inf
        case GroupedL2() as grouped:
            return relation.factor * grouped.epsilon
        case PureEpsilon(epsilon=epsilon):
            return relation.factor * epsilon
        case RandomizedResponse(noise=noise, buckets=buckets) if relation is Relation.REPLACE_ONE:
            return math.log1p((1 - noise) * buckets / noise) if noise else math.inf
        case ShuffledEpoch(event=inner) if relation is Relation.REPLACE_ONE:
            return pure_epsilon(inner, relation)
        case Repeated(event=inner, count=count):
            single = pure_epsilon(inner, relation)
            return None if single is None else count * single
        case Composed(events=events):
            parts = [pure_epsilon(inner, relation) for inner in events]
            return (
                None if any(part is None for part in parts) else math.fsum(part for part in parts if part is not None)
            )
    return None


def stated_privacy(event: Event, relation: Relation) -> tuple[float, float] | None:
    """The (epsilon, delta) of an event that only states them, else None."""
    match bare(event):
        case ApproximateDP(epsilon=epsilon, delta=delta) | PublishedClaim(epsilon=epsilon, delta=delta):
            if relation is Relation.ADD_REMOVE:
                return epsilon, delta
            # Removing and then adding: group privacy for two changes.
            grown = delta * (1 + math.exp(epsilon)) if epsilon < 700 else 1.0
            return 2 * epsilon, min(1.0, grown)
    return None


def amplified(epsilon: float, rate: float) -> float:
    """The epsilon of a mechanism on a sample of the given rate: ln(1 + q(e^epsilon - 1))."""
    if rate == 0:
        return 0.0
    if epsilon > 500:
        return epsilon + math.log(rate)
    return math.log1p(rate * math.expm1(epsilon))


BOTH_RELATIONS: tuple[type[Event], ...] = (
    Gaussian,
    Laplace,
    IsotropicL2,
    GroupedL2,
    CovarianceRelease,
    NoisyVotes,
    NoisyTopCount,
    PureEpsilon,
    ApproximateDP,
    PublishedClaim,
    Nothing,
)
"""Events with bounds for adding, removing and replacing a record, where the bound for replacing is the largest."""

INSIDE: dict[type[Event], tuple[type[Event], ...]] = {
    # Add/remove: Zhu, Dong and Wang 2022, theorem 11, for any mechanism with a dominating pair. Replace one: advanced joint
    # convexity (Balle, Barthe and Gaboardi 2018, theorem 2) compares the sample that has the record with one that has its
    # replacement and with one that has neither, so the mechanism must also be bounded for removing a record.
    PoissonSampled: BOTH_RELATIONS,
    PaddedPoisson: BOTH_RELATIONS,
    # Replace one: all samples have the same size, so a bound for replacing a record is enough (the same paper, theorem 9).
    FixedSizeSampled: (*BOTH_RELATIONS, RandomizedResponse),
    # Parallel composition for a replaced record: no amplification, and all batches have known sizes.
    ShuffledEpoch: (*BOTH_RELATIONS, RandomizedResponse),
}
"""The events that each kind of sampling may contain, alone or composed, and the theorems for them."""

_REASONS: dict[type[Event], str] = {
    RandomizedResponse: "the number of answers shows how many records were drawn, so sampling does not amplify it",
    ShuffledEpoch: "it is bounded only for replacing a record, and a sample without the record has one record less",
}


def why_not_inside(event: Event) -> str | None:
    """Why no theorem covers the events inside a sampling event; None if one does, or if nothing is sampled."""
    outer = bare(event)
    listed = INSIDE.get(type(outer))
    if listed is None or (isinstance(outer, PoissonSampled) and outer.rate in (0, 1)):
        return None
    for part in (part for inner in outer.inner for part in _parts(inner)):
        if type(part) not in listed:
            inside = f"{type(part).__name__} inside {type(outer).__name__}"
            return f"{inside}: {_REASONS.get(type(part), 'no theorem is listed for this combination')}"
    return None


def _parts(event: Event) -> tuple[Event, ...]:
    """The single releases that `event` is composed of."""
    event = bare(event)
    if isinstance(event, Repeated | Composed):
        return tuple(part for inner in event.inner for part in _parts(inner))
    if isinstance(event, PoissonSampled) and event.rate == 1:
        return _parts(event.event)
    return (event,)


def for_group(event: Event, size: int) -> Event | None:
    """The same release for a group of `size` records, each of which can move it as far as one record can; None if unknown."""
    match bare(event):
        case PoissonSampled(rate=1, event=inner):
            return for_group(inner, size)
        case Repeated(event=inner, count=count):
            larger = for_group(inner, size)
            return None if larger is None else larger * count
        case Composed(events=events):
            known = tuple(each for inner in events if (each := for_group(inner, size)) is not None)
            return Composed(known) if len(known) == len(events) else None
        case Gaussian(noise_multiplier=noise):
            return Gaussian(noise / size)
        case CovarianceRelease(noise_multiplier=noise):
            return CovarianceRelease(noise / size)
        case NoisyVotes(noise_multiplier=noise, noise=kind):
            return NoisyVotes(noise / size, kind)
        case NoisyTopCount(noise_multiplier=noise):
            return NoisyTopCount(noise / size)
        case Laplace(noise_multiplier=noise):
            return Laplace(noise / size)
        case IsotropicL2(noise_multiplier=noise, dimension=dimension):
            return IsotropicL2(noise / size, dimension)
        case GroupedL2(rates=rates):
            return GroupedL2(tuple(size * rate for rate in rates))
        case PureEpsilon(epsilon=epsilon):
            return PureEpsilon(size * epsilon)
        case RandomizedResponse() as response:
            return response * size
    return None
