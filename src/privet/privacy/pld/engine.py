"""Epsilon and delta of composed pairs: choose the grid by its error, compose both directions, take the worse one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from privet.privacy.pld.composition import (
    Cells,
    Curve,
    CurvePart,
    Stack,
    Tilt,
    best_moment,
    cells_of,
    compose,
    frame_for,
    renyi_epsilon,
    saddlepoint,
    saddlepoint_log_delta,
    span_of,
    tilt_towards,
)
from privet.privacy.pld.pairs import Array, Pair

Pairs = Sequence[tuple[Pair, int]]
Grids = list[tuple[Cells, int]]

TOLERANCE = 1e-4
"""The target for the discretization error, relative to epsilon; the error always raises epsilon."""
_DELTA_TOLERANCE = 3e-4
"""The same for delta, relative to delta."""
_MOST_CELLS = 1 << 20
_FIRST_CELLS = 512
_FEWEST_CELLS = 32
_MOST_COMPOSED = 1 << 21
_FIRST_POINTS = 1 << 17
_THIN_CELLS = 2048
_TRUNCATED = 1e-4
"""The share of delta for truncated tails."""

_BOTTOMS = tuple(
    -exponent * math.log(10) for exponent in (2.5, 5.5, 8.5, 11.5, 14.5, 20, 30, 45, 70, 100, 150, 220, 305)
)
"""ln delta at the lower ends of the bands. All deltas of a band are read from one curve, which keeps them in order."""
_NEAR = 2e-3
"""Within this distance of the end of a band, relative to epsilon or delta, the neighboring band is used too."""
_NEAR_ZERO = 0.02
"""An epsilon below this share of that at the lower end of the band belongs to a delta near delta(0)."""


def epsilon_of(pairs: Pairs, delta: float, tolerance: float = TOLERANCE) -> float:
    """The least epsilon of the composed pairs at `delta`, rounded up by about the share `tolerance`.

    Formal guarantees: an upper bound for every grid: connecting the dots is pessimistic, tails count as infinite loss,
    wrapped mass only adds, and rounding errors are added. A wrong estimate of the error costs tightness, never privacy.
    """
    pairs = tuple(pairs)
    if not pairs or delta >= 1:
        return 0.0
    if any(delta < _infinite(pairs, side) for side in _sides(pairs)):
        return math.inf
    ceiling = _ceiling(pairs)
    worst = 0.0
    if _is_single(pairs):
        return min(ceiling, max(_single_epsilon(pairs[0][0], delta, side) for side in _sides(pairs)))
    for side in _sides(pairs):
        if _added_up(pairs, side) <= delta:
            continue
        left = delta - _infinite(pairs, side)
        if left == 0:
            return ceiling
        band = _band(math.log(left))
        if side and (
            _moment_epsilon(pairs, side, left) <= worst
            # A grid four times as coarse already shows that the other direction is the worse one.
            or _curve(pairs, side, band, 16 * tolerance, False).epsilon(left) <= worst
        ):
            continue
        curve = _curve(pairs, side, band, tolerance, False)
        found = curve.epsilon(left)
        if band + 1 < len(_BOTTOMS) and found > (1 - _NEAR) * curve.epsilon(math.exp(_BOTTOMS[band])):
            # Near the end of the band: never more than the next band gives for its larger deltas.
            found = min(found, _curve(pairs, side, band + 1, tolerance, False).epsilon(math.exp(_BOTTOMS[band])))
        if 0 < found <= _NEAR_ZERO * curve.epsilon(math.exp(_BOTTOMS[band])):
            # Near delta(0) the curve that is sharp in delta decides; from delta(0) on, epsilon is 0.
            found = min(found, _curve(pairs, side, band, TOLERANCE, True).epsilon(left))
            found = 0.0 if _one_side(pairs, np.zeros(1), side, np.zeros(1))[0] <= left else found
        worst = max(worst, found)
    return max(0.0, min(worst, ceiling))


def deltas_of(pairs: Pairs, epsilons: Array, *, larger: bool = False) -> tuple[Array, Array]:
    """Upper bounds of delta at ascending epsilons, in either direction, rounded up by about the share 3e-4.

    The second direction is not resolved below 1e-15; with `larger`, if only the larger of the two matters, not below the
    first one.
    """
    pairs = tuple(pairs)
    if not pairs:
        return np.zeros_like(epsilons), np.zeros_like(epsilons)
    inside = epsilons < _ceiling(pairs)
    found: list[Array] = []
    for side in _sides(pairs):
        infinite = _infinite(pairs, side)
        enough = np.zeros(len(epsilons))
        if found:
            enough = found[0] - infinite if larger else np.full(len(epsilons), 1e-15)
        # The probability of an infinite loss is added, so far smaller deltas need not be resolved.
        enough = np.maximum(enough, 1e-4 * infinite)
        bounds = np.full(len(epsilons), infinite)
        if _is_single(pairs):
            bounds[inside] += _single_deltas(pairs[0][0], epsilons[inside], side)
        else:
            bounds[inside] += _one_side(pairs, epsilons[inside], side, enough[inside])
            bounds = np.minimum(bounds, _added_up(pairs, side))
        found.append(bounds)
    return found[0], found[-1]


def _added_up(pairs: Pairs, side: int) -> float:
    """The sum of the total variations of all steps, which bounds delta(0) even if the losses are too small for a grid."""
    zero = np.zeros(1)
    return math.fsum(
        count * (pair.infinite[side] + float(_single_deltas(pair, zero, side)[0])) for pair, count in pairs
    )


def _is_single(pairs: Pairs) -> bool:
    return len(pairs) == 1 and pairs[0][1] == 1


def _single_deltas(pair: Pair, epsilons: Array, side: int) -> Array:
    """The deltas of one use of one pair at ascending epsilons, without a grid: P[L > epsilon] - e^epsilon Q[L > epsilon].

    Infinite losses are not included. A few units of the last place of the probability are added for rounding.
    """
    if not len(epsilons):
        return np.zeros(0)
    edges, places = np.unique(epsilons, return_inverse=True)
    if side == 0:
        p, q = pair.cells(edges)
        above, counterpart = (np.cumsum(mass[:0:-1])[::-1] for mass in (p, q))
    else:
        p, q = pair.cells(-edges[::-1])
        above, counterpart = (np.cumsum(mass[:-1])[::-1] for mass in (q, p))
    with np.errstate(over="ignore", invalid="ignore"):
        lost = np.exp(edges) * counterpart
    lost[~np.isfinite(lost)] = 0.0
    return np.asarray(np.clip(above - lost + 2.0**-52 * (8 + math.sqrt(len(edges))) * above, 0.0, above)[places])


def _single_epsilon(pair: Pair, delta: float, side: int) -> float:
    """An upper bound of the epsilon of one use of one pair at `delta`, by bisection."""
    left = delta - pair.infinite[side]
    if left <= 0:
        return math.inf

    def fits(epsilon: float) -> bool:
        return bool(_single_deltas(pair, np.array([epsilon]), side)[0] <= left)

    if fits(0.0):
        return 0.0
    span = pair.span(max(1e-300, left / 2))
    low, high = 0.0, max(span.high if side == 0 else -span.low, 1e-300)
    while not fits(high):
        if high > 1e300:
            return math.inf
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _one_side(pairs: Pairs, epsilons: Array, side: int, enough: Array) -> Array:
    """The deltas of one direction, from the curve of each band that contains one of them or is close to one.

    A bound that is at most `enough` is not improved.
    """
    if not len(epsilons):
        return np.zeros(0)
    bounds = np.ones(len(epsilons))
    asked: set[int] = set()
    shallowest = _band(_log(float(enough[0])))
    needed = {min(shallowest, _guessed_band(pairs, float(epsilons[0]), side))}
    while needed:
        band = min(needed)
        asked.add(band)
        bounds = np.minimum(bounds, _curve(pairs, side, band, TOLERANCE, True).delta(epsilons))
        logs = np.log(np.maximum(bounds[bounds > enough], 1e-320))
        needed = {_band(float(log)) for shift in (-_NEAR, _NEAR) for log in np.unique(logs + shift)} - asked
    return bounds


def _log(delta: float) -> float:
    return math.log(max(delta, 1e-320))


def _moment_epsilon(pairs: Pairs, side: int, delta: float) -> float:
    """The epsilon that a moment proves on the first grid: fast, and often enough to see that a side does not matter."""
    tail = _tail_for(pairs, delta)
    stack = _side(_grids(pairs, _rounded(_first_step(pairs, tail)), tail), side)
    left = delta - stack.truncated
    return best_moment(stack, math.log(left))[1] if left > 0 else math.inf


def _guessed_band(pairs: Pairs, epsilon: float, side: int) -> int:
    tail = _tail_for(pairs, 1e-12)
    thin = _thin(_grids(pairs, _rounded(_first_step(pairs, tail)), tail), side)
    if epsilon <= thin.tilt(0.0).mean:
        return 0
    return _band(saddlepoint_log_delta(tilt_towards(thin, epsilon)))


def _band(log_delta: float) -> int:
    return min(sum(log_delta <= bottom for bottom in _BOTTOMS), len(_BOTTOMS) - 1)


def _sides(pairs: Pairs) -> tuple[int, ...]:
    return (0,) if all(pair.symmetric for pair, _ in pairs) else (0, 1)


def _infinite(pairs: Pairs, side: int) -> float:
    """The probability that any of the losses is infinite."""
    masses = [(pair.infinite[side], count) for pair, count in pairs if pair.infinite[side]]
    if len(masses) <= 1 and all(count == 1 for _, count in masses):
        return math.fsum(mass for mass, _ in masses)
    if any(mass >= 1 for mass, _ in masses):
        return 1.0
    return min(1.0, -math.expm1(math.fsum(count * math.log1p(-mass) for mass, count in masses)) * (1 + 1e-12))


def _ceiling(pairs: Pairs) -> float:
    """The largest loss, which is finite if the losses of every pair are bounded."""
    spans = [(span_of(pair, 1e-300), count) for pair, count in pairs]
    if not all(span.low_closed and span.high_closed for span, _ in spans):
        return math.inf
    return math.fsum(count * max(span.high, -span.low) for span, count in spans)


@lru_cache(maxsize=64)
def _curve(pairs: tuple[tuple[Pair, int], ...], side: int, band: int, tolerance: float, sharp: bool) -> Curve:
    """The curve of the finite losses in one direction, for the deltas of `band`.

    Its error is about `tolerance` relative to epsilon or, if `sharp`, about `_DELTA_TOLERANCE` relative to delta.
    """
    log_top, log_bottom = (_BOTTOMS[band - 1] if band else 0.0), _BOTTOMS[band]
    tail, unit = _tail_for(pairs, math.exp(log_bottom)), _unit(pairs, side)
    step = _rounded(_first_step(pairs, tail), unit)
    grids = _grids(pairs, step, tail)
    finest = _rounded(max(_widest(pairs, tail) / _MOST_CELLS, _least_step(_side(grids, side), log_bottom)), unit)
    step = max(step, finest)
    at = 0.0
    for _ in range(8):
        grids = _grids(pairs, step, tail)
        at, proved = best_moment(_thin(grids, side, at), log_bottom, at)
        error, order = _error(grids, side, at)
        wanted = max(_DELTA_TOLERANCE / at, 0.0 if sharp else tolerance * proved)
        if error <= wanted or step <= finest:
            break
        step = max(finest, _rounded(_finer(step, wanted / error, order), unit))
    found = _resolve(grids, side, log_top, log_bottom, at)
    while found.epsilon(math.exp(log_bottom)) >= proved and all(cells.divisible for cells, _ in grids):
        # There are too many points to compose, so only the moment's bound is left: a coarser grid proves more.
        grids, step = [(cells.coarser, count) for cells, count in grids], 2 * step
        found = found.within(_resolve(grids, side, log_top, log_bottom, at))
    for _ in range(8):
        if step <= finest or not (sharp or _far_below(found, proved, log_top, log_bottom)):
            break
        # Far below the bound of a moment, moments do not show the error either: compare with a coarser grid.
        coarse = _resolve([(cells.coarser, count) for cells, count in grids], side, log_top, log_bottom, at)
        excess = _excess(found, coarse, log_top, log_bottom, tolerance, sharp) / (2**order - 1)
        if excess <= 1:
            break
        step = max(finest, _rounded(_finer(step, 1 / excess, order), unit))
        grids = _grids(pairs, step, tail)
        found = _resolve(grids, side, log_top, log_bottom, at).within(found)
    return found


def _far_below(curve: Curve, proved: float, log_top: float, log_bottom: float) -> bool:
    lowest, highest = curve.epsilon(math.exp(log_top)), curve.epsilon(math.exp(log_bottom))
    return highest <= 0.5 * proved or lowest <= 0.2 * highest


def _excess(fine: Curve, coarse: Curve, log_top: float, log_bottom: float, tolerance: float, sharp: bool) -> float:
    """The largest excess of a coarser grid's curve over the finer one in the band, divided by the tolerance."""
    low, high = max(0.0, fine.epsilon(math.exp(log_top))), fine.epsilon(math.exp(log_bottom))
    if low == math.inf:
        return 0.0
    high = max(low, high) if high < math.inf else low
    worst = 0.0
    points = np.concatenate((np.linspace(low, high, 9), low + (high - low) * np.geomspace(1e-4, 0.05, 4)))
    for epsilon, here, there in zip(points, fine.delta(points), coarse.delta(points), strict=True):
        if here <= 0 or there <= here:
            continue
        in_delta = (there - here) / here / _DELTA_TOLERANCE
        in_epsilon = math.inf if sharp or not epsilon else (coarse.epsilon(here) - epsilon) / (tolerance * epsilon)
        worst = max(worst, min(in_delta, in_epsilon))
    return worst


