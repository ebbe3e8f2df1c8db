"""Dominating pairs: P (with the record) and Q (without it), which are at least as easy to tell apart as any neighbors.

A pair gives the masses of P and Q in each cell of a grid of privacy losses L = ln(dP/dQ). Connecting the dots needs nothing
else, for both directions: the reverse pair (Q, P) has the same cells mirrored. `pairs_of` and `group_pairs` give the dominating
pairs of an event, for one record and for a group of records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import betainc, gammainc, gammainccinv, gammaincinv, ndtr, ndtri_exp
from scipy.stats import binom

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
    bare,
    for_group,
    gaussian_multiplier,
    pure_epsilon,
    stated_privacy,
    tally,
    why_not_inside,
)
from privet.privacy.guarantees import Relation

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Span:
    """The range of losses that matters: P has at most a given tail above `high`, and Q at most that tail below `low`.

    A closed end is the end of the support: there is no loss beyond it.
    """

    low: float
    high: float
    low_closed: bool = False
    high_closed: bool = False


class Pair(Protocol):
    """A dominating pair, hashable so that its discretization can be cached."""

    @property
    def symmetric(self) -> bool:
        """Whether (Q, P) has the same loss distribution as (P, Q)."""
        ...

    @property
    def infinite(self) -> tuple[float, float]:
        """The mass of infinite loss under P, and for the reverse pair under Q."""
        ...

    def __hash__(self) -> int: ...

    def span(self, tail: float) -> Span: ...

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """The masses under P and under Q of L <= edges[0], of each (edges[i], edges[i+1]], and of L > edges[-1].

        Infinite losses are not included: outcomes that only P or only Q has are counted in `infinite`.
        """
        ...


def normal_cells(x: Array, mean: float = 0.0) -> Array:
    """The masses of N(mean, 1) between the ascending points x, with full relative precision in both tails."""
    z = np.concatenate(([-np.inf], x - mean, [np.inf]))
    tail = ndtr(-np.abs(z))
    masses = np.abs(tail[1:] - tail[:-1])
    middle = int(np.searchsorted(z, 0.0))
    if z[middle] > 0:
        masses[middle - 1] = 1.0 - tail[middle - 1] - tail[middle]
    return np.asarray(masses)


def normal_tail_point(tail: float) -> float:
    """The z with P[N(0, 1) > z] = tail."""
    return -float(ndtri_exp(math.log(tail)))


@dataclass(frozen=True)
class GaussianPair:
    """N(mu, 1) against N(0, 1): L = mu x - mu^2/2."""

    mu: float
    symmetric: bool = True
    infinite: tuple[float, float] = (0.0, 0.0)

    def span(self, tail: float) -> Span:
        reach = self.mu * normal_tail_point(tail) + self.mu**2 / 2
        return Span(-reach, reach)

    def cells(self, edges: Array) -> tuple[Array, Array]:
        x = edges / self.mu + self.mu / 2
        return normal_cells(x, self.mu), normal_cells(x)


@dataclass(frozen=True)
class AtomsPair:
    """Finitely many outcomes with probabilities p and q, and outcomes of infinite loss on either side."""

    losses: tuple[float, ...]
    p: tuple[float, ...]
    q: tuple[float, ...]
    infinite: tuple[float, float] = (0.0, 0.0)
    symmetric: bool = True

    def span(self, tail: float) -> Span:
        return Span(min(self.losses), max(self.losses), low_closed=True, high_closed=True)

    def cells(self, edges: Array) -> tuple[Array, Array]:
        cell = np.searchsorted(edges, self.losses, side="left")
        size = len(edges) + 1
        return np.bincount(cell, self.p, size).astype(np.float64), np.bincount(cell, self.q, size).astype(np.float64)


def response_pair(epsilon: float, delta: float = 0.0) -> AtomsPair:
    """Randomized response, which dominates every (epsilon, delta)-DP mechanism (Kairouz, Oh and Viswanath)."""
    yes = (1 - delta) / (1 + math.exp(-epsilon))
    no = (1 - delta) * math.exp(-epsilon) / (1 + math.exp(-epsilon))
    return AtomsPair((-epsilon, epsilon), (no, yes), (yes, no), (delta, delta))


@dataclass(frozen=True)
class LaplacePair:
    """Laplace(epsilon, 1) against Laplace(0, 1): L is 2x - epsilon on [0, epsilon] and constant beyond."""

    epsilon: float
    symmetric: bool = True
    infinite: tuple[float, float] = (0.0, 0.0)

    def span(self, tail: float) -> Span:
        return Span(-self.epsilon, self.epsilon, low_closed=True, high_closed=True)

    def cells(self, edges: Array) -> tuple[Array, Array]:
        x = np.clip((edges + self.epsilon) / 2, 0.0, self.epsilon)
        width = -np.expm1(-np.diff(x))
        # The atoms: L = -epsilon for x <= 0 and L = epsilon for x >= epsilon.
        atoms = AtomsPair(
            (-self.epsilon, self.epsilon), (math.exp(-self.epsilon) / 2, 0.5), (0.5, math.exp(-self.epsilon) / 2)
        )
        p, q = atoms.cells(edges)
        p[1:-1] += 0.5 * np.exp(x[1:] - self.epsilon) * width
        q[1:-1] += 0.5 * np.exp(-x[:-1]) * width
        p[0] += 0.5 * math.exp(-self.epsilon) * math.expm1(x[0])
        q[0] -= 0.5 * math.expm1(-x[0])
        p[-1] -= 0.5 * math.expm1(x[-1] - self.epsilon)
        q[-1] += 0.5 * math.exp(-self.epsilon) * math.expm1(self.epsilon - x[-1])
        return p, q


@dataclass(frozen=True)
class PoissonPair:
    """(1-q) Q + q P against Q, for a record that is sampled with probability q: L' = ln(1 - q + q e^L).

    Formal guarantees: dominates removing a record under Poisson sampling, and its reverse dominates adding one, if `base`
    is symmetric and dominates the mechanism (Zhu, Dong and Wang 2022, theorem 11).
    """

    base: Pair
    rate: float
    symmetric: bool = False

    @property
    def infinite(self) -> tuple[float, float]:
        # An outcome that only Q has keeps the finite loss ln(1 - q).
        return self.rate * self.base.infinite[0], 0.0

    def span(self, tail: float) -> Span:
        # The upper tail of the mixture is q P + (1-q) Q; the second part is smaller for positive losses.
        base = self.base.span(tail)
        high = self._sampled(base.high)
        if self.base.infinite[1]:
            return Span(math.log1p(-self.rate), high, low_closed=True, high_closed=base.high_closed)
        return Span(self._sampled(base.low), high, low_closed=base.low_closed, high_closed=base.high_closed)

    def cells(self, edges: Array) -> tuple[Array, Array]:
        with np.errstate(divide="ignore", over="ignore"):
            inner = np.log1p(np.maximum(np.expm1(edges) / self.rate, -1.0))
        # e^l overflows for the losses of tiny noise, where ln((e^l - 1 + q)/q) = l - ln q.
        inner = np.where(edges > 500, edges - math.log(self.rate), inner)
        p, q = self.base.cells(inner)
        # Outcomes that only Q has are in the cell of ln(1 - q), wherever the edges are.
        q[np.searchsorted(edges, math.log1p(-self.rate), side="left")] += self.base.infinite[1]
        return (1 - self.rate) * q + self.rate * p, q

    def _sampled(self, loss: float) -> float:
        return loss + math.log(self.rate) if loss > 500 else math.log1p(self.rate * math.expm1(loss))


@dataclass(frozen=True)
class ReplacedPoissonGaussianPair:
    """(1-q) N(0,1) + q N(mu,1) against (1-q) N(0,1) + q N(-mu,1): a sampled record is replaced by its opposite.

    Formal guarantees: dominates replacing one record for the Poisson-sampled Gaussian, as in dp-accounting.
    """

    mu: float
    rate: float
    symmetric: bool = True
    infinite: tuple[float, float] = (0.0, 0.0)

    def span(self, tail: float) -> Span:
        x = normal_tail_point(tail) + self.mu
        high = np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + self.mu * x - self.mu**2 / 2)
        low = np.logaddexp(math.log1p(-self.rate), math.log(self.rate) - self.mu * x - self.mu**2 / 2)
        reach = float(high - low)
        return Span(-reach, reach)

    def cells(self, edges: Array) -> tuple[Array, Array]:
        # L(x) = l solves a quadratic in e^(mu x): mu x = l/2 + asinh((1-q)/q e^(mu^2/2) sinh(l/2)).
        half = np.abs(edges) / 2
        # asinh(e^t sinh(h)) without overflow, through ln(e^t sinh h) = t + h + ln((1 - e^(-2h))/2).
        t = math.log1p(-self.rate) - math.log(self.rate) + self.mu**2 / 2
        with np.errstate(divide="ignore", over="ignore"):
            log_y = t + half + np.log(-np.expm1(-2 * half) / 2)
            y = np.exp(np.minimum(log_y, 300.0))
        x = np.sign(edges) * (half + np.where(log_y > 300, log_y + math.log(2), np.arcsinh(y))) / self.mu
        center, plus, minus = normal_cells(x), normal_cells(x, self.mu), normal_cells(x, -self.mu)
        return (1 - self.rate) * center + self.rate * plus, (1 - self.rate) * center + self.rate * minus


@dataclass(frozen=True)
class ReplacedSamplePair:
    """Replacing one record under sampling without replacement of any mechanism, or under Poisson sampling of a listed one.

    For Poisson sampling the mechanism must also be bounded for removing a record, by no more than for replacing one:
    `accountants.forms` lists such mechanisms.

    Formal guarantees: for e^epsilon >= 1 the hockey-stick divergence is at most that of ((1-q) Q + q P, Q), where (P, Q)
    dominates the mechanism for replacing one record (Balle, Barthe and Gaboardi 2018, theorems 9 and 10; Zhu, Dong and Wang
    2022, theorem 11). For e^epsilon < 1 this follows by symmetry. This pair has exactly that divergence.
    """

    base: Pair
    rate: float
    symmetric: bool = True

    @property
    def infinite(self) -> tuple[float, float]:
        mass = self.rate * self.base.infinite[0]
        return mass, mass

    def span(self, tail: float) -> Span:
        sampled = PoissonPair(self.base, self.rate).span(tail)
        return Span(-sampled.high, sampled.high, low_closed=sampled.high_closed, high_closed=sampled.high_closed)

    def cells(self, edges: Array) -> tuple[Array, Array]:
        sampled = PoissonPair(self.base, self.rate)
        p, q = np.zeros(len(edges) + 1), np.zeros(len(edges) + 1)
        up = int(np.searchsorted(edges, 0.0, side="right"))
        above_p, above_q = sampled.cells(np.concatenate(([0.0], edges[up:])))
        p[up:] += above_p[1:]
        q[up:] += above_q[1:]
        down = int(np.searchsorted(edges, 0.0, side="left"))
        below_p, below_q = sampled.cells(np.concatenate(([0.0], -edges[:down][::-1])))
        p[: down + 1] += below_q[1:][::-1]
        q[: down + 1] += below_p[1:][::-1]
        # The rest has loss 0 and the same mass under both.
        rest = 1.0 - p.sum() - self.infinite[0]
        p[down] += rest
        q[down] += rest
        return p, q


@dataclass(frozen=True)
class OverflowingPair:
    """A pair together with an outcome of the given probability that may reveal everything, in both directions."""

    base: Pair
    overflow: float

    @property
    def symmetric(self) -> bool:
        return self.base.symmetric

    @property
    def infinite(self) -> tuple[float, float]:
        forward, reverse = self.base.infinite
        return forward + self.overflow, reverse + self.overflow

    def span(self, tail: float) -> Span:
        return self.base.span(tail)

    def cells(self, edges: Array) -> tuple[Array, Array]:
        return self.base.cells(edges)


_SMOOTH_NODES = 64
_KINKED_NODES = 192
_TAIL = 1e-17
"""The probability of the radii that are left out on either side."""
_ROUNDING = 1e-13


@dataclass(frozen=True)
class IsotropicPair:
    """Noise of density ~ exp(-|z|_2) in `dimension` >= 2 coordinates, shifted by a vector of length `shift`.

    With |z| = r ~ Gamma(d) and a uniform direction, L = |z + tau e| - |z| >= t exactly if the cosine between z and e is at
    least c = (t^2 + 2 r t - tau^2) / (2 r tau), whose tail is an incomplete beta function (Joseph, Kulesza and Yu 2025).

    Formal guarantees: dominates every shift of at most that length: along a line the density is log-concave, so the loss
    grows with the shift. The masses come from a numerical integration over the radius; a mass of 1e-13 at the largest loss,
    in either direction, covers its rounding error.
    """

    shift: float
    dimension: int
    symmetric: bool = True
    infinite: tuple[float, float] = (0.0, 0.0)

    def span(self, tail: float) -> Span:
        return Span(-self.shift, self.shift, low_closed=True, high_closed=True)

    def cells(self, edges: Array) -> tuple[Array, Array]:
        above = self._above(edges)
        p = -np.diff(np.concatenate(([1.0], above, [0.0])))
        # Q is P mirrored: Q[L <= -t] = P[L >= t].
        below = self._above(-edges)
        q = np.diff(np.concatenate(([0.0], below, [1.0])))
        p, q = np.maximum(p, 0.0), np.maximum(q, 0.0)
        p[np.searchsorted(edges, self.shift)] += _ROUNDING
        q[np.searchsorted(edges, -self.shift)] += _ROUNDING
        return p, q

    def _above(self, losses: Array) -> Array:
        """P[L > t] for each t."""
        # In many dimensions nearly all losses are far below the largest one; the rest is covered by the rounding term.
        reach = _reach(self.shift, self.dimension)
        out = np.where(losses < 0, 1.0, 0.0)
        inside = np.flatnonzero((losses >= -reach) & (losses < reach))
        for some in np.split(inside, range(4096, len(inside), 4096)):
            out[some] = _share_above(losses[some], self.shift, self.dimension)
        return np.asarray(np.minimum.accumulate(np.clip(out, 0.0, 1.0)) if losses[0] <= losses[-1] else out)


def _share_above(losses: Array, shift: float, dimension: int) -> Array:
    """P[L > t] for each t between -shift and shift, by numerical integration over the radius.

    For a radius below (shift - t) / 2 the loss is above t in every direction; the integrand has a kink there.
    """
    low, high = _ends(dimension)
    t, half = losses[:, None], (dimension - 1) / 2
    if shift <= low:
        radius, weight = _smooth_radii(dimension)
        return np.asarray(betainc(half, half, _share_of_directions(t, radius, shift)) @ weight)
    kink = np.clip((shift - t) / 2, low, high)
    places, weights = _double_exponential()
    radius = kink + (high - kink) * places
    weight = (high - kink) * weights * _density(radius, dimension)
    above = (weight * betainc(half, half, _share_of_directions(t, radius, shift))).sum(1)
    return np.asarray(gammainc(dimension, kink[:, 0]) + above)


def _share_of_directions(t: Array, radius: Array, shift: float) -> Array:
    """(1 - c) / 2 for the least cosine c at which the loss is above t, factored so that it is exact near t = shift."""
    return np.asarray(np.clip((shift - t) * (shift + t + 2 * radius) / (4 * radius * shift), 0.0, 1.0))


@lru_cache(maxsize=256)
def _reach(shift: float, dimension: int) -> float:
    """A loss of at most `shift` that is exceeded with a probability below 1e-17, found by halving."""
    halves = shift * np.exp2(-np.arange(40.0))
    above = _share_above(halves, shift, dimension)
    return float(halves[above < 1e-17].min(initial=shift))


def _ends(dimension: int) -> tuple[float, float]:
    return float(gammaincinv(dimension, _TAIL)), float(gammainccinv(dimension, _TAIL))


@lru_cache(maxsize=64)
def _smooth_radii(dimension: int) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights for r ~ Gamma(dimension)."""
    low, high = _ends(dimension)
    nodes, weights = np.polynomial.legendre.leggauss(_SMOOTH_NODES)
    radius = (high - low) / 2 * nodes + (low + high) / 2
    weight = weights * _unscaled(radius, dimension)
    return radius, weight / weight.sum()


