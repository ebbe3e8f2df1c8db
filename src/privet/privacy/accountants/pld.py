"""Privacy loss distributions: Privet's own fast accountant, and dp-accounting's as the reference of its tests."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from privet.privacy.accountants.base import Accountant, Tally
from privet.privacy.accountants.rdp import gdp_delta, gdp_epsilon, to_dp_event
from privet.privacy.events import Event
from privet.privacy.guarantees import Relation
from privet.privacy.pld.engine import TOLERANCE, deltas_of, epsilon_of
from privet.privacy.pld.pairs import Array, GaussianPair, NoPairError, Pair, UnboundedError, pairs_of

if TYPE_CHECKING:
    from dp_accounting.pld import PLDAccountant


class PLD(Accountant):
    """Numerical composition of dominating pairs.

    Formal guarantees: an upper bound of epsilon and of delta. The discretization connects the dots, which is pessimistic;
    truncated tails count as infinite loss; rounding errors are added. The target for the discretization error is
    `tolerance` times epsilon (1e-4 by default), and it always raises epsilon.
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

    def bound_epsilon(self, events: Tally, delta: float, relation: Relation) -> float:
        try:
            return _cached_epsilon(_pairs(events, relation), delta, self.tolerance)
        except UnboundedError:
            return math.inf

    def bound_delta(self, events: Tally, epsilon: float, relation: Relation) -> float:
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
    """The pairs of all events with their counts; unsampled Gaussians are joined into one kind."""
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
    """The mu of a run that is Gaussian as a whole, whose curve has a formula; otherwise None."""
    if not pairs or not all(isinstance(pair, GaussianPair) for pair, _ in pairs):
        return None
    return math.sqrt(math.fsum(count * pair.mu**2 for pair, count in pairs if isinstance(pair, GaussianPair)))


@lru_cache(maxsize=4096)
def _cached_epsilon(pairs: tuple[tuple[Pair, int], ...], delta: float, tolerance: float) -> float:
    mu = _gaussian(pairs)
    return epsilon_of(pairs, delta, tolerance) if mu is None else gdp_epsilon(mu, delta)


class ReferencePLD(Accountant):
    """Privacy loss distributions by dp-accounting (Doroshenko et al. 2022), add/remove only.

    Formal guarantees: an upper bound, up to floating point.
    """

    key: ClassVar[str] = "pld-reference"
    name: ClassVar[str] = "dp-accounting PLD"

    def __init__(self, interval: float = 1e-4) -> None:
        self.interval = interval

    def why_not(self, leaf: Event, relation: Relation) -> str | None:
        if relation is not Relation.ADD_REMOVE:
            return "it is used for add/remove only"
        from dp_accounting.pld import PLDAccountant

        event = to_dp_event(leaf, relation)
        if event is None or not PLDAccountant().supports(event):
            return "dp-accounting's PLD has no such event"
        return None

    def bound_epsilon(self, events: Tally, delta: float, relation: Relation) -> float:
        return float(self._compose(events, relation).get_epsilon(delta))

    def bound_delta(self, events: Tally, epsilon: float, relation: Relation) -> float:
        return float(self._compose(events, relation).get_delta(epsilon))

    def _compose(self, events: Tally, relation: Relation) -> PLDAccountant:
        from dp_accounting.pld import PLDAccountant

        accountant = PLDAccountant(value_discretization_interval=self.interval)
        for leaf, count in events:
            accountant.compose(to_dp_event(leaf, relation), count)
        return accountant
