"""Connecting the dots: a pair's privacy loss on a grid, exact at the grid's points and an upper bound between them.

Doroshenko, Ghazi, Kamath, Kumar and Manurangsi (2022). Each cell's mass m under P is split between its two ends so that the
mass n under Q is kept too: then the hockey-stick divergence is right at every end, and linear in e^epsilon between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from privet.privacy.pld.pairs import Array, Pair, Span


@dataclass(frozen=True, eq=False)
class Dots:
    """A discretised privacy loss: masses at first * step, (first + 1) * step, ...

    Formal guarantees: composing these, with the mass `truncated` taken for infinite loss, bounds the composition of the finite
    losses of the pairs from above, at every epsilon. The pairs' own infinite losses are counted by the engine.
    """

    first: int
    step: float
    mass: Array
    truncated: float

    @cached_property
    def excess(self) -> float:
        """How far the finite masses are from 1, by truncation."""
        return float(self.mass.sum() - 1.0)


@dataclass(frozen=True, eq=False)
class Cells:
    """The masses of a pair on a grid, from which the dots of both directions and of coarser grids follow."""

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
        """Whether the grid can still be made coarser three times (for a search, and then for an estimate of its error)."""
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
        # Where e^loss overflows the whole mass goes to the upper end, which is the pessimistic one.
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
    """The cells of `pair` on the multiples of `step`, leaving at most `tail` outside, in whole blocks of that many cells."""
    span = span_of(pair, tail)
    first = block * math.floor(span.low / step / block)
    last = block * max(math.ceil(span.high / step / block), first // block + 1)
    return _cells(pair, step, first, last, span.low_closed, span.high_closed)


@lru_cache(maxsize=1024)
def _cells(pair: Pair, step: float, first: int, last: int, low_closed: bool, high_closed: bool) -> Cells:
    # Found again by its ends, not by the tail: of bounded losses they stay the same as a run goes on.
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
