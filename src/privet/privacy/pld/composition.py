"""Composing discretised losses with one FFT for each kind of step, in a frame that `framing` chooses.

With K(t) = sum of ln E[e^(t L)], the FFT composes the tilted masses e^(t L) / E e^(t L): its rounding is then relative to
e^(K(t) - t epsilon), which is near delta, and not to 1. The circle on which an FFT works may be shorter than the support: what
wraps around is non-negative and only raises delta, and what lies above the frame is added by Chernoff's bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft

from privet.privacy.pld.dots import grid
from privet.privacy.pld.pairs import Array
from privet.privacy.pld.stack import Stack, tilted

ComplexArray = npt.NDArray[np.complex128]

ROUNDING = 2.0**-50
"""Relative error allowed for each composed step: four units of the last place, for an FFT and its power."""
_MOST_POINTS = 1 << 22
_ALWAYS_WHOLE = 1 << 14
_MOST_KEPT = 1 << 16


@dataclass(frozen=True)
class Frame:
    """A tilt and the losses between which it is worth composing; `tight` if what wraps around is negligible."""

    at: float
    low: float
    high: float
    tight: bool
    order: float
    """The moment that best bounds what lies above."""


@dataclass(frozen=True)
class Curve:
    """Upper bounds of delta at ascending epsilons, and what made them.

    Formal guarantees: the true delta is convex in e^epsilon, so the chord between two bounds is a bound too. Neither `delta`
    nor `epsilon` ever rises with its argument.
    """

    epsilons: Array
    deltas: Array
    log_moment: float
    at: float
    rounding: float

    def delta(self, epsilons: Array) -> Array:
        """Upper bounds at `epsilons`: 1 below the first point, and the last point's above the last."""
        known, bounds = self.epsilons, self.deltas
        right = np.clip(np.searchsorted(known, epsilons, side="left"), 1, len(known) - 1)
        left = right - 1
        with np.errstate(over="ignore"):
            share = np.expm1(epsilons - known[right]) / np.expm1(known[left] - known[right])
        chord = bounds[right] + np.clip(share, 0.0, 1.0) * (bounds[left] - bounds[right])
        return np.where(epsilons < known[0], 1.0, np.minimum(chord, 1.0))

    def epsilon(self, delta: float) -> float:
        """The least epsilon whose bound is at most `delta`: infinite if it lies above the frame, the first point if below."""
        right = len(self.deltas) - int(np.searchsorted(self.deltas[::-1], delta, side="right"))
        if right == len(self.deltas):
            return math.inf
        if right == 0:
            return float(self.epsilons[0])
        here, there = float(self.deltas[right]), float(self.deltas[right - 1])
        cell = float(self.epsilons[right - 1] - self.epsilons[right])
        back = math.log1p((delta - here) / (there - here) * math.expm1(cell))
        return float(self.epsilons[right]) + max(back, cell)

    def noise(self, epsilon: float) -> float:
        """What is added to delta at `epsilon` for rounding."""
        return self.rounding * math.exp(min(self.log_moment - self.at * epsilon, 700.0))

    def within(self, other: Curve) -> Curve:
        """The better of two bounds at each of this curve's points."""
        better = np.minimum(self.deltas, other.delta(self.epsilons))
        return replace(self, deltas=np.minimum.accumulate(better))


