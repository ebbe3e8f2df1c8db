"""Privacy losses on a grid, and their composition with one FFT for each kind of step.

Connecting the dots (Doroshenko, Ghazi, Kamath, Kumar and Manurangsi 2022): the mass of each cell under P is split between its
two ends so that its mass under Q is preserved too. Then the hockey-stick divergence is exact at every end, and linear in
e^epsilon between.

With K(t) = sum of ln E[e^(t L)], the FFT composes the tilted masses e^(t L) / E e^(t L). Its rounding error is then relative
to e^(K(t) - t epsilon), which is near delta, and not to 1. The FFT's circle may be shorter than the support: mass that wraps
around is non-negative and only raises delta, and mass above the frame is added by Chernoff's bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
from scipy.fft import irfft, next_fast_len, rfft
from scipy.optimize import minimize_scalar
from scipy.special import erfcx

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


ComplexArray = npt.NDArray[np.complex128]

ROUNDING = 2.0**-50
"""The relative error allowed for each composed step: four units of the last place, for an FFT and its power."""
_MOST_POINTS = 1 << 22
_ALWAYS_WHOLE = 1 << 14
_MOST_KEPT = 1 << 16


@dataclass(frozen=True)
class Frame:
    """A tilt and the range of losses to compose; `tight` if the mass that wraps around is negligible."""

    at: float
    low: float
    high: float
    tight: bool
    order: float
    """The order of the moment that best bounds the mass above."""


@dataclass(frozen=True)
class Curve:
    """Upper bounds of delta at ascending epsilons, and the tilt with which they were computed.

    Formal guarantees: the true delta is convex in e^epsilon, so the chord between two bounds is also a bound. Neither
    `delta` nor `epsilon` ever rises with its argument.
    """

    epsilons: Array
    deltas: Array
    log_moment: float
    at: float
    rounding: float

    def delta(self, epsilons: Array) -> Array:
        """Upper bounds at `epsilons`: 1 below the first point, and the last bound above the last point."""
        known, bounds = self.epsilons, self.deltas
        right = np.clip(np.searchsorted(known, epsilons, side="left"), 1, len(known) - 1)
        left = right - 1
        with np.errstate(over="ignore"):
            share = np.expm1(epsilons - known[right]) / np.expm1(known[left] - known[right])
        chord = bounds[right] + np.clip(share, 0.0, 1.0) * (bounds[left] - bounds[right])
        return np.where(epsilons < known[0], 1.0, np.minimum(chord, 1.0))

    def epsilon(self, delta: float) -> float:
        """The least epsilon whose bound is at most `delta`: infinite if it is above the frame, the first point if below."""
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
        """The allowance for rounding that is added to delta at `epsilon`."""
        return self.rounding * math.exp(min(self.log_moment - self.at * epsilon, 700.0))

    def within(self, other: Curve) -> Curve:
        """The better of two bounds at each of this curve's points."""
        better = np.minimum(self.deltas, other.delta(self.epsilons))
        return replace(self, deltas=np.minimum.accumulate(better))


def compose(stack: Stack, frame: Frame) -> Curve:
    """The delta of the composed loss at the points of `frame`."""
    step, at, support = stack.step, frame.at, stack.support
    wanted = math.ceil((frame.high - frame.low) / step) + 2
    # A short support is composed as a whole, so that nothing wraps around.
    size = next_fast_len(support if support <= _ALWAYS_WHOLE else min(support, wanted, _MOST_POINTS), real=True)
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    for dots, count in stack.steps:
        spectrum *= _power(rfft(_wrapped(tilted(dots, at), size)), count)
    circle = irfft(spectrum, size)
    # True masses are not negative, so the most negative one shows the noise that the FFT leaves on each point.
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
    # Losses far below 0 are not needed; one point below 0 is kept.
    begin = max(0, int(np.searchsorted(losses, 0.0)) - 1)
    losses, masses = losses[begin:], masses[begin:]
    weight = float(masses.sum())
    center = float(np.clip(masses @ losses / weight, losses[0], losses[-1])) if weight > 0 else float(losses[-1])
    exponent = at * (center - losses)
    weights = masses * np.exp(np.clip(exponent, -700.0, 700.0))
    above = np.cumsum(weights[::-1])[::-1]
    # Far below the middle of the frame, where the weights are cut off, the bound is 1.
    scale = math.exp(moment - at * center) if moment - at * center < 700 else math.inf
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.nan_to_num(scale * _deltas(above, step), nan=1.0, posinf=1.0)  # also 1 where it overflows
    inside = np.where(exponent > 690.0, 1.0, scaled)
    # Rounding moves each mass, and a mass at loss l counts with the factor 1 - e^(epsilon - l).
    reach = -np.expm1(losses - losses[-1])
    noise = rounding * np.exp(np.minimum(moment - at * losses, 700.0)) * reach
    return _thinned(Curve(losses, np.minimum.accumulate(inside + outside + noise), moment, at, rounding))


