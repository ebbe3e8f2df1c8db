"""Several kinds of steps on one grid: their moments together, in one matrix product where that fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privet.privacy.pld.dots import Dots, grid
from privet.privacy.pld.pairs import Array

_LARGEST_MATRIX = 1 << 22


@dataclass(frozen=True)
class Tilt:
    """A tilt with what it says of the composed loss: ln of its moment, and the mean and deviation under the tilted masses."""

    at: float
    log_moment: float
    mean: float
    deviation: float


class Stack:
    """Steps that are composed: dots on the same grid, each with how often it happens."""

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
    """The masses weighted by e^(at L), normalised."""
    exponent = at * grid(dots.first, dots.step, len(dots.mass))
    if max(exponent[0], exponent[-1]) < 600:
        weights = dots.mass * np.exp(exponent)
    else:
        with np.errstate(divide="ignore"):
            exponent = exponent + np.log(dots.mass)
        weights = np.exp(exponent - exponent.max())
    return np.asarray(weights / weights.sum())


def _grown(at: float, losses: Array) -> Array | None:
    """e^(at l) - 1: the digits of a moment that is barely above 1 are in it. None where it overflows."""
    if max(at * losses[0], at * losses[-1]) >= 600:
        return None
    return np.asarray(np.expm1(at * losses))


def _log_moments_slowly(at: float, losses: Array, matrix: Array) -> Array:
    with np.errstate(divide="ignore"):
        exponents = np.log(matrix) + at * losses
    top = exponents.max(axis=1)
    return np.asarray(top + np.log(np.exp(exponents - top[:, None]).sum(axis=1)))