def _resolve(grids: Grids, side: int, log_top: float, log_bottom: float, at: float) -> Curve:
    """The curve on one grid: guess where the band is, compose there, and guess again if the guess was wrong."""
    stack, thin = _side(grids, side), _thin(grids, side, at)
    proved = renyi_epsilon(stack.log_moment(at), at, log_bottom)
    tilt = saddlepoint(thin, log_bottom, at)
    high = max(0.0, min(tilt.mean, proved))
    low = _upper_end(thin, tilt, log_top, log_bottom)
    best: Curve | None = None
    reached = math.inf
    for _ in range(5):
        target = CurvePart(min(low, high), high, log_top, log_bottom)
        curve = compose(stack, frame_for(thin, target, tilt.at))
        best = curve if best is None else curve.within(best)
        previous, reached = reached, best.epsilon(math.exp(log_bottom))
        clear = curve.noise(reached) < 1e-3 * math.exp(log_bottom)
        # If the guess was too high, rounding or wrapped mass spoils the frame: the result is a better guess.
        if not 0 < reached < 0.999 * previous or (reached > 0.9 * high and clear):
            break
        high = reached
    assert best is not None
    return best


def _upper_end(thin: Stack, tilt: Tilt, log_top: float, log_bottom: float) -> float:
    """A lower bound for the epsilons of a band, from the tilt of its lower end, as if the loss were normal there."""
    spread = max(tilt.deviation, thin.step)
    way = 1 - 2 * (log_top - log_bottom) / (tilt.at * spread) ** 2
    low = tilt.mean - 1.3 * tilt.at * spread**2 * (1 - math.sqrt(max(way, 0.0)))
    if way <= 0 or log_top == 0:
        bulk = thin.tilt(0.0)
        low = min(low, bulk.mean - 4 * bulk.deviation)
    return max(0.0, low)


