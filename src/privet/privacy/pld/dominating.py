"""The dominating pairs of an event, for one record and for a group of records."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom

from privet.privacy.accountants.forms import bare, gaussian_multiplier, pure_epsilon, stated_privacy, why_not_inside
from privet.privacy.events import (
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
    PaddedPoisson,
    PoissonSampled,
    PureEpsilon,
    RandomizedResponse,
    Repeated,
    ShuffledEpoch,
    tally,
)
from privet.privacy.guarantees import Relation
from privet.privacy.pld.pairs import (
    Array,
    AtomsPair,
    GaussianPair,
    IsotropicPair,
    LaplacePair,
    OverflowingPair,
    Pair,
    PoissonPair,
    ReplacedPoissonGaussianPair,
    ReplacedSamplePair,
    Span,
    normal_cells,
    normal_tail_point,
    response_pair,
)

_LARGEST_MU = 6.0
_LEAST_NOISE, _MOST_NOISE = 1e-60, 1e60


class NoPairError(Exception):
    """An event has no dominating pair here; the message says why."""


class UnboundedError(Exception):
    """An event has no noise, so epsilon is infinite."""


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
    """One Gaussian pair; very small noise is split into equal parts, so that e^loss does not overflow."""
    mu = _mu(sigma)
    parts = max(1, math.ceil((mu / _LARGEST_MU) ** 2))
    return [(GaussianPair(mu / math.sqrt(parts)), parts)]


def _mu(sigma: float) -> float:
    """1/sigma, limited so that it can be squared: smaller noise counts as none, larger noise as the limit."""
    if sigma < _LEAST_NOISE:
        raise UnboundedError
    return 1 / min(sigma, _MOST_NOISE)


def _costs_nothing(event: Event, relation: Relation) -> bool:
    """Whether the release does not depend on any record."""
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
    """Whether the event is a sum of contributions, for which the worst replacement is the opposite contribution."""
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


LARGEST_SHIFT = 30.0
"""The largest shift of a sampled sum by a group, in standard deviations; with larger ones the losses overflow a float."""


@dataclass(frozen=True)
class SampledGroupPair:
    """N(J mu, 1) with J ~ Binomial(size, rate) against N(0, 1): L = ln sum_j P[J = j] e^(j mu x - (j mu)^2 / 2).

    Formal guarantees: dominates adding or removing `size` records for the Poisson-sampled Gaussian, in both directions: J
    of them are drawn, and they move the sum by at most J times the bound of one (Ganesh 2024, "Tight group-level DP
    guarantees for DP-SGD with sampling via mixture of Gaussians mechanisms").
    """

    mu: float
    rate: float
    size: int
    symmetric: bool = False
    infinite: tuple[float, float] = (0.0, 0.0)

    @property
    def weights(self) -> Array:
        return np.asarray(binom.pmf(np.arange(self.size + 1), self.size, self.rate))

    def span(self, tail: float) -> Span:
        low = -normal_tail_point(tail)
        left, right = 0.0, self.size * self.mu - low
        for _ in range(200):
            middle = (left + right) / 2
            if middle in (left, right):
                break
            above = float(self.weights @ ndtr(np.arange(self.size + 1) * self.mu - middle))
            left, right = (left, middle) if above <= tail else (middle, right)
        ends = self._losses(np.array([low, right]))[0]
        return Span(float(ends[0]), float(ends[1]))

    def cells(self, edges: Array) -> tuple[Array, Array]:
        x = self._points(edges)
        p = sum(weight * normal_cells(x, j * self.mu) for j, weight in enumerate(self.weights))
        return np.asarray(p), normal_cells(x)

    def _losses(self, x: Array) -> tuple[Array, Array]:
        """The loss and its slope at each point."""
        j = np.arange(self.size + 1)[:, None]
        with np.errstate(divide="ignore"):
            exponents = np.log(self.weights)[:, None] + j * self.mu * x - (j * self.mu) ** 2 / 2
        top = exponents.max(axis=0)
        shares = np.exp(exponents - top)
        total = shares.sum(axis=0)
        return top + np.log(total), self.mu * (j * shares).sum(axis=0) / total

    def _points(self, losses: Array) -> Array:
        """The points at which the loss has the given values; minus infinity for values that it never has."""
        nobody = self.size * math.log1p(-self.rate)
        with np.errstate(divide="ignore", invalid="ignore"):
            # e^l - P[J = 0], without cancellation.
            rest = np.log(np.maximum(np.expm1(losses) - math.expm1(nobody), 0.0))
        rest = np.where(losses > 500, losses, rest)
        j = np.arange(1, self.size + 1)[:, None]
        # Each term of the sum bounds x from above. The loss is convex, so Newton's method converges from there.
        with np.errstate(divide="ignore"):
            x = ((rest - np.log(self.weights[1:])[:, None] + (j * self.mu) ** 2 / 2) / (j * self.mu)).min(axis=0)
        reached = np.isfinite(x)
        points, goal = x[reached], losses[reached]
        for _ in range(60):
            found, slope = self._losses(points)
            step = np.where(slope > 0, (found - goal) / np.maximum(slope, 1e-300), 0.0)
            points = points - np.maximum(step, 0.0)
            if not (step > 1e-12 * (1 + np.abs(points))).any():
                break
        x[reached] = points
        return np.asarray(np.maximum.accumulate(x))


def group_pairs(event: Event, size: int, relation: Relation) -> list[tuple[Pair, int]]:
    """The pairs whose composition dominates `event` for a change of `size` records; `NoPairError` if none are known."""
    counts: dict[Pair, int] = {}
    for leaf, times in tally(event):
        for pair, count in _group_leaf(bare(leaf), size, relation):
            counts[pair] = counts.get(pair, 0) + count * times
    return list(counts.items())


def _group_leaf(leaf: Event, size: int, relation: Relation) -> list[tuple[Pair, int]]:
    match leaf:
        case PoissonSampled(rate=rate, event=inner) if 0 < rate < 1:
            return [(_sampled_group(inner, rate, size, relation), 1)]
        case PaddedPoisson(rate=rate, event=inner) as padded if 0 < rate < 1:
            return [(OverflowingPair(_sampled_group(inner, rate, size, relation), padded.overflow), 1)]
        case PoissonSampled(rate=0):
            return []
    return pairs_of(_larger(leaf, size), relation)


def _sampled_group(inner: Event, rate: float, size: int, relation: Relation) -> Pair:
    sigma = gaussian_multiplier(inner, Relation.ADD_REMOVE)
    if relation is not Relation.ADD_REMOVE or not sigma or size / sigma > LARGEST_SHIFT:
        raise NoPairError("no pair is known for a sampled group")
    return SampledGroupPair(1 / sigma, rate, size)


def _larger(event: Event, size: int) -> Event:
    """The release for a group of `size` records: each of them can move it as far as a single record can."""
    match bare(event):
        case PoissonSampled(rate=1, event=inner):
            return _larger(inner, size)
        case Repeated(event=inner, count=count):
            return _larger(inner, size) * count
        case Composed(events=events):
            return Composed(tuple(_larger(inner, size) for inner in events))
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
    raise NoPairError("no pair is known for a group")
