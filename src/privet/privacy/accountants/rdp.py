"""Renyi differential privacy, from dp-accounting."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from privet.privacy.accountants._base import Accountant, Tally
from privet.privacy.accountants._dp_accounting import to_dp_event
from privet.privacy.accountants._forms import bare, pure_epsilon
from privet.privacy.events import Event, GroupedL2, PaddedPoisson, PoissonSampled
from privet.privacy.relations import Relation

if TYPE_CHECKING:
    from dp_accounting import NeighboringRelation

Array = npt.NDArray[np.float64]


class RDP(Accountant):
    """Renyi divergences of dp-accounting's orders, added up and converted (Canonne, Kamath and Steinke 2020).

    Formal guarantees: an upper bound. Pure-epsilon events go through randomised response, which dominates them; grouped
    noise is also zCDP, and the better of the two counts.
    """

    key: ClassVar[str] = "rdp"
    name: ClassVar[str] = "RDP"

    def __init__(self, orders: tuple[float, ...] | None = None) -> None:
        self._orders = tuple(orders or ())

    @property
    def orders(self) -> tuple[float, ...]:
        from dp_accounting.rdp import rdp_privacy_accountant

        return self._orders or tuple(rdp_privacy_accountant.DEFAULT_RDP_ORDERS)

    def why_not(self, leaf: Event, relation: Relation) -> str | None:
        if divergences(leaf, relation, self.orders) is None:
            return f"no Renyi divergence is known for it under {relation.value}"
        return None

    def _epsilon(self, events: Tally, delta: float, relation: Relation) -> float:
        from dp_accounting.rdp import rdp_privacy_accountant

        left = delta - _overflow(events)
        if left <= 0:
            return math.inf
        total = self._total(events, relation)
        if np.isinf(total).all():
            return math.inf
        return float(rdp_privacy_accountant.compute_epsilon(self.orders, total, left)[0])

    def _delta(self, events: Tally, epsilon: float, relation: Relation) -> float:
        from dp_accounting.rdp import rdp_privacy_accountant

        total = self._total(events, relation)
        if np.isinf(total).all():
            return 1.0
        return float(rdp_privacy_accountant.compute_delta(self.orders, total, epsilon)[0]) + _overflow(events)

    def _total(self, events: Tally, relation: Relation) -> Array:
        total = np.zeros(len(self.orders))
        for leaf, count in events:
            single = divergences(leaf, relation, self.orders)
            assert single is not None
            total += count * np.asarray(single)
        return total


@lru_cache(maxsize=4096)
def divergences(leaf: Event, relation: Relation, orders: tuple[float, ...]) -> tuple[float, ...] | None:
    """The Renyi divergence of each order of one use of `leaf`; None if none is known."""
    from dp_accounting.rdp import RdpAccountant

    event = bare(leaf)
    if isinstance(event, PaddedPoisson):
        # The overflow is taken from delta.
        event = PoissonSampled(event.rate, event.event)
    known = _through_response(event, relation, orders)
    google = to_dp_event(event, relation)
    if google is None:
        return known
    accountant = RdpAccountant(orders, _relation(relation))
    if not accountant.supports(google):
        return known
    with _quietly():
        direct = tuple(accountant.compose(google).rdp)
    if known is None or not isinstance(event, GroupedL2):
        return direct
    return tuple(min(one, other) for one, other in zip(direct, known, strict=True))


@contextmanager
def _quietly() -> Iterator[None]:
    """dp-accounting warns of each order at which its series does not converge; it leaves the order out, which is safe."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _relation(relation: Relation) -> NeighboringRelation:
    from dp_accounting import NeighboringRelation

    replace = relation is Relation.REPLACE_ONE
    return NeighboringRelation.REPLACE_ONE if replace else NeighboringRelation.ADD_OR_REMOVE_ONE


def _through_response(event: Event, relation: Relation, orders: tuple[float, ...]) -> tuple[float, ...] | None:
    """Randomised response with the event's pure epsilon, sampled if the event is."""
    rate = 1.0
    if isinstance(event, PoissonSampled):
        if relation is not Relation.ADD_REMOVE and event.rate < 1:
            return None
        rate, event = event.rate, event.event
    epsilon = pure_epsilon(event, relation)
    if epsilon is None:
        return None
    if epsilon == math.inf:
        return (math.inf,) * len(orders)
    log_yes, log_no = -math.log1p(math.exp(-epsilon)), -epsilon - math.log1p(math.exp(-epsilon))
    with_record = np.array([log_yes, log_no])
    without = np.array([log_no, log_yes])
    mixed = np.logaddexp(math.log1p(-rate) + without, math.log(rate) + with_record) if rate < 1 else with_record
    return tuple(
        max(0.0, *(_divergence(order, *pair) for pair in ((mixed, without), (without, mixed)))) for order in orders
    )


def _divergence(order: float, log_p: Array, log_q: Array) -> float:
    return float(logsumexp(order * log_p + (1 - order) * log_q)) / (order - 1)


def _overflow(events: Tally) -> float:
    parts = ((bare(leaf), count) for leaf, count in events)
    return math.fsum(count * event.overflow for event, count in parts if isinstance(event, PaddedPoisson))
