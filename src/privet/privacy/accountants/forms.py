"""Views of an event that several theorems share: as one Gaussian, as a pure epsilon or as an (epsilon, delta).

Also the list of the events that theorems cover inside a sample: an event that is not listed is refused.
"""

from __future__ import annotations

import math

from privet.privacy.events import (
    ApproximateDP,
    Composed,
    CovarianceRelease,
    Event,
    FixedSizeSampled,
    Gaussian,
    GroupedL2,
    IsotropicL2,
    Laplace,
    NoisyTopCount,
    NoisyVotes,
    Nothing,
    PaddedPoisson,
    PoissonSampled,
    PublishedClaim,
    PureEpsilon,
    RandomizedResponse,
    Repeated,
    ShuffledEpoch,
    Under,
)
from privet.privacy.guarantees import Relation


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
