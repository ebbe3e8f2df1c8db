"""Several records at once: the pairs that dominate a run in which a whole group comes or goes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom

from privet.privacy.accountants._forms import bare, gaussian_multiplier
from privet.privacy.events import (
    Composed,
    CovarianceRelease,
    Event,
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
    tally,
)
from privet.privacy.pld.dominating import NoPairError, pairs_of
from privet.privacy.pld.pairs import Array, OverflowingPair, Pair, Span, normal_cells, normal_tail_point
from privet.privacy.relations import Relation

LARGEST_SHIFT = 30.0
"""Up to this many standard deviations a group may move a sampled sum; beyond, the losses overflow a float."""


@dataclass(frozen=True)
class SampledGroupPair:
    """N(J mu, 1) with J ~ Binomial(size, rate) against N(0, 1): L = ln sum_j P[J = j] e^(j mu x - (j mu)^2 / 2).

    Formal guarantees: dominates adding or removing `size` records for the Poisson-sampled Gaussian, in both directions: J
    of them are drawn and move the sum by at most J times what one may (Ganesh 2024, "Tight group-level DP guarantees
    for DP-SGD with sampling via mixture of Gaussians mechanisms").
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
        """The loss at each point, and its slope there."""
        j = np.arange(self.size + 1)[:, None]
        with np.errstate(divide="ignore"):
            exponents = np.log(self.weights)[:, None] + j * self.mu * x - (j * self.mu) ** 2 / 2
        top = exponents.max(axis=0)
        shares = np.exp(exponents - top)
        total = shares.sum(axis=0)
        return top + np.log(total), self.mu * (j * shares).sum(axis=0) / total

    def _points(self, losses: Array) -> Array:
        """Where the loss has each value; minus infinity where it never does."""
        nobody = self.size * math.log1p(-self.rate)
        with np.errstate(divide="ignore", invalid="ignore"):
            # e^l - P[J = 0], without cancellation.
            rest = np.log(np.maximum(np.expm1(losses) - math.expm1(nobody), 0.0))
        rest = np.where(losses > 500, losses, rest)
        j = np.arange(1, self.size + 1)[:, None]
        # Each term of the sum alone bounds x from above; the loss is convex, so Newton's method comes down to it.
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
    """The pairs whose composition dominates `event` for a change of `size` records; `NoPairError` where none is known."""
    counts: dict[Pair, int] = {}
    for leaf, times in tally(event):
        for pair, count in _leaf(bare(leaf), size, relation):
            counts[pair] = counts.get(pair, 0) + count * times
    return list(counts.items())


def _leaf(leaf: Event, size: int, relation: Relation) -> list[tuple[Pair, int]]:
    match leaf:
        case PoissonSampled(rate=rate, event=inner) if 0 < rate < 1:
            return [(_sampled(inner, rate, size, relation), 1)]
        case PaddedPoisson(rate=rate, event=inner) as padded if 0 < rate < 1:
            return [(OverflowingPair(_sampled(inner, rate, size, relation), padded.overflow), 1)]
        case PoissonSampled(rate=0):
            return []
    return pairs_of(_larger(leaf, size), relation)


def _sampled(inner: Event, rate: float, size: int, relation: Relation) -> Pair:
    sigma = gaussian_multiplier(inner, Relation.ADD_REMOVE)
    if relation is not Relation.ADD_REMOVE or not sigma or size / sigma > LARGEST_SHIFT:
        raise NoPairError("no pair is known for a sampled group")
    return SampledGroupPair(1 / sigma, rate, size)


def _larger(event: Event, size: int) -> Event:
    """One release as a group of `size` records sees it: each of them may move it as far as one may."""
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