def _grids(pairs: Pairs, step: float, tail: float) -> Grids:
    # Blocks are powers of two, about a sixtieth of the longest grid, so that the grids can be made coarser.
    block = max(4, 1 << max(0, math.floor(math.log2(_widest(pairs, tail) / step / 64 + 1))))
    return [(cells_of(pair, step, tail, block), count) for pair, count in pairs]


def _side(grids: Grids, side: int) -> Stack:
    return Stack([(cells.forward if side == 0 else cells.reverse, count) for cells, count in grids])


def _thin(grids: Grids, side: int, at: float = 0.0) -> Stack:
    """Coarser grids on which to search for a tilt: one step for all, and nearly the same moment at `at`."""
    stack = _side(grids, side)
    moment = stack.log_moment(at) if at else 0.0
    while max(len(cells.p) for cells, _ in grids) > _THIN_CELLS and all(cells.divisible for cells, _ in grids):
        grids = [(cells.coarser, count) for cells, count in grids]
        coarser = _side(grids, side)
        if at and coarser.log_moment(at) > moment + 0.1:
            break
        stack = coarser
    return stack


def _error(grids: Grids, side: int, at: float) -> tuple[float, float]:
    """How much the grid raises epsilon, and with which power of the step, from grids two and four times as coarse."""
    coarse = [(cells.coarser, count) for cells, count in grids]
    coarsest = [(cells.coarser, count) for cells, count in coarse]
    one, two, four = (_side(level, side).log_moment(at) for level in (grids, coarse, coarsest))
    gain = max(two - one, 0.0)
    order = math.log2(max(four - two, 1e-300) / gain) if gain > 0 else 2.0
    order = min(2.0, max(0.7, order))
    return gain / (2**order - 1) / at, order