@lru_cache(maxsize=1)
def _double_exponential() -> tuple[Array, Array]:
    """Nodes and weights between 0 and 1 for integrands with a kink at an end (Takahasi and Mori)."""
    u = np.linspace(-3.6, 3.6, _KINKED_NODES)
    places = 1 / (1 + np.exp(-np.pi * np.sinh(u)))
    return places, (u[1] - u[0]) * np.pi * np.cosh(u) * places * (1 - places)


def _density(radius: Array, dimension: int) -> Array:
    return _unscaled(radius, dimension) / _total(dimension)


@lru_cache(maxsize=64)
def _total(dimension: int) -> float:
    low, high = _ends(dimension)
    places, weights = _double_exponential()
    return float((high - low) * weights @ _unscaled(low + (high - low) * places, dimension))


def _unscaled(radius: Array, dimension: int) -> Array:
    """The density of Gamma(dimension) over its maximum; plain logarithms would cancel in many dimensions."""
    mode = dimension - 1
    away = (radius - mode) / mode
    return np.asarray(np.exp(mode * (np.log1p(away) - away)))


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
    if (larger := for_group(leaf, size)) is None:
        raise NoPairError("no pair is known for a group")
    return pairs_of(larger, relation)


def _sampled_group(inner: Event, rate: float, size: int, relation: Relation) -> Pair:
    sigma = gaussian_multiplier(inner, Relation.ADD_REMOVE)
    if relation is not Relation.ADD_REMOVE or not sigma or size / sigma > LARGEST_SHIFT:
        raise NoPairError("no pair is known for a sampled group")
    return SampledGroupPair(1 / sigma, rate, size)
