"""Composition theorems: basic, strong (Dwork, Rothblum and Vadhan 2010) and optimal (Kairouz, Oh and Viswanath 2015).

They use only the (epsilon, delta) of each step, which is computed here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from scipy.optimize import minimize_scalar

from privet.privacy.accountants.base import Accountant, Tally
from privet.privacy.accountants.rdp import gdp_epsilon
from privet.privacy.events import (
    Event,
    FixedSizeSampled,
    PaddedPoisson,
    PoissonSampled,
    amplified,
    bare,
    gaussian_multiplier,
    pure_epsilon,
    stated_privacy,
)
from privet.privacy.guarantees import Claimed, Guarantee, Proved, Relation
from privet.privacy.pld.engine import epsilon_of
from privet.privacy.pld.pairs import response_pair


@dataclass(frozen=True)
class Piece:
    """One kind of step: `count` uses, on samples of `rate`, of a Gaussian of `sigma` or an (epsilon, delta) mechanism."""

    count: int
    rate: float
    sigma: float | None
    epsilon: float
    delta: float
    extra: float
    """Delta that each use adds however delta is divided: a stated delta, and the probability of an abort."""

    def epsilon_at(self, delta: float, linear: bool, classic: bool) -> float:
        """The epsilon of one use that is given `delta` (of the sampled mechanism)."""
        if self.sigma is None:
            epsilon = self.epsilon
        elif self.sigma == 0 or delta <= 0:
            return math.inf
        else:
            share = delta / self.rate
            if share >= 1:
                return 0.0
            epsilon = (
                math.sqrt(2 * math.log(1.25 / share)) / self.sigma if classic else exact_gaussian(self.sigma, share)
            )
        return self.rate * epsilon if linear else amplified(epsilon, self.rate)


def piece_of(leaf: Event, count: int, relation: Relation) -> Piece | None:
    """Convert one leaf; None if it has no (epsilon, delta) here."""
    event, rate, extra = bare(leaf), 1.0, 0.0
    if isinstance(event, PoissonSampled | PaddedPoisson):
        extra = event.overflow if isinstance(event, PaddedPoisson) else 0.0
        rate, event = event.rate, event.event
    elif isinstance(event, FixedSizeSampled):
        if relation is Relation.ADD_REMOVE:
            return None
        rate, event = event.rate, event.event
    if rate == 0:
        return Piece(count, 1.0, None, 0.0, 0.0, 0.0)
    # Amplification by sampling holds for either relation, with the mechanism's parameters for that relation.
    sigma = gaussian_multiplier(event, relation)
    if sigma is not None:
        return Piece(count, rate, sigma, 0.0, 0.0, extra)
    epsilon = pure_epsilon(event, relation)
    if epsilon is not None:
        return Piece(count, rate, None, epsilon, 0.0, extra)
    stated = stated_privacy(event, relation)
    if stated is not None:
        return Piece(count, rate, None, stated[0], rate * stated[1], extra + rate * stated[1])
    return None


def pieces_of(events: Tally, relation: Relation) -> list[Piece]:
    pieces = [piece_of(leaf, count, relation) for leaf, count in events]
    return [piece for piece in pieces if piece is not None]


@lru_cache(maxsize=65536)
def exact_gaussian(sigma: float, delta: float) -> float:
    """The exact epsilon of one Gaussian release (Balle and Wang 2018)."""
    return gdp_epsilon(1 / sigma, delta)


Cost = Callable[[float, float], float]


def best_split(pieces: list[Piece], delta: float, cost: Cost, rough: Cost | None = None) -> float:
    """Divide delta between the Gaussian steps and the theorem so that cost(delta of each step, delta of theorem) is least.

    Every division gives a bound, so the best one may be searched for with a `rough` cost that is faster.
    """
    extra = math.fsum(piece.count * piece.extra for piece in pieces)
    steps = sum(piece.count for piece in pieces if piece.sigma is not None)
    left = delta - extra
    if left < 0 or (left == 0 and steps):
        return math.inf
    if not steps:
        return cost(0.0, left)

    def divided(logit: float) -> tuple[float, float]:
        share = 1 / (1 + math.exp(-logit))
        return share * left / steps, (1 - share) * left

    def searched(logit: float) -> float:
        value = (rough or cost)(*divided(logit))
        return value if math.isfinite(value) else 1e300

    found = minimize_scalar(searched, bounds=(-20.0, 20.0), method="bounded", options={"xatol": 5e-3})
    return cost(*divided(float(found.x)))


class _Theorem(Accountant):
    """The common part of the theorems: a step is only an (epsilon, delta)."""

    linear = False
    classic = False

    def why_not(self, leaf: Event, relation: Relation) -> str | None:
        if piece_of(leaf, 1, relation) is None:
            return f"no epsilon of a single use is known for {relation.value}"
        return None

    def bound_delta(self, events: Tally, epsilon: float, relation: Relation) -> float:
        """Bisect ln delta: epsilon falls as delta grows."""
        low, high = math.log(1e-300), 0.0
        if self.bound_epsilon(events, math.exp(low), relation) <= epsilon:
            return math.exp(low)
        while high - low > 1e-3:
            middle = (low + high) / 2
            fits = self.bound_epsilon(events, math.exp(middle), relation) <= epsilon
            low, high = (low, middle) if fits else (middle, high)
        return math.exp(high)

    def _single(self, piece: Piece, delta: float) -> float:
        return piece.epsilon_at(delta, self.linear, self.classic)


class Basic(_Theorem):
    """Epsilons and deltas add up; each Gaussian step gets an equal part of delta.

    Formal guarantees: basic composition (Dwork et al. 2006) of exact Gaussians, amplified by sampling (Balle et al. 2018).
    """

    key: ClassVar[str] = "basic"
    name: ClassVar[str] = "basic composition"

    def bound_epsilon(self, events: Tally, delta: float, relation: Relation) -> float:
        pieces = pieces_of(events, relation)
        steps = sum(piece.count for piece in pieces if piece.sigma is not None)
        left = delta - math.fsum(piece.count * piece.extra for piece in pieces)
        if left < 0:
            return math.inf
        return math.fsum(piece.count * self._single(piece, left / max(steps, 1)) for piece in pieces)


class Strong(_Theorem):
    """sqrt(2 ln(1/d') sum e_i^2) + sum e_i (e^e_i - 1), with an optimized division of delta.

    Formal guarantees: an upper bound, with exact Gaussians and the amplification ln(1 + q(e^e - 1)). `linear` amplifies to
    q e, and `classic` uses the classic Gaussian bound beyond e = 1, as the paper on the moments accountant does for its
    comparison curve. Neither holds, and the guarantee then says so.
    """

    key: ClassVar[str] = "strong"
    name: ClassVar[str] = "strong composition"

    def __init__(self, *, linear: bool = False, classic: bool = False) -> None:
        self.linear = linear
        self.classic = classic

    @property
    def basis(self) -> Guarantee:
        if not self.linear and not self.classic:
            return Proved()
        return Claimed("the comparison curve of Abadi et al. 2016", "sampling does not amplify epsilon to q * epsilon")

    def bound_epsilon(self, events: Tally, delta: float, relation: Relation) -> float:
        pieces = pieces_of(events, relation)

        def cost(each: float, slack: float) -> float:
            singles = [(piece.count, self._single(piece, each)) for piece in pieces]
            if any(single > 300 for _, single in singles):
                return math.inf
            plain = math.fsum(count * single for count, single in singles)
            if slack <= 0:
                return plain
            squares = math.fsum(count * single**2 for count, single in singles)
            drift = math.fsum(count * single * math.expm1(single) for count, single in singles)
            return min(plain, math.sqrt(2 * math.log(1 / slack) * squares) + drift)

        return best_split(pieces, delta, cost)


class PublishedStrong(Strong):
    """The strong-composition curve as drawn in the paper on the moments accountant."""

    key: ClassVar[str] = "strong-published"
    name: ClassVar[str] = "strong composition as published"

    def __init__(self) -> None:
        super().__init__(linear=True, classic=True)


class Optimal(_Theorem):
    """The least epsilon that any theorem can give that knows only the (epsilon, delta) of each step.

    Formal guarantees: an upper bound: the steps are dominated by randomized responses (Kairouz, Oh and Viswanath 2015), also
    if their epsilons differ, and these are composed as privacy loss distributions. A normal approximation chooses how delta
    is divided between the steps and the theorem, within about 1 % of the best; any division gives a bound.
    """

    key: ClassVar[str] = "optimal"
    name: ClassVar[str] = "optimal composition"

    def bound_epsilon(self, events: Tally, delta: float, relation: Relation) -> float:
        pieces = pieces_of(events, relation)

        def bounded(each: float, slack: float, composed: Callable[[Singles, float], float]) -> float:
            singles = [(self._single(piece, each), piece.count) for piece in pieces]
            if any(single > 300 for single, _ in singles):
                return math.inf
            plain = math.fsum(single * count for single, count in singles)
            return plain if slack <= 0 else min(plain, composed(singles, slack))

        return best_split(
            pieces,
            delta,
            lambda each, slack: bounded(each, slack, _composed_responses),
            lambda each, slack: bounded(each, slack, _nearly_composed_responses),
        )


Singles = list[tuple[float, int]]


def _composed_responses(singles: Singles, delta: float) -> float:
    return epsilon_of([(response_pair(single), count) for single, count in singles if single > 0], delta)


def _nearly_composed_responses(singles: Singles, delta: float) -> float:
    """A normal approximation of the sum of losses: not a bound, but good enough to choose a division of delta."""
    mean = math.fsum(count * single * math.tanh(single / 2) for single, count in singles)
    variance = math.fsum(count * (single / math.cosh(single / 2)) ** 2 for single, count in singles)
    return mean - variance / 2 + gdp_epsilon(math.sqrt(variance), delta) if variance > 0 else mean
