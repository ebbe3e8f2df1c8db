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
class Tail:
    """The upper tail of a composed loss: at each point, the mass from there on and the delta there, over e^log_scale(loss)."""

    losses: Array
    above: Array
    delta: Array
    log_moment: float
    at: float
    centre: float
    outside: float
    rounding: float

    @property
    def log_scale(self) -> float:
        return self.log_moment - self.at * self.centre

    def epsilon(self, delta: float) -> float:
        """An upper bound of epsilon at `delta`; infinite if it is above the frame, the frame's lowest point if below."""
        rough = self._solve(delta)
        if not math.isfinite(rough):
            return rough
        # What rounding may have taken grows as epsilon falls, so it is taken where a first solution lies, and doubled.
        return replace(self, outside=self.outside + 2 * self.noise(rough))._solve(delta)

    def delta_at(self, epsilon: float) -> float:
        """An upper bound of delta at `epsilon`."""
        j = int(np.searchsorted(self.losses, epsilon, side="left"))
        if j >= len(self.losses):
            return self.outside
        inside = self.above[j] - math.exp(epsilon - self.losses[j]) * (self.above[j] - self.delta[j])
        scaled = math.exp(self.log_scale) * max(float(inside), float(self.delta[j]))
        return scaled + self.outside + self.noise(epsilon)

    def noise(self, epsilon: float) -> float:
        """What rounding may have taken from delta at `epsilon`."""
        return self.rounding * math.exp(min(self.log_moment - self.at * epsilon, 700.0))

    def _solve(self, delta: float) -> float:
        if delta <= self.outside:
            return math.inf
        target = math.exp(min(math.log(delta - self.outside) - self.log_scale, 700.0))
        reached = np.flatnonzero(self.delta <= target)
        if not len(reached):
            return math.inf
        j = int(reached[0])
        here, above = float(self.delta[j]), float(self.above[j])
        if j == 0 or above <= here:
            return float(self.losses[j])
        # Between two points delta is linear in e^epsilon.
        back = math.log1p(max(-1.0 + 1e-16, (here - target) / (above - here)))
        return float(self.losses[j] + min(0.0, max(back, self.losses[j - 1] - self.losses[j])))


def compose(stack: Stack, frame: Frame) -> Tail:
    """The composed loss in `frame`."""
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
    skipped, outside = 0, stack.infinite
    if support > size:
        skipped = min(max(0, round(frame.high / step) - stack.lowest - size + 1), support - size)
    losses = grid(stack.lowest + skipped, step, size)
    if skipped + size < support:
        outside += math.exp(min(0.0, stack.log_moment(frame.order) - frame.order * float(losses[-1])))
    masses = np.roll(np.maximum(circle, 0.0), -(skipped % size)) * (1 + ROUNDING * stack.total)
    centre = float(np.clip(masses @ losses / masses.sum(), losses[0], losses[-1]))
    weights = masses * np.exp(np.clip(at * (centre - losses), -700.0, 700.0))
    above = np.cumsum(weights[::-1])[::-1]
    return Tail(losses, above, _deltas(above, step), moment, at, centre, outside, rounding)


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
