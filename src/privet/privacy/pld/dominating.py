"""From events to dominating pairs."""

from __future__ import annotations

import math

from privet.privacy.accountants._forms import bare, gaussian_multiplier, pure_epsilon, stated_privacy
from privet.privacy.accountants._sampling import why_not_inside
from privet.privacy.events import (
    Event,
    FixedSizeSampled,
    IsotropicL2,
    Laplace,
    NoisyVotes,
    PaddedPoisson,
    PoissonSampled,
    RandomizedResponse,
    ShuffledEpoch,
)
from privet.privacy.pld.isotropic import IsotropicPair
from privet.privacy.pld.pairs import (
    AtomsPair,
    GaussianPair,
    LaplacePair,
    OverflowingPair,
    Pair,
    PoissonPair,
    ReplacedPoissonGaussianPair,
    ReplacedSamplePair,
    response_pair,
)
from privet.privacy.relations import Relation

_LARGEST_MU = 6.0
_LEAST_NOISE, _MOST_NOISE = 1e-60, 1e60


class NoPairError(Exception):
    """An event has no dominating pair here; the message says why."""


class UnboundedError(Exception):
    """An event has infinite epsilon: no noise."""


def pairs_of(event: Event, relation: Relation) -> list[tuple[Pair, int]]:
    """The pairs whose composition dominates one use of `event`."""
    reason = why_not_inside(event)
    if reason is not None:
        raise NoPairError(reason)
    if _costs_nothing(event, relation):
        return []
    match bare(event):
        case PoissonSampled(rate=rate, event=inner):
            return _poisson(inner, rate, relation)
        case PaddedPoisson(rate=rate, event=inner) as padded:
            pairs = _poisson(inner, rate, relation)
            return [*_overflowing(pairs, padded.overflow)]
        case FixedSizeSampled(event=inner) as sampled:
            if relation is Relation.ADD_REMOVE:
                raise NoPairError("a sample of fixed size has its amplification for replacing one record only")
            return _sampled(inner, sampled.rate, relation)
        case ShuffledEpoch(event=inner):
            if relation is Relation.ADD_REMOVE:
                raise NoPairError("removing a record moves others between batches; ask for replacing one record")
            return pairs_of(inner, relation)
    sigma = gaussian_multiplier(event, relation)
    if sigma is not None:
        return _gaussian(sigma)
    return [(_single(event, relation), 1)]


def _gaussian(sigma: float) -> list[tuple[Pair, int]]:
    """A very small noise in equal parts, each of which has losses that e^loss can hold."""
    mu = _mu(sigma)
    parts = max(1, math.ceil((mu / _LARGEST_MU) ** 2))
    return [(GaussianPair(mu / math.sqrt(parts)), parts)]


def _mu(sigma: float) -> float:
    """1/sigma, within what can be squared: less noise than that is none, and more is counted as that much."""
    if sigma < _LEAST_NOISE:
        raise UnboundedError
    return 1 / min(sigma, _MOST_NOISE)


def _costs_nothing(event: Event, relation: Relation) -> bool:
    """Whether what is released does not depend on any record."""
    inner = bare(event)
    if isinstance(inner, PoissonSampled) or (isinstance(inner, FixedSizeSampled) and relation is Relation.REPLACE_ONE):
        inner = inner.event
    return pure_epsilon(inner, relation) == 0


def _single(event: Event, relation: Relation) -> Pair:
    """The pair of one unsampled release."""
    sigma = gaussian_multiplier(event, relation)
    if sigma is not None:
        return GaussianPair(_mu(sigma))
    inner = bare(event)
    if isinstance(inner, RandomizedResponse) and relation is Relation.ADD_REMOVE:
        raise NoPairError("the number of answers is the number of records; ask for replacing one record")
    epsilon = pure_epsilon(inner, relation)
    if epsilon == math.inf:
        raise UnboundedError
    match inner:
        case Laplace() | NoisyVotes() | IsotropicL2(dimension=1) if epsilon is not None:
            return LaplacePair(epsilon)
        case IsotropicL2(dimension=dimension) if epsilon is not None:
            return IsotropicPair(epsilon, dimension)
        case RandomizedResponse(noise=noise, buckets=buckets) if epsilon is not None:
            wrong = noise / buckets
            right, rest = 1 - noise + wrong, (buckets - 2) * wrong
            return AtomsPair((-epsilon, 0.0, epsilon), (wrong, rest, right), (right, rest, wrong))
    if epsilon is not None:
        return response_pair(epsilon)
    stated = stated_privacy(inner, relation)
    if stated is not None:
        return response_pair(*stated)
    raise NoPairError("no dominating pair is known for it")


def _poisson(inner: Event, rate: float, relation: Relation) -> list[tuple[Pair, int]]:
    if rate == 0:
        return []
    if rate == 1:
        return pairs_of(inner, relation)
    if relation is Relation.REPLACE_ONE:
        sigma = gaussian_multiplier(inner, Relation.ADD_REMOVE)
        if sigma is not None and _doubles(inner):
            return [(ReplacedPoissonGaussianPair(_mu(sigma), rate), 1)]
        return _sampled(inner, rate, relation)
    return [(PoissonPair(_single(inner, relation), rate), 1)]


def _doubles(inner: Event) -> bool:
    """Whether the event is a sum of contributions, so that the worst replacement is by the opposite."""
    one, two = gaussian_multiplier(inner, Relation.ADD_REMOVE), gaussian_multiplier(inner, Relation.REPLACE_ONE)
    return one is not None and two is not None and math.isclose(one, 2 * two)


def _sampled(inner: Event, rate: float, relation: Relation) -> list[tuple[Pair, int]]:
    if rate == 1:
        return pairs_of(inner, relation)
    return [(ReplacedSamplePair(_single(inner, relation), rate), 1)]


def _overflowing(pairs: list[tuple[Pair, int]], overflow: float) -> list[tuple[Pair, int]]:
    if not pairs or not overflow:
        return pairs
    (pair, count), *rest = pairs
    first: list[tuple[Pair, int]] = [(OverflowingPair(pair, overflow), 1)]
    return first + ([(pair, count - 1)] if count > 1 else []) + rest
