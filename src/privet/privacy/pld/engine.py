"""Epsilon and delta of composed pairs: choose the grid by the error it makes, compose both directions, take the worse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from privet.privacy.pld.composition import compose
from privet.privacy.pld.dots import Cells, cells_of, span_of
from privet.privacy.pld.framing import (
    best_moment,
    frame_for,
    renyi_epsilon,
    saddlepoint,
    saddlepoint_log_delta,
    tilt_towards,
)
from privet.privacy.pld.pairs import Pair
from privet.privacy.pld.stack import Stack

Pairs = Sequence[tuple[Pair, int]]
Grids = list[tuple[Cells, int]]

TOLERANCE = 1e-4
"""The discretisation error that is aimed at, relative to epsilon: always upwards."""
_DELTA_TOLERANCE = 1e-3
"""The same for delta, relative to delta."""
_MOST_CELLS = 1 << 20
_FIRST_CELLS = 512
_FEWEST_CELLS = 32
_FIRST_POINTS = 1 << 17
_THIN_CELLS = 2048
_TRUNCATED = 1e-4
"""The share of delta that is given to truncated tails."""


@dataclass(frozen=True)
class Answer:
    """An upper bound of epsilon and an estimate of how much of it is discretisation."""

    epsilon: float
    error: float


def epsilon_of(pairs: Pairs, delta: float, tolerance: float = TOLERANCE) -> Answer:
    """The least epsilon at `delta` that the composed pairs allow, rounded up by at most about `tolerance` of it.

    Formal guarantees: an upper bound for every grid (connecting the dots is pessimistic; tails count as infinite loss;
    wrapped mass only adds; rounding is allowed for), so a wrong estimate of the error costs tightness, never privacy.
    """
    if not pairs:
        return Answer(0.0, 0.0)
    sides = (0,) if all(pair.symmetric for pair, _ in pairs) else (0, 1)
    infinite = max(_infinite(pairs, side) for side in sides)
    ceiling = _ceiling(pairs)
    if delta <= infinite:
        return Answer(ceiling if delta == infinite else math.inf, 0.0)
    worst = Answer(0.0, 0.0)
    for side in sides:
        if side and _one_side(pairs, delta, side, 16 * tolerance, worst.epsilon).epsilon <= worst.epsilon:
            # A grid four times as coarse shows already that the other direction is the worse one.
            continue
        found = _one_side(pairs, delta, side, tolerance, worst.epsilon)
        worst = found if found.epsilon > worst.epsilon else worst
    return worst if worst.epsilon < ceiling else Answer(ceiling, 0.0)


def delta_of(pairs: Pairs, epsilon: float) -> float:
    """An upper bound of delta at `epsilon`."""
    if not pairs:
        return 0.0
    sides = (0,) if all(pair.symmetric for pair, _ in pairs) else (0, 1)
    if epsilon >= _ceiling(pairs):
        return min(1.0, max(_infinite(pairs, side) for side in sides))
    return min(1.0, max(_one_delta(pairs, epsilon, side) for side in sides))


def _infinite(pairs: Pairs, side: int) -> float:
    return math.fsum(count * pair.infinite[side] for pair, count in pairs)


def _ceiling(pairs: Pairs) -> float:
    """The largest loss, for the least delta: finite if every pair's losses are bounded."""
    spans = [(span_of(pair, 1e-300), count) for pair, count in pairs]
    if not all(span.low_closed and span.high_closed for span, _ in spans):
        return math.inf
    return math.fsum(count * max(span.high, -span.low) for span, count in spans)


def _one_side(pairs: Pairs, delta: float, side: int, tolerance: float, floor: float) -> Answer:
    """One direction's epsilon; 0 if it is not above `floor`."""
    log_delta = math.log(delta)
    tail = _tail_for(pairs, delta)
    finest, step = _finest_step(pairs, tail), _first_step(pairs, tail)
    at = 0.0
    for _ in range(8):
        grids = _grids(pairs, step, tail)
        at, proved = best_moment(_thin(grids, side, at), log_delta, at)
        if proved <= floor:
            return Answer(0.0, 0.0)
        error, order = _error(grids, side, at)
        if error <= tolerance * proved or step <= finest:
            break
        step = _finer(step, tolerance * proved / error, order, finest)
    found = _solve(grids, side, delta, at)
    while found >= proved and all(cells.divisible for cells, _ in grids):
        # Too many points to compose, so that only the moment's bound is left: a coarser grid proves more.
        grids, step = [(cells.coarser, count) for cells, count in grids], 2 * step
        found = min(found, _solve(grids, side, delta, at))
    for _ in range(8):
        if found > 0.5 * proved or found <= floor or step <= finest or error <= 2 * tolerance * found:
            break
        # Far below what a moment proves, moments do not tell the error either: compare with a coarser grid.
        error = max(0.0, _solve([(cells.coarser, count) for cells, count in grids], side, delta, at) - found) / 3
        if error <= tolerance * found:
            break
        step = _finer(step, tolerance * found / error, 2.0, finest)
        grids = _grids(pairs, step, tail)
        found = min(found, _solve(grids, side, delta, at))
    return Answer(max(0.0, found), error)


