"""What several theorems see of an event: a Gaussian of some multiplier, a pure epsilon, or an (epsilon, delta)."""

from __future__ import annotations

import math

from privet.privacy.events import (
    ApproximateDP,
    Composed,
    CovarianceRelease,
    Event,
    Gaussian,
    GroupedL2,
    IsotropicL2,
    Laplace,
    NoisyTopCount,
    NoisyVotes,
    Nothing,
    PoissonSampled,
    PublishedClaim,
    PureEpsilon,
    RandomizedResponse,
    Repeated,
    ShuffledEpoch,
    Under,
)
from privet.privacy.relations import Relation


def bare(event: Event) -> Event:
    """The event without the wrappers that only lower its guarantee, and without the shuffling that earns nothing."""
    while isinstance(event, Under):
        event = event.event
    return event


def gaussian_multiplier(event: Event, relation: Relation) -> float | None:
    """Standard deviation over sensitivity if the event is one joint Gaussian release, else None.

    Several Gaussian releases of the same sample are one: 1/sigma^2 adds up. A sample at rate 1 is everything.
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
