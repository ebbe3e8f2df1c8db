"""Connecting the dots: a pair's privacy loss on a grid, exact at the grid's points and an upper bound between them.

Doroshenko, Ghazi, Kamath, Kumar and Manurangsi (2022). Each cell's mass m under P is split between its two ends so that the
mass n under Q is kept too: then the hockey-stick divergence is right at every end, and linear in e^epsilon between.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from privet.privacy.pld.pairs import Array, Pair, Span


@dataclass(frozen=True, eq=False)
class Dots:
    """A discretised privacy loss: masses at start, start + step, start + 2 step, ...

    Formal guarantees: composing these (with `infinite`, the mass of infinite loss) bounds the composition of the pairs
    from above, at every epsilon.
    """

    start: float
    step: float
    mass: Array
    infinite: float

    @cached_property
    def losses(self) -> Array:
        return grid(self.start, self.step, len(self.mass))

    @cached_property
    def excess(self) -> float:
        """How far the finite masses are from 1, by truncation."""
        return float(self.mass.sum() - 1.0)

    def log_moment(self, tilt: float) -> float:
        """ln E[e^(tilt L)]: `tilt` times the Renyi divergence of order tilt + 1."""
        return self._moments(tilt)[0]

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """ln E[e^(tilt L)] and its first two derivatives: the mean and the variance of the tilted loss."""
        log_moment, weights = self._moments(tilt)
        mean = float(weights @ self.losses)
        return log_moment, mean, float(weights @ (self.losses - mean) ** 2)

    def tilted(self, tilt: float) -> Array:
        """The masses weighted by e^(tilt L), normalised."""
        return self._moments(tilt)[1]

    def _moments(self, tilt: float) -> tuple[float, Array]:
        exponent = tilt * self.losses
        top = max(exponent[0], exponent[-1])
        if top < 600:
            # ln(1 + E[e^(tilt L) - 1]) keeps the digits of a moment that is barely above 1.
            grown = np.expm1(exponent)
            log_moment = float(np.log1p(self.mass @ grown + self.excess))
            weights = self.mass * (grown + 1.0)
            return log_moment, weights / weights.sum()
        # Masses that a strong tilt needs may be far below the largest: the top is that of the weighted masses.
        with np.errstate(divide="ignore"):
            exponent = exponent + np.log(self.mass)
        top = float(exponent.max())
        weights = np.exp(exponent - top)
        total = float(weights.sum())
        return float(np.log(total) + top), weights / total


@dataclass(frozen=True, eq=False)
class Cells:
    """The masses of a pair on a grid, from which the dots of both directions and of coarser grids follow."""

    start: float
    step: float
    p: Array
    q: Array
    infinite: tuple[float, float]

    @cached_property
    def forward(self) -> Dots:
        return _dots(self.start, self.step, self.p, self.q, self.infinite[0])

    @cached_property
    def reverse(self) -> Dots:
        end = self.start + self.step * (len(self.p) - 2)
        return _dots(-end, self.step, self.q[::-1], self.p[::-1], self.infinite[1])

    @property
    def divisible(self) -> bool:
        """Whether the grid can still be made coarser three times (for a search, and then for an estimate of its error)."""
        return (len(self.p) - 2) % 8 == 0

    @cached_property
    def coarser(self) -> Cells:
        """The same pair with twice the step."""
        return Cells(self.start, 2 * self.step, _pairwise(self.p), _pairwise(self.q), self.infinite)


def grid(start: float, step: float, count: int) -> Array:
    return start + step * np.arange(count, dtype=np.float64)


def _pairwise(mass: Array) -> Array:
    inner = mass[1:-1]
    return np.concatenate((mass[:1], inner[0::2] + inner[1::2], mass[-1:]))


def _dots(start: float, step: float, p: Array, q: Array, infinite: float) -> Dots:
    inside, counterpart = p[1:-1], q[1:-1]
    ends = grid(start, step, len(inside) + 1)[1:]
    with np.errstate(over="ignore", invalid="ignore"):
        lower = (counterpart * np.exp(ends) - inside) / np.expm1(step)
    # Where e^loss overflows the whole mass goes to the upper end, which is the pessimistic one.
    lower = np.clip(np.nan_to_num(lower, nan=0.0, posinf=0.0), 0.0, inside)
    mass = np.zeros(len(inside) + 1)
    mass[:-1] = lower
    mass[1:] += inside - lower
    mass[0] += p[0]
    return Dots(start, step, mass, infinite + float(p[-1]))


@lru_cache(maxsize=512)
def span_of(pair: Pair, tail: float) -> Span:
    return pair.span(tail)


@lru_cache(maxsize=1024)
def cells_of(pair: Pair, step: float, tail: float) -> Cells:
    """The cells of `pair` on a grid of the given step that leaves at most `tail` outside."""
    span = span_of(pair, tail)
    # A multiple of a power of two, so that the grid can be made coarser: always twice, oftener if it is long.
    wanted = (span.high - span.low) / step + 1e-6
    block = 4 if wanted < 2048 else 1024
    count = block * int(np.ceil(wanted / block))
    edges = grid(span.low, step, count + 1)
    p, q = pair.cells(edges)
    p, q = np.maximum(p, 0.0), np.maximum(q, 0.0)
    for mass in (p, q):
        if span.low_closed:
            mass[1] += mass[0]
            mass[0] = 0.0
        if span.high_closed:
            mass[-2] += mass[-1]
            mass[-1] = 0.0
    return Cells(span.low, step, p, q, pair.infinite)