def _solve(grids: Grids, side: int, delta: float, at: float) -> float:
    log_delta = math.log(delta)
    stack, thin = _side(grids, side), _thin(grids, side, at)
    proved = renyi_epsilon(stack.log_moment(at), at, log_delta)
    tilt = saddlepoint(thin, log_delta, at)
    guess, at = min(tilt.mean, proved), tilt.at
    found = math.inf
    for _ in range(5):
        tail = compose(stack, frame_for(thin, guess, log_delta, at))
        previous, found = found, min(found, tail.epsilon(delta))
        # A guess that was too high puts the frame where rounding shows or mass wraps around: the answer is a better guess.
        if not 0 < found < 0.999 * previous or (found > 0.9 * guess and tail.noise(found) < 1e-3 * delta):
            break
        guess = found
    return max(0.0, min(found, proved))


def _one_delta(pairs: Pairs, epsilon: float, side: int) -> float:
    tail = _tail_for(pairs, 1e-12)
    finest, step = _finest_step(pairs, tail), _first_step(pairs, tail)
    for _ in range(8):
        grids = _grids(pairs, step, tail)
        found = _delta_on(grids, epsilon, side)
        error = max(0.0, _delta_on([(cells.coarser, count) for cells, count in grids], epsilon, side) - found)
        if error <= _DELTA_TOLERANCE * found or step <= finest:
            break
        step = _finer(step, _DELTA_TOLERANCE * found / error, 2.0, finest)
    return found


def _delta_on(grids: Grids, epsilon: float, side: int) -> float:
    thin = _thin(grids, side)
    tilt = tilt_towards(thin, epsilon)
    thin = _thin(grids, side, tilt.at)
    # A guess of delta that is rather too small only makes the frame wider.
    frame = frame_for(thin, epsilon, saddlepoint_log_delta(tilt) - 4, tilt.at)
    return compose(_side(grids, side), frame).delta_at(epsilon)


def _grids(pairs: Pairs, step: float, tail: float) -> Grids:
    # Blocks of about a sixtieth of the longest grid, a power of two: so often can the grids be made coarser.
    block = max(4, 1 << max(0, math.floor(math.log2(_widest(pairs, tail) / step / 64 + 1))))
    return [(cells_of(pair, step, tail, block), count) for pair, count in pairs]


def _side(grids: Grids, side: int) -> Stack:
    return Stack([(cells.forward if side == 0 else cells.reverse, count) for cells, count in grids])


def _thin(grids: Grids, side: int, at: float = 0.0) -> Stack:
    """Coarser grids on which to look for a tilt: the same step for all, and nearly the same moment at `at` as the given ones."""
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
    """By how much the grid raises epsilon, and with which power of the step, from grids two and four times as coarse."""
    coarse = [(cells.coarser, count) for cells, count in grids]
    coarsest = [(cells.coarser, count) for cells, count in coarse]
    one, two, four = (_side(level, side).log_moment(at) for level in (grids, coarse, coarsest))
    gain = max(two - one, 0.0)
    order = math.log2(max(four - two, 1e-300) / gain) if gain > 0 else 2.0
    order = min(2.0, max(0.7, order))
    return gain / (2**order - 1) / at, order


def _finer(step: float, share: float, order: float, finest: float) -> float:
    # On the way from a first-order to a second-order error the order grows: expect it to be nearer to two.
    return max(finest, _rounded(step * max(1 / 16, 0.9 * share ** (2 / (order + 2)))))


def _tail_for(pairs: Pairs, delta: float) -> float:
    # Not less than is needed: losses too rare to matter for delta would still dominate the moments.
    # A power of two, so that the cells of one run are found again in the cache as the run goes on.
    steps = sum(count for _, count in pairs)
    return max(1e-300, math.exp2(math.floor(math.log2(_TRUNCATED * delta / steps))))


def _widest(pairs: Pairs, tail: float) -> float:
    spans = (span_of(pair, tail) for pair, _ in pairs)
    return max(1e-300, *(span.high - span.low for span in spans))


def _first_step(pairs: Pairs, tail: float) -> float:
    # The sum of T losses is about sqrt T cells wide for each cell of one loss: a grid too fine to compose proves little.
    steps = sum(count for _, count in pairs)
    return _rounded(_widest(pairs, tail) / max(_FEWEST_CELLS, min(_FIRST_CELLS, _FIRST_POINTS / math.sqrt(steps))))


def _finest_step(pairs: Pairs, tail: float) -> float:
    return _rounded(_widest(pairs, tail) / _MOST_CELLS)


def _rounded(step: float) -> float:
    """Down to a power of sqrt 2, for the cache."""
    return math.exp2(math.floor(2 * math.log2(step) + 1e-9) / 2)