def _thinned(curve: Curve) -> Curve:
    """Keep at most about `_MOST_KEPT` points; chords between fewer points are also bounds."""
    count = len(curve.epsilons)
    if count <= _MOST_KEPT:
        return curve
    kept = np.unique(np.append(np.arange(0, count, -(-count // _MOST_KEPT)), count - 1))
    return replace(curve, epsilons=curve.epsilons[kept], deltas=curve.deltas[kept])


_COARSE = 20.0
"""From this step on, neighboring points of the grid do not see each other. Without it, a hopeless run took minutes."""


def _deltas(above: Array, step: float) -> Array:
    """delta at each point from the mass from there on: delta[j] = e^-h delta[j+1] + (1 - e^-h) above[j+1].

    These are sums of positive terms, so nothing cancels. They are computed in blocks so that e^-h does not underflow.
    """
    delta = np.zeros_like(above)
    if step > _COARSE:
        # e^-h is nothing: delta[j] is at most above[j+1], and no less by more than the share e^-h.
        delta[:-1] = above[1:]
        return delta
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
    """Raise the spectrum to an integer power by squaring: faster than by logarithms, and zeros stay zeros."""
    result: ComplexArray | None = None
    while True:
        if count & 1:
            result = spectrum.copy() if result is None else np.multiply(result, spectrum, out=result)
        count >>= 1
        if not count:
            assert result is not None
            return result
        spectrum = spectrum * spectrum


_NOISE = 3e-4
"""The share of delta that rounding may take in exchange for a smaller tilt."""
_FACTORS = (0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.15, 1.4, 2.0, 3.0)
_NEGLIGIBLE = 12.0
"""The mass that wraps around or is above the frame is at most e^-12 of delta."""


def renyi_epsilon(log_moment: float, at: float, log_delta: float) -> float:
    """The epsilon that a single moment proves (Canonne, Kamath and Steinke 2020, proposition 12)."""
    order = at + 1
    return (log_moment - log_delta - math.log(order)) / at + math.log(at / order)


def best_moment(stack: Stack, log_delta: float, near: float = 0.0) -> tuple[float, float]:
    """The tilt whose moment proves the least epsilon, and that epsilon; `near` is a tilt known to be close."""
    top = math.log(50 / stack.step)
    if not near:
        middle = math.log(math.sqrt(1 - 2 * log_delta) / max(stack.tilt(0.0).deviation, 1e-300))
        low, high = middle - 7, middle + 5
    else:
        low, high = math.log(near) - 1, math.log(near) + 1
    low, high = min(low, top - 1), min(high, top)

    def proved(log_at: float) -> float:
        at = math.exp(log_at)
        value = renyi_epsilon(stack.log_moment(at), at, log_delta)
        return value if math.isfinite(value) else 1e300

    found = minimize_scalar(proved, bounds=(low, high), method="bounded", options={"xatol": 0.05, "maxiter": 30})
    return math.exp(found.x), float(found.fun)


def saddlepoint_log_delta(tilt: Tilt) -> float:
    """An estimate of ln delta at epsilon = the tilted mean, as if the tilted loss were normal with its deviation d.

    It is K - t epsilon + ln E[e^(-t d z) (1 - e^(-d z))+] for a standard normal z.
    """
    near = erfcx(tilt.at * tilt.deviation / math.sqrt(2)) - erfcx((tilt.at + 1) * tilt.deviation / math.sqrt(2))
    return tilt.log_moment - tilt.at * tilt.mean + math.log(max(near / 2, 1e-300))


def saddlepoint(stack: Stack, log_delta: float, at: float) -> Tilt:
    """A guess of the tilt whose mean is the epsilon at delta, by bisection around `at`."""
    low, high = math.log(at) - 4, min(math.log(at) + 2, math.log(50 / stack.step))
    for _ in range(9):
        middle = (low + high) / 2
        above = saddlepoint_log_delta(stack.tilt(math.exp(middle))) > log_delta
        low, high = (middle, high) if above else (low, middle)
    return stack.tilt(math.exp((low + high) / 2))


def tilt_towards(stack: Stack, loss: float) -> Tilt:
    """The tilt whose mean is `loss`, by bisection; it is never 0."""
    low, high = -12.0, math.log(50 / stack.step)
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if stack.tilt(math.exp(middle)).mean < loss else (low, middle)
    return stack.tilt(math.exp(high))


@dataclass(frozen=True)
class CurvePart:
    """The part of a curve that a frame must resolve: from delta e^log_top at epsilon `low` to e^log_bottom at `high`."""

    low: float
    high: float
    log_top: float
    log_bottom: float


def frame_for(stack: Stack, target: CurvePart, at: float) -> Frame:
    """The shortest of a few frames in which the FFT resolves `target`; `at` is the tilt that suits its lower end.

    A large tilt of a heavy tail needs a wide frame. A small tilt costs digits and needs most of the losses in the frame.
    """
    gentle = _gentlest(stack, target, at)
    proofs = [(order, stack.log_moment(order)) for order in (factor * at for factor in _FACTORS)]
    candidates = {gentle, math.sqrt(gentle * at), at}
    frames = [_frame(stack, target, tilt, proofs) for tilt in sorted(candidates)]
    return min(frames, key=lambda frame: (not frame.tight, frame.high - frame.low))


def _resolved(stack: Stack, log_delta: float) -> float:
    """The largest K(t) - t epsilon for which the FFT's rounding is a small share of delta."""
    return log_delta + math.log(_NOISE / (ROUNDING * stack.total))


def _gentlest(stack: Stack, target: CurvePart, at: float) -> float:
    """The least tilt at which rounding, relative to e^(K(t) - t epsilon), is a small share of the lowest delta.

    The exponent is convex in t, so below its minimum it only grows as t falls.
    """
    allowed = _resolved(stack, target.log_bottom)

    def exponent(log_at: float) -> float:
        return stack.log_moment(math.exp(log_at)) - math.exp(log_at) * target.high

    high = math.log(at)
    if exponent(high) > allowed:
        found = minimize_scalar(exponent, bounds=(high - 3, high + 1), method="bounded", options={"xatol": 0.1})
        return math.exp(found.x)
    low = high - 6
    for _ in range(5):
        middle = (low + high) / 2
        low, high = (low, middle) if exponent(middle) <= allowed else (middle, high)
    return math.exp(high)


def _frame(stack: Stack, target: CurvePart, at: float, proofs: list[tuple[float, float]]) -> Frame:
    """The frame for one tilt, high enough that little mass is above it, and wide enough that little wraps around.

    Mass that wraps by the width w has weight e^(-t w) from below and e^(t w) from above. `proofs` are moments for Chernoff's
    bounds.
    """
    tilt = stack.tilt(at)
    limit = target.log_bottom - _NEGLIGIBLE
    high, order = min(((moment - limit) / order, order) for order, moment in proofs)
    spread = max(tilt.deviation, stack.step)
    high = max(high, target.high + min(2 / at, 2 * spread), target.high + stack.step)
    lower = [(other, stack.log_moment(other)) for other in (0.0, -1 / spread, -3 / spread, -6 / spread)]
    width = high - min(target.low, tilt.mean) + spread
    fits = tilt.log_moment - at * target.low <= _resolved(stack, target.log_top)
    for _ in range(30):
        low = high - width
        below = min(moment - other * low for other, moment in lower) - at * width
        above = min(moment - other * (target.low + width) for other, moment in proofs) + at * width
        if max(below, above) < limit:
            return Frame(at, low, high, fits, order)
        width *= 1.15
    # No width is enough at this tilt, so the guess of epsilon was wrong: compose the bulk for a better guess.
    return Frame(at, min(target.low, tilt.mean) - 8 * spread, high, False, order)
