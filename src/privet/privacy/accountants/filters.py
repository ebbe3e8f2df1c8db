"""Privacy filters: the cost of a run whose noise, steps or end were chosen after earlier releases were seen."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import ClassVar

from privet.privacy.accountants.base import Accountant, Tally, UnsupportedEventError
from privet.privacy.accountants.forms import bare, gaussian_multiplier
from privet.privacy.accountants.gdp import gdp_delta, gdp_epsilon, total_mu
from privet.privacy.accountants.rdp import divergences
from privet.privacy.events import Event, PaddedPoisson
from privet.privacy.guarantees import Relation
from privet.privacy.pld.composition import renyi_epsilon
from privet.privacy.spent import Spent


class Filter(Accountant):
    """The cost of releases whose parameters depended on earlier ones.

    Args:
        order: the order of a Renyi filter; None for the Gaussian filter, if all releases are Gaussian and unsampled.
        limit: the largest total divergence of that order, or the largest root of the sum of 1/sigma^2. With a limit, epsilon
            is the cost of the whole limit. Without one, epsilon is the cost of the given events, which decides whether
            another event still fits.
        relation: the neighbors for which the limit was kept.

    Formal guarantees: if order and limit were fixed before any release, and the releases stay within the limit whatever
    they show, then all releases together have at most that divergence (Feldman and Zrnic 2021), or are at least as private
    as one Gaussian release of that mu (Smith and Thakurta 2022; Koskela, Tobaben and Honkela 2023). Numerical composition
    (PLD) has no such theorem, so it is not used here.
    """

    key: ClassVar[str] = "filter"
    name: ClassVar[str] = "privacy filter"

    def __init__(
        self, order: float | None, limit: float | None = None, relation: Relation | str = Relation.ADD_REMOVE
    ) -> None:
        self.order = order
        self.relation = Relation.of(relation)
        self.limit = limit

    @classmethod
    def for_budget(
        cls,
        epsilon: float,
        delta: float,
        relation: Relation | str = Relation.ADD_REMOVE,
        *,
        gaussian: bool = False,
    ) -> Filter:
        """The filter for a budget; it depends on nothing else."""
        if gaussian:
            return cls(None, _largest_mu(epsilon, delta), relation)
        order = _order(epsilon, delta)
        return cls(order, _rho(order, epsilon, delta), relation)

    @property
    def theorem(self) -> str:
        return "Gaussian filter" if self.order is None else f"Renyi filter of order {self.order:g}"

    def why_not(self, leaf: Event, relation: Relation) -> str | None:
        if self.limit is not None and relation is not self.relation:
            return f"the limit of its {self.theorem} was kept for {self.relation.value}"
        if self.order is None:
            known = gaussian_multiplier(leaf, relation) is not None
            return None if known else "the Gaussian filter is for Gaussian releases without sampling"
        if isinstance(bare(leaf), PaddedPoisson):
            return "there is no filter for the delta of aborted steps"
        if divergences(leaf, relation, (self.order,)) is None:
            return f"no Renyi divergence is known for it under {relation.value}"
        return None

    def spent(
        self, event: Event, delta: float, relation: Relation | str = Relation.ADD_REMOVE, *, unit: str = "record"
    ) -> Spent:
        # The event does not show that it was chosen adaptively, so leave it out: no other theorem may interpret it.
        return replace(super().spent(event, delta, relation, unit=unit), accountant=self.theorem, event=None)

    def used(self, events: Tally, relation: Relation) -> float:
        """The total of the events, in the units of the limit."""
        if self.order is None:
            return total_mu(events, relation)
        singles = ((divergences(leaf, relation, (self.order,)), count) for leaf, count in events)
        return math.fsum(count * single[0] for single, count in singles if single is not None)

    def _total(self, events: Tally, relation: Relation) -> float:
        used = self.used(events, relation)
        if self.limit is None:
            return used
        if used > self.limit * (1 + 1e-9):
            raise UnsupportedEventError(
                f"The run used {used:.6g}, but its {self.theorem} allows {self.limit:.6g}: it did not keep to the filter, so "
                "nothing is proved."
            )
        return self.limit

    def bound_epsilon(self, events: Tally, delta: float, relation: Relation) -> float:
        total = self._total(events, relation)
        if delta == 0 or math.isinf(total):
            return math.inf
        if self.order is None:
            return gdp_epsilon(total, delta)
        return max(0.0, renyi_epsilon((self.order - 1) * total, self.order - 1, math.log(delta)))

    def bound_delta(self, events: Tally, epsilon: float, relation: Relation) -> float:
        total = self._total(events, relation)
        if math.isinf(total):
            return 1.0
        if self.order is None:
            return gdp_delta(total, epsilon)
        at = self.order - 1
        # The inverse of the same conversion.
        return math.exp(min(0.0, at * (total - epsilon + math.log(at / self.order)) - math.log(self.order)))


def _rho(order: float, epsilon: float, delta: float) -> float:
    """The divergence of an order that gives epsilon at delta (Canonne, Kamath and Steinke 2020, proposition 12)."""
    return epsilon - math.log((order - 1) / order) + (math.log(delta) + math.log(order)) / (order - 1)


@lru_cache(maxsize=256)
def _order(epsilon: float, delta: float) -> float:
    """The order that allows the smallest Gaussian noise."""
    orders = [1 + step / 10 for step in range(1, 100)] + [float(order) for order in range(11, 513)]
    return max(orders, key=lambda order: _rho(order, epsilon, delta) / order)


@lru_cache(maxsize=256)
def _largest_mu(epsilon: float, delta: float) -> float:
    low, high = 0.0, 1.0
    while gdp_epsilon(high, delta) <= epsilon:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gdp_epsilon(middle, delta) <= epsilon else (low, middle)
    return low
