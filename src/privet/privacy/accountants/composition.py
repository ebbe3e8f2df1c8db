"""Composition theorems: basic, strong (Dwork, Rothblum and Vadhan 2010) and optimal (Kairouz, Oh and Viswanath 2015)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

from privet.privacy.accountants._base import Accountant, Tally
from privet.privacy.accountants._pieces import Piece, best_split, piece_of, pieces_of
from privet.privacy.accountants.gdp import gdp_epsilon
from privet.privacy.events import Event
from privet.privacy.guarantees import Claimed, Guarantee, Proved
from privet.privacy.pld.engine import epsilon_of
from privet.privacy.pld.pairs import response_pair
from privet.privacy.relations import Relation


class _Theorem(Accountant):
    """What the theorems share: they see a step only as an (epsilon, delta)."""

    linear = False
    classic = False

    def why_not(self, leaf: Event, relation: Relation) -> str | None:
        if piece_of(leaf, 1, relation) is None:
            return f"no epsilon of a single use is known under {relation.value}"
        return None

    def _delta(self, events: Tally, epsilon: float, relation: Relation) -> float:
        """By bisection on ln delta: epsilon falls as delta grows."""
        low, high = math.log(1e-300), 0.0
        if self._epsilon(events, math.exp(low), relation) <= epsilon:
            return math.exp(low)
        while high - low > 1e-3:
            middle = (low + high) / 2
            fits = self._epsilon(events, math.exp(middle), relation) <= epsilon
            low, high = (low, middle) if fits else (middle, high)
        return math.exp(high)

    def _single(self, piece: Piece, delta: float) -> float:
        return piece.epsilon_at(delta, self.linear, self.classic)


class Basic(_Theorem):
    """Epsilons and deltas add up; each Gaussian step is given an equal part of delta.

    Formal guarantees: basic composition (Dwork et al. 2006) of exact Gaussians, amplified by sampling (Balle et al. 2018).
    """

    key: ClassVar[str] = "basic"
    name: ClassVar[str] = "basic composition"

    def _epsilon(self, events: Tally, delta: float, relation: Relation) -> float:
        pieces = pieces_of(events, relation)
        steps = sum(piece.count for piece in pieces if piece.sigma is not None)
        left = delta - math.fsum(piece.count * piece.extra for piece in pieces)
        if left < 0:
            return math.inf
        return math.fsum(piece.count * self._single(piece, left / max(steps, 1)) for piece in pieces)


class Strong(_Theorem):
    """sqrt(2 ln(1/d') sum e_i^2) + sum e_i (e^e_i - 1), with the division of delta optimised.

    Formal guarantees: a theorem, with exact Gaussians and the amplification ln(1 + q(e^e - 1)). `linear` amplifies by q e
    and `classic` takes the classic Gaussian bound beyond e = 1, as the moments accountant's paper does for its comparison
    curve: neither holds, and then the guarantee says so.
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

    def _epsilon(self, events: Tally, delta: float, relation: Relation) -> float:
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
    """The strong-composition curve as the moments accountant's paper draws it."""

    key: ClassVar[str] = "strong-published"
    name: ClassVar[str] = "strong composition as published"

    def __init__(self) -> None:
        super().__init__(linear=True, classic=True)


class Optimal(_Theorem):
    """The least epsilon that any theorem can give that knows only each step's (epsilon, delta).

    Formal guarantees: the composition of randomised responses, which dominate the steps (Kairouz, Oh and Viswanath 2015),
    also where the epsilons differ; computed as a privacy loss distribution, from above. How delta is divided between the
    steps and the theorem is chosen by a normal approximation, within about 1 % of the best: any division is a bound.
    """

    key: ClassVar[str] = "optimal"
    name: ClassVar[str] = "optimal composition"

    def _epsilon(self, events: Tally, delta: float, relation: Relation) -> float:
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
    """As if the sum of the losses were normal: no bound, but near enough to choose a division of delta by."""
    mean = math.fsum(count * single * math.tanh(single / 2) for single, count in singles)
    variance = math.fsum(count * (single / math.cosh(single / 2)) ** 2 for single, count in singles)
    return mean - variance / 2 + gdp_epsilon(math.sqrt(variance), delta) if variance > 0 else mean