def _finer(step: float, share: float, order: float) -> float:
    # The order grows from one to two as the step falls: expect it to be nearer to two.
    return step * max(1 / 16, 0.9 * math.pow(share, 2 / (order + 2)))


def _tail_for(pairs: Pairs, delta: float) -> float:
    # Not smaller than needed: losses too rare to matter for delta would still dominate the moments.
    # A power of two, so that the cells of a run are found in the cache as the run goes on.
    steps = sum(count for _, count in pairs)
    return math.exp2(math.floor(math.log2(max(_TRUNCATED * delta / steps, 1e-300))))


def _widest(pairs: Pairs, tail: float) -> float:
    spans = (span_of(pair, tail) for pair, _ in pairs)
    return max(1e-300, *(span.high - span.low for span in spans))


def _first_step(pairs: Pairs, tail: float) -> float:
    # The sum of T losses is about sqrt(T) times as wide as one loss: a grid too fine to compose proves little.
    steps = sum(count for _, count in pairs)
    return _widest(pairs, tail) / max(_FEWEST_CELLS, min(_FIRST_CELLS, _FIRST_POINTS / math.sqrt(steps)))


def _least_step(stack: Stack, log_delta: float) -> float:
    """The step at which a frame that resolves delta has about as many points as can be composed."""
    return 2 * (math.sqrt(-2 * log_delta) + 6) * stack.tilt(0.0).deviation / _MOST_COMPOSED


def _unit(pairs: Pairs, side: int) -> float:
    """The largest loss, if there is one kind of pair with bounded losses: a grid that contains it is exact there."""
    if len(pairs) > 1:
        return 0.0
    span = span_of(pairs[0][0], 1e-300)
    return (span.high if side == 0 else -span.low) if span.low_closed and span.high_closed else 0.0


def _rounded(step: float, unit: float = 0.0) -> float:
    """Round a step down to a power of sqrt(2), for the cache, or to 1/1, 1/2, 1/4, 1/6, 1/8, 1/12, 1/16, ... of `unit`."""
    if not 0 < step < unit:
        return math.exp2(math.floor(2 * math.log2(step) + 1e-9) / 2)
    power = math.exp2(math.floor(math.log2(unit / step)))
    return unit / next(parts for parts in (power, 1.5 * power, 2 * power) if parts >= unit / step * (1 - 1e-9))