def compose(stack: Stack, frame: Frame) -> Curve:
    """The delta of the composed loss at the points of `frame`."""
    step, at, support = stack.step, frame.at, stack.support
    wanted = math.ceil((frame.high - frame.low) / step) + 2
    # A short support is composed whole: then nothing wraps around.
    size = next_fast_len(support if support <= _ALWAYS_WHOLE else min(support, wanted, _MOST_POINTS), real=True)
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    for dots, count in stack.steps:
        spectrum *= _power(rfft(_wrapped(tilted(dots, at), size)), count)
    circle = irfft(spectrum, size)
    # Masses are not negative: the most negative one shows how much noise the FFT leaves on each point.
    noise = 8 * max(0.0, -float(circle.min()))
    measured = noise * min(size, 1 / max(-math.expm1(-at * step), 1e-300))
    rounding = min(ROUNDING * stack.total, max(measured, 2.0**-53 * math.sqrt(stack.total)))
    moment = stack.log_moment(at)
    skipped, outside = 0, stack.truncated
    if support > size:
        skipped = min(max(0, round(frame.high / step) - stack.lowest - size + 1), support - size)
    losses = grid(stack.lowest + skipped, step, size)
    if skipped + size < support:
        outside += math.exp(min(0.0, stack.log_moment(frame.order) - frame.order * float(losses[-1])))
    masses = np.roll(np.maximum(circle, 0.0), -(skipped % size)) * (1 + ROUNDING * stack.total)
    # Losses far below 0 are never asked for; one point below 0 is kept.
    begin = max(0, int(np.searchsorted(losses, 0.0)) - 1)
    losses, masses = losses[begin:], masses[begin:]
    weight = float(masses.sum())
    centre = float(np.clip(masses @ losses / weight, losses[0], losses[-1])) if weight > 0 else float(losses[-1])
    exponent = at * (centre - losses)
    weights = masses * np.exp(np.clip(exponent, -700.0, 700.0))
    above = np.cumsum(weights[::-1])[::-1]
    # Where the weights are cut off, so far below the frame's middle, nothing is claimed.
    scale = math.exp(moment - at * centre) if moment - at * centre < 700 else math.inf
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.nan_to_num(scale * _deltas(above, step), nan=1.0, posinf=1.0)  # nor where it overflows
    inside = np.where(exponent > 690.0, 1.0, scaled)
    # Rounding moves each mass, and a mass at loss l counts (1 - e^(epsilon - l)) times.
    reach = -np.expm1(losses - losses[-1])
    noise = rounding * np.exp(np.minimum(moment - at * losses, 700.0)) * reach
    return _thinned(Curve(losses, np.minimum.accumulate(inside + outside + noise), moment, at, rounding))


def _thinned(curve: Curve) -> Curve:
    """At most about `_MOST_KEPT` points: chords between fewer points are bounds too."""
    count = len(curve.epsilons)
    if count <= _MOST_KEPT:
        return curve
    kept = np.unique(np.append(np.arange(0, count, -(-count // _MOST_KEPT)), count - 1))
    return replace(curve, epsilons=curve.epsilons[kept], deltas=curve.deltas[kept])


def _deltas(above: Array, step: float) -> Array:
    """delta at each point from the mass from there on: delta[j] = e^-h delta[j+1] + (1 - e^-h) above[j+1].

    Sums of positive terms only, so that nothing cancels; in blocks over which e^-h falls by no more than a float can hold.
    """
    delta = np.zeros_like(above)
    block = max(1, int(500 / step))
    end = len(above) - 1
    while end > 0:
        begin = max(0, end - block)
        fall = np.exp(-step * np.arange(end - begin))
        sums = np.cumsum((fall * above[begin + 1 : end + 1])[::-1])[::-1]
        delta[begin:end] = (-math.expm1(-step) * sums + fall[-1] * math.exp(-step) * delta[end]) / fall
        end = begin
    return delta


def _wrapped(mass: Array, size: int) -> Array:
    if len(mass) <= size:
        return mass if len(mass) == size else np.concatenate((mass, np.zeros(size - len(mass))))
    turns = -(-len(mass) // size)
    padded = np.concatenate((mass, np.zeros(turns * size - len(mass))))
    return np.asarray(padded.reshape(turns, size).sum(0))


def _power(spectrum: ComplexArray, count: int) -> ComplexArray:
    """The spectrum to a whole power by squaring: cheaper than through a logarithm, and zeros stay zeros."""
    result: ComplexArray | None = None
    while True:
        if count & 1:
            result = spectrum.copy() if result is None else np.multiply(result, spectrum, out=result)
        count >>= 1
        if not count:
            assert result is not None
            return result
        spectrum = spectrum * spectrum
