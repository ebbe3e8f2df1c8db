"""Connecting the dots: privacy losses on a grid, exact at the grid's points and an upper bound between them.

Doroshenko, Ghazi, Kamath, Kumar and Manurangsi (2022). The mass of each cell under P is split between its two ends so that
its mass under Q is preserved too. Then the hockey-stick divergence is exact at every end, and linear in e^epsilon between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from privet.privacy.pld.pairs import Array, Pair, Span


@dataclass(frozen=True, eq=False)
class Dots:
    """A discretized privacy loss: masses at first * step, (first + 1) * step, ...

    Formal guarantees: composing these, with the mass `truncated` counted as infinite loss, gives an upper bound for the
    composition of the finite losses of the pairs, at every epsilon. The engine counts the infinite losses of the pairs.
    """

    first: int
    step: float
    mass: Array
    truncated: float

    @cached_property
    def excess(self) -> float:
        """The sum of the finite masses minus 1, which is not 0 because of truncation."""
        return float(self.mass.sum() - 1.0)


@dataclass(frozen=True, eq=False)
class Cells:
    """The masses of a pair on a grid; the dots of both directions and of coarser grids follow from them."""

    first: int
    step: float
    p: Array
    q: Array

    @cached_property
    def forward(self) -> Dots:
        return _dots(self.first, self.step, self.p, self.q)

    @cached_property
    def reverse(self) -> Dots:
        last = self.first + len(self.p) - 2
        return _dots(-last, self.step, self.q[::-1], self.p[::-1])

    @property
    def divisible(self) -> bool:
        """Whether the grid can be made coarser three times, for a search and an estimate of its error."""
        return (len(self.p) - 2) % 8 == 0 and self.first % 8 == 0

    @cached_property
    def coarser(self) -> Cells:
        """The same pair with twice the step."""
        return Cells(self.first // 2, 2 * self.step, _pairwise(self.p), _pairwise(self.q))


def grid(first: int, step: float, count: int) -> Array:
    return step * np.arange(first, first + count, dtype=np.float64)


def _pairwise(mass: Array) -> Array:
    inner = mass[1:-1]
    return np.concatenate((mass[:1], inner[0::2] + inner[1::2], mass[-1:]))


def _dots(first: int, step: float, p: Array, q: Array) -> Dots:
    inside, counterpart = p[1:-1], q[1:-1]
    ends = grid(first + 1, step, len(inside))
    with np.errstate(over="ignore", invalid="ignore"):
        lower = (counterpart * np.exp(ends) - inside) / np.expm1(step)
    if ends[-1] > 700:
        # Where e^loss overflows, the whole mass goes to the upper end, which is pessimistic.
        lower[~np.isfinite(lower)] = 0.0
    lower = np.minimum(np.maximum(lower, 0.0), inside)
    mass = np.zeros(len(inside) + 1)
    mass[:-1] = lower
    mass[1:] += inside - lower
    mass[0] += p[0]
    return Dots(first, step, mass, float(p[-1]))


@lru_cache(maxsize=1024)
def span_of(pair: Pair, tail: float) -> Span:
    return pair.span(tail)


def cells_of(pair: Pair, step: float, tail: float, block: int) -> Cells:
    """The cells of `pair` on the multiples of `step`, in whole blocks of `block` cells, with at most `tail` outside."""
    span = span_of(pair, tail)
    first = block * math.floor(span.low / step / block)
    last = block * max(math.ceil(span.high / step / block), first // block + 1)
    return _cells(pair, step, first, last, span.low_closed, span.high_closed)


@lru_cache(maxsize=1024)
def _cells(pair: Pair, step: float, first: int, last: int, low_closed: bool, high_closed: bool) -> Cells:
    # Cached by the ends and not by the tail: for bounded losses the ends stay the same as a run goes on.
    p, q = pair.cells(grid(first, step, last - first + 1))
    p, q = np.maximum(p, 0.0), np.maximum(q, 0.0)
    for mass in (p, q):
        if low_closed:
            mass[1] += mass[0]
            mass[0] = 0.0
        if high_closed:
            mass[-2] += mass[-1]
            mass[-1] = 0.0
    return Cells(first, step, p, q)


_LARGEST_MATRIX = 1 << 22


@dataclass(frozen=True)
class Tilt:
    """A tilt of the composed loss: ln of its moment, and the mean and deviation of the tilted loss."""

    at: float
    log_moment: float
    mean: float
    deviation: float


class Stack:
    """Steps to compose: dots on one grid, each with its count; their moments are one matrix product if that fits."""

    def __init__(self, steps: Sequence[tuple[Dots, int]]) -> None:
        self.steps = tuple(steps)
        self.step = steps[0][0].step
        self.counts = np.array([count for _, count in steps], dtype=np.float64)
        self.total = sum(count for _, count in steps)
        self.truncated = math.fsum(count * dots.truncated for dots, count in steps)
        self.lowest = sum(count * dots.first for dots, count in steps)
        self.support = sum(count * (len(dots.mass) - 1) for dots, count in steps) + 1
        first = min(dots.first for dots, _ in steps)
        last = max(dots.first + len(dots.mass) for dots, _ in steps)
        self._blocks: list[tuple[Array, Array, Array, Array]] = []
        if len(steps) * (last - first) <= _LARGEST_MATRIX:
            matrix = np.zeros((len(steps), last - first))
            for row, (dots, _) in zip(matrix, steps, strict=True):
                row[dots.first - first : dots.first - first + len(dots.mass)] = dots.mass
            excess = np.array([dots.excess for dots, _ in steps])
            self._blocks.append((grid(first, self.step, last - first), matrix, excess, self.counts))
        else:
            for i, (dots, _) in enumerate(steps):
                losses = grid(dots.first, self.step, len(dots.mass))
                self._blocks.append((losses, dots.mass[None, :], np.array([dots.excess]), self.counts[i : i + 1]))

    def log_moment(self, at: float) -> float:
        """K(at) = sum of ln E[e^(at L)]: `at` times the Renyi divergence of order at + 1."""
        total = 0.0
        for losses, matrix, excess, counts in self._blocks:
            grown = _grown(at, losses)
            moments = _log_moments_slowly(at, losses, matrix) if grown is None else np.log1p(matrix @ grown + excess)
            total += float(counts @ moments)
        return total

    def tilt(self, at: float) -> Tilt:
        moment = mean = variance = 0.0
        for losses, matrix, excess, counts in self._blocks:
            grown = _grown(at, losses)
            if grown is None:
                moments = _log_moments_slowly(at, losses, matrix)
                with np.errstate(divide="ignore"):
                    weights = np.exp(np.log(matrix) + at * losses - moments[:, None])
                means, squares = weights @ losses, weights @ losses**2
            else:
                weights = grown + 1.0
                columns = np.stack((grown, weights * losses, weights * losses**2), axis=1)
                ones, means, squares = (matrix @ columns).T
                moments = np.log1p(ones + excess)
                scale = np.exp(-moments)
                means, squares = means * scale, squares * scale
            moment += float(counts @ moments)
            mean += float(counts @ means)
            variance += float(counts @ np.maximum(squares - means**2, 0.0))
        return Tilt(at, moment, mean, math.sqrt(variance))


def tilted(dots: Dots, at: float) -> Array:
    """The masses weighted by e^(at L), normalized."""
    exponent = at * grid(dots.first, dots.step, len(dots.mass))
    if max(exponent[0], exponent[-1]) < 600:
        weights = dots.mass * np.exp(exponent)
    else:
        with np.errstate(divide="ignore"):
            exponent = exponent + np.log(dots.mass)
        weights = np.exp(exponent - exponent.max())
    return np.asarray(weights / weights.sum())


def _grown(at: float, losses: Array) -> Array | None:
    """e^(at l) - 1, which keeps the digits of a moment that is barely above 1; None if it overflows."""
    if max(at * losses[0], at * losses[-1]) >= 600:
        return None
    return np.asarray(np.expm1(at * losses))


def _log_moments_slowly(at: float, losses: Array, matrix: Array) -> Array:
    with np.errstate(divide="ignore"):
        exponents = np.log(matrix) + at * losses
    top = exponents.max(axis=1)
    return np.asarray(top + np.log(np.exp(exponents - top[:, None]).sum(axis=1)))
