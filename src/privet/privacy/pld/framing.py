"""Where to look: the moment that proves the least epsilon, a guess of epsilon, and the frame in which an FFT resolves it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.optimize import minimize_scalar
from scipy.special import erfcx

from privet.privacy.pld.composition import ROUNDING, Frame
from privet.privacy.pld.stack import Stack, Tilt

_NOISE = 3e-4
"""The share of delta that rounding may be given in exchange for a gentler tilt."""
_FACTORS = (0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.15, 1.4, 2.0, 3.0)
_NEGLIGIBLE = 12.0
"""What wraps around or lies above the frame is at most e^-12 of delta."""


def renyi_epsilon(log_moment: float, at: float, log_delta: float) -> float:
    """The epsilon that a single moment proves (Canonne, Kamath and Steinke 2020, proposition 12)."""
    order = at + 1
    return (log_moment - log_delta - math.log(order)) / at + math.log(at / order)


def best_moment(stack: Stack, log_delta: float, near: float = 0.0) -> tuple[float, float]:
    """The tilt whose moment proves the least epsilon, and that epsilon; `near` is a tilt that is known to be close."""
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
    """ln delta at epsilon = the tilted mean, as if the tilted loss were normal with its deviation d.

    That is K - t epsilon + ln E[e^(-t d z) (1 - e^(-d z))+] for a standard normal z.
    """
    near = erfcx(tilt.at * tilt.deviation / math.sqrt(2)) - erfcx((tilt.at + 1) * tilt.deviation / math.sqrt(2))
    return tilt.log_moment - tilt.at * tilt.mean + math.log(max(near / 2, 1e-300))


def saddlepoint(stack: Stack, log_delta: float, at: float) -> Tilt:
    """The tilt whose mean is, nearly, the epsilon at delta: a guess, by bisection around `at`."""
    low, high = math.log(at) - 4, min(math.log(at) + 2, math.log(50 / stack.step))
    for _ in range(9):
        middle = (low + high) / 2
        above = saddlepoint_log_delta(stack.tilt(math.exp(middle))) > log_delta
        low, high = (middle, high) if above else (low, middle)
    return stack.tilt(math.exp((low + high) / 2))


def tilt_towards(stack: Stack, loss: float) -> Tilt:
    """The tilt whose mean is `loss`, by bisection; at least a tiny one."""
    low, high = -12.0, math.log(50 / stack.step)
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if stack.tilt(math.exp(middle)).mean < loss else (low, middle)
    return stack.tilt(math.exp(high))


@dataclass(frozen=True)
class Target:
    """The part of a curve that a frame is to resolve: from delta e^log_top at epsilon `low` to e^log_bottom at `high`."""

    low: float
    high: float
    log_top: float
    log_bottom: float


def frame_for(stack: Stack, target: Target, at: float) -> Frame:
    """The shortest of a few frames in which the FFT resolves `target`; `at` is the tilt that suits its lower end.

    A strong tilt of a heavy tail is wide; a gentle one costs digits and needs the bulk of the losses inside.
    """
    gentle = _gentlest(stack, target, at)
    proofs = [(order, stack.log_moment(order)) for order in (factor * at for factor in _FACTORS)]
    candidates = {gentle, math.sqrt(gentle * at), at}
    frames = [_frame(stack, target, tilt, proofs) for tilt in sorted(candidates)]
    return min(frames, key=lambda frame: (not frame.tight, frame.high - frame.low))


def _resolved(stack: Stack, log_delta: float) -> float:
    """The most that K(t) - t epsilon may be for the FFT's rounding to be a small share of delta."""
    return log_delta + math.log(_NOISE / (ROUNDING * stack.total))


def _gentlest(stack: Stack, target: Target, at: float) -> float:
    """The least tilt at which rounding, relative to e^(K(t) - t epsilon), is a small share of the lowest delta.

    The exponent is convex in t, so below its least point it only grows as t falls.
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


def _frame(stack: Stack, target: Target, at: float, proofs: list[tuple[float, float]]) -> Frame:
    """The frame for one tilt: so high that little lies above, so wide that little wraps around.

    Mass at loss l that wraps by the width w has weight e^(-t w) from below and e^(t w) from above. `proofs` are moments, for
    Chernoff's bounds.
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
    # No width is enough at this tilt (a wrong guess of epsilon): take the bulk, for a better guess.
    return Frame(at, min(target.low, tilt.mean) - 8 * spread, high, False, order)
