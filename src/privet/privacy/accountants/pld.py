"""Privacy loss distributions, fast: Privet's own, with dp-accounting's as the oracle of its tests."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import ClassVar

import numpy as np

from privet.privacy.accountants._base import Accountant, Array, Tally
from privet.privacy.accountants.gdp import gdp_delta, gdp_epsilon
from privet.privacy.events import Event
from privet.privacy.pld.dominating import NoPairError, UnboundedError, pairs_of
from privet.privacy.pld.engine import TOLERANCE, deltas_of, epsilon_of
from privet.privacy.pld.pairs import GaussianPair, Pair
from privet.privacy.relations import Relation


class PLD(Accountant):
    """Numerical composition of dominating pairs.

    Formal guarantees: an upper bound of epsilon (and of delta): the discretisation connects the dots, which is
    pessimistic, truncated tails count as infinite loss, and floating point is allowed for. It aims at a
    discretisation error of `tolerance` times epsilon (1e-4 by default), always upwards.
    """

    key: ClassVar[str] = "pld"
    name: ClassVar[str] = "PLD"

    def __init__(self, tolerance: float = TOLERANCE) -> None:
        self.tolerance = tolerance

    def why_not(self, leaf: Event, relation: Relation) -> str | None:
        try:
            pairs_of(leaf, relation)
        except NoPairError as reason:
            return str(reason)
        except UnboundedError:
            return None
        return None

    def _epsilon(self, events: Tally, delta: float, relation: Relation) -> float:
        try:
            return _cached_epsilon(_pairs(events, relation), delta, self.tolerance)
        except UnboundedError:
            return math.inf

    def _delta(self, events: Tally, epsilon: float, relation: Relation) -> float:
        removed, added = self._both(events, np.array([epsilon]), relation, larger=True)
        return float(max(removed[0], added[0]))

    def _directions(self, events: Tally, epsilons: Array, relation: Relation) -> tuple[Array, Array]:
        return self._both(events, epsilons, relation)

    def _both(self, events: Tally, epsilons: Array, relation: Relation, *, larger: bool = False) -> tuple[Array, Array]:
        try:
            pairs = _pairs(events, relation)
        except UnboundedError:
            return np.ones_like(epsilons), np.ones_like(epsilons)
        mu = _gaussian(pairs)
        if mu is not None:
            exact = np.array([gdp_delta(mu, epsilon) for epsilon in epsilons])
            return exact, exact
        return deltas_of(pairs, epsilons, larger=larger)


def _pairs(events: Tally, relation: Relation) -> tuple[tuple[Pair, int], ...]:
    """The pairs of all events with their counts; unsampled Gaussians are one."""
    counts: dict[Pair, int] = {}
    for leaf, times in events:
        for pair, count in pairs_of(leaf, relation):
            counts[pair] = counts.get(pair, 0) + count * times
    gaussians = [(pair, count) for pair, count in counts.items() if isinstance(pair, GaussianPair)]
    if len(gaussians) > 1:
        for pair, _ in gaussians:
            del counts[pair]
        mu_squared = math.fsum(count * pair.mu**2 for pair, count in gaussians if isinstance(pair, GaussianPair))
        parts = max(1, math.ceil(mu_squared / 36))
        counts[GaussianPair(math.sqrt(mu_squared / parts))] = parts
    return tuple(counts.items())


def _gaussian(pairs: tuple[tuple[Pair, int], ...]) -> float | None:
    """The mu of a run that is Gaussian as a whole: then its curve has a formula."""
    if not pairs or not all(isinstance(pair, GaussianPair) for pair, _ in pairs):
        return None
    return math.sqrt(math.fsum(count * pair.mu**2 for pair, count in pairs if isinstance(pair, GaussianPair)))


@lru_cache(maxsize=4096)
def _cached_epsilon(pairs: tuple[tuple[Pair, int], ...], delta: float, tolerance: float) -> float:
    mu = _gaussian(pairs)
    return epsilon_of(pairs, delta, tolerance) if mu is None else gdp_epsilon(mu, delta)
