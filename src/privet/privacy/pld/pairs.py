"""Dominating pairs: two distributions P (with the record) and Q (without it) that no neighbours are easier to tell apart than.

A pair says how much mass P and Q give to each cell of a grid of privacy losses L = ln(dP/dQ). That is all that
connecting the dots needs, for both directions: the reverse pair (Q, P) has the same cells mirrored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri_exp

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Span:
    """The losses that matter: P puts at most the asked tail above `high`, Q at most that below `low`.

    A closed end is the end of the support: no loss at all lies beyond it.
    """

    low: float
    high: float
    low_closed: bool = False
    high_closed: bool = False


class Pair(Protocol):
    """A dominating pair, hashable so that its discretisation can be cached."""

    @property
    def symmetric(self) -> bool:
        """Whether (Q, P) has the same loss distribution as (P, Q)."""
        ...

    @property
    def infinite(self) -> tuple[float, float]:
        """The mass of infinite loss, under P and (for the reverse pair) under Q."""
        ...

    def __hash__(self) -> int: ...

    def span(self, tail: float) -> Span: ...

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """The masses under P and under Q of L <= edges[0], of each (edges[i], edges[i+1]], and of L > edges[-1].

        Infinite losses are in none of them: what only P or only Q has stands in `infinite`.
        """
        ...


def normal_cells(x: Array, mean: float = 0.0) -> Array:
    """The masses of N(mean, 1) between the ascending points x, each to full relative precision in either tail."""
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
    """Finitely many outcomes of probabilities p and q, and outcomes of infinite loss on either side."""

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
    """Randomised response, which dominates every (epsilon, delta)-DP mechanism (Kairouz, Oh and Viswanath)."""
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

    Formal guarantees: dominates removal for Poisson sampling, and its reverse dominates addition, if `base` is
    symmetric and dominates the mechanism (Zhu, Dong and Wang 2022, theorem 11).
    """

    base: Pair
    rate: float
    symmetric: bool = False

    @property
    def infinite(self) -> tuple[float, float]:
        # An outcome that only Q has keeps the finite loss ln(1 - q).
        return self.rate * self.base.infinite[0], 0.0

    def span(self, tail: float) -> Span:
        # The mixture gives the upper tail both q P and (1-q) Q; the latter is the smaller for positive losses.
        base = self.base.span(tail)
        high = self._sampled(base.high)
        if self.base.infinite[1]:
            return Span(math.log1p(-self.rate), high, low_closed=True, high_closed=base.high_closed)
        return Span(self._sampled(base.low), high, low_closed=base.low_closed, high_closed=base.high_closed)

    def cells(self, edges: Array) -> tuple[Array, Array]:
        with np.errstate(divide="ignore", over="ignore"):
            inner = np.log1p(np.maximum(np.expm1(edges) / self.rate, -1.0))
        # e^l overflows for losses that only tiny noise can reach: ln((e^l - 1 + q)/q) = l - ln q there.
        inner = np.where(edges > 500, edges - math.log(self.rate), inner)
        p, q = self.base.cells(inner)
        # What only Q has: wherever the edges lie, its cell is that of ln(1 - q).
        q[np.searchsorted(edges, math.log1p(-self.rate), side="left")] += self.base.infinite[1]
        return (1 - self.rate) * q + self.rate * p, q

    def _sampled(self, loss: float) -> float:
        return loss + math.log(self.rate) if loss > 500 else math.log1p(self.rate * math.expm1(loss))


@dataclass(frozen=True)
class ReplacedPoissonGaussianPair:
    """(1-q) N(0,1) + q N(mu,1) against (1-q) N(0,1) + q N(-mu,1): a sampled record is replaced by its opposite.

    Formal guarantees: dominates replacing one record for the Poisson-sampled Gaussian (as in dp-accounting).
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
        centre, plus, minus = normal_cells(x), normal_cells(x, self.mu), normal_cells(x, -self.mu)
        return (1 - self.rate) * centre + self.rate * plus, (1 - self.rate) * centre + self.rate * minus


@dataclass(frozen=True)
class ReplacedSamplePair:
    """Replacing one record under sampling without replacement of any mechanism, or under Poisson sampling of a listed one.

    For Poisson sampling the mechanism must be bounded for removing a record too, by no more than for replacing one:
    `accountants._sampling` lists those that are.

    Formal guarantees: for e^epsilon >= 1 the hockey-stick divergence is at most that of ((1-q) Q + q P, Q), where (P, Q)
    dominates the mechanism for replacing one record (Balle, Barthe and Gaboardi 2018, theorems 9 and 10; Zhu, Dong and Wang
    2022, theorem 11); for e^epsilon < 1 by symmetry. This is the pair with exactly that divergence.
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
        # What is left has loss 0, the same mass under both.
        rest = 1.0 - p.sum() - self.infinite[0]
        p[down] += rest
        q[down] += rest
        return p, q


@dataclass(frozen=True)
class OverflowingPair:
    """A pair, and besides it an event of the given probability of which nothing is known (both directions)."""

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
