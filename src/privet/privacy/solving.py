"""Roots that never overshoot: the least or the largest value whose cost is within a limit."""

from __future__ import annotations

import math
from collections.abc import Callable

from privet.errors import InputError

CLOSE = 1e-3
"""How far below the limit the cost of an answer may be, relative to it."""
_LEAST, _MOST = 1e-3, 1e9


def least_within(cost: Callable[[float], float], limit: float, guess: float, what: str) -> float:
    """The least x with cost(x) <= limit, for a cost that falls with x: its cost is within 0.1 % of the limit.

    Secant steps in ln x and ln cost (privacy's cost is nearly a power of the noise), kept inside a bracket.

    Args:
        cost: the cost of x; may be infinite.
        limit: what it may be.
        guess: where to begin.
        what: the name of x, for a message if there is none.
    """
    bad: tuple[float, float] | None = None
    good: tuple[float, float] | None = None
    aim = limit * (1 - CLOSE / 2)
    x = min(max(guess, _LEAST), _MOST)
    for _ in range(100):
        value = cost(x)
        if value <= limit:
            good = (x, value)
            if value >= limit * (1 - CLOSE) or x <= _LEAST:
                return x
        else:
            bad = (x, value)
            if x >= _MOST:
                raise InputError(
                    f"No {what} keeps epsilon within {limit:g}: however large it is, epsilon stays at {value:.3g}. "
                    "Another accountant may state less; otherwise a larger epsilon has to do."
                )
        if bad and good and good[0] / bad[0] < 1 + 1e-12:
            return good[0]
        x = _next(bad, good, aim)
    if good is None:
        raise InputError(f"No {what} was found that keeps epsilon within {limit:g}.")
    return good[0]


def _next(bad: tuple[float, float] | None, good: tuple[float, float] | None, aim: float) -> float:
    if bad is None or good is None:
        x, value = bad or good or (1.0, 1.0)
        if not 0 < value < math.inf:
            return min(_MOST, 4 * x) if bad else max(_LEAST, x / 4)
        # As if the cost were proportional to 1/x, and a little beyond, so as to come out on the other side.
        ratio = min(4.0, max(0.25, value / aim))
        return min(_MOST, max(_LEAST, x * ratio * (1.02 if bad else 1 / 1.02)))
    low, high = math.log(bad[0]), math.log(good[0])
    if not (0 < bad[1] < math.inf and good[1] > 0):
        return math.exp((low + high) / 2)
    slope = (math.log(good[1]) - math.log(bad[1])) / (high - low)
    step = (math.log(aim) - math.log(bad[1])) / slope if slope < 0 else (high - low) / 2
    margin = 0.02 * (high - low)
    return math.exp(min(max(low + step, low + margin), high - margin))


def largest_within(cost: Callable[[int], float], limit: float, guess: float, most: int) -> int:
    """The largest whole n <= most with cost(n) <= limit, for a cost that grows with n; 0 if there is none."""
    if cost(1) > limit:
        return 0
    low, high = 1, most + 1
    n = min(max(2, int(guess)), most)
    value_low = cost(1)
    while high - low > 1:
        n = min(max(n, low + 1), high - 1)
        value = cost(n)
        if value <= limit:
            low, value_low = n, value
        else:
            high = n
        # Once the root is bracketed from both sides, bisect in ln n; before that, follow epsilon ~ sqrt(n).
        if high > most and low == n:
            ratio = limit / value_low if value_low > 0 else 4.0
            n = int(low * min(16.0, max(1.05, ratio**1.6)))
        elif high - low < 16:
            n = (low + high) // 2
        else:
            ratio = limit / value_low if value_low > 0 else 4.0
            aimed = int(low * min(4.0, ratio**1.5))
            n = aimed + 1 if low < aimed + 1 < high and value == value_low else math.isqrt(low * high)
    return low
