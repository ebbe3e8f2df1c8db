"""Renyi differential privacy by dp-accounting, and its predecessor, the moments accountant, for comparison."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.special import gammaln, logsumexp

from privet.privacy.accountants.base import Accountant, Tally
from privet.privacy.accountants.forms import bare, gaussian_multiplier, pure_epsilon
from privet.privacy.events import (
    Event,
    FixedSizeSampled,
    GroupedL2,
    Laplace,
    PaddedPoisson,
    PoissonSampled,
    RandomizedResponse,
)
from privet.privacy.guarantees import Relation
from privet.privacy.pld.pairs import Array

if TYPE_CHECKING:
    import dp_accounting as dp
    from dp_accounting import NeighboringRelation


def to_dp_event(leaf: Event, relation: Relation) -> dp.DpEvent | None:
    """Translate an event for dp-accounting, with the relation's factor in the noise multiplier; None if it has no such event.

    dp-accounting's RDP and PLD disagree on whether replacing a record doubles the sensitivity. Callers that also pass
    `relation` to dp-accounting have to undo the factor where dp-accounting applies it itself.
    """
    # Imported here because it takes longer to load than all the rest.
    import dp_accounting as dp

    event = bare(leaf)
    sigma = gaussian_multiplier(event, relation)
    if sigma is not None:
        return dp.GaussianDpEvent(sigma) if sigma else dp.NonPrivateDpEvent()
    match event:
        case Laplace():
            epsilon = pure_epsilon(event, relation)
            return dp.LaplaceDpEvent(1 / epsilon) if epsilon else dp.NoOpDpEvent()
        case GroupedL2() as grouped:
            return dp.ZCDpEvent(rho=relation.factor**2 * grouped.rho)
        case RandomizedResponse(noise=noise, buckets=buckets) if relation is Relation.REPLACE_ONE:
            return dp.RandomizedResponseDpEvent(noise, buckets)
        case PoissonSampled(rate=rate, event=inner) if relation is Relation.ADD_REMOVE:
            sampled = to_dp_event(inner, relation)
            return None if sampled is None else dp.PoissonSampledDpEvent(rate, sampled)
        case FixedSizeSampled(size=size, examples=examples, event=inner) if relation is Relation.REPLACE_ONE:
            sampled = to_dp_event(inner, relation)
            return None if sampled is None else dp.SampledWithoutReplacementDpEvent(examples, size, sampled)
    return None


class RDP(Accountant):
    """Renyi divergences at dp-accounting's orders, added up and converted (Canonne, Kamath and Steinke 2020).

    Formal guarantees: an upper bound. Pure-epsilon events are replaced by randomized response, which dominates them.
    Grouped noise is also zCDP; the better of the two bounds is used.
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

    def bound_epsilon(self, events: Tally, delta: float, relation: Relation) -> float:
        from dp_accounting.rdp import rdp_privacy_accountant

        left = delta - _overflow(events)
        if left <= 0:
            return math.inf
        total = self._total(events, relation)
        if np.isinf(total).all():
            return math.inf
        return float(rdp_privacy_accountant.compute_epsilon(self.orders, total, left)[0])

    def bound_delta(self, events: Tally, epsilon: float, relation: Relation) -> float:
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
        # The probability of an abort is subtracted from delta.
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
    """Silence dp-accounting's warnings about orders whose series does not converge: it skips these orders, which is safe."""
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
    """The divergences of randomized response with the event's pure epsilon, sampled if the event is."""
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


ORDERS = 32
"""The highest order of a moment in the paper."""


def log_moment_closed(rate: float, sigma: float, order: int) -> float:
    """alpha(order) = ln E2 = ln sum_k C(l+1, k) (1-q)^(l+1-k) q^k e^(k(k-1)/(2 sigma^2)), with l = order.

    E2 is the larger of the paper's two moments (Mironov, Talwar and Zhang 2019).
    """
    if rate == 0:
        return 0.0
    if rate == 1:
        return order * (order + 1) / (2 * sigma**2)
    k = np.arange(order + 2)
    choose = gammaln(order + 2) - gammaln(k + 1) - gammaln(order + 2 - k)
    weights = np.exp(choose + k * math.log(rate) + (order + 1 - k) * math.log1p(-rate))
    exponents = k * (k - 1) / (2 * sigma**2)
    if exponents[-1] < 600:
        # The weights add up to 1, so log1p keeps the excess over 1 at full precision.
        return float(np.log1p(weights @ np.expm1(exponents)))
    with np.errstate(divide="ignore"):
        return float(logsumexp(np.log(weights) + exponents))


def log_moment_integral(rate: float, sigma: float, order: int, points: int = 20_001) -> float:
    """alpha(order) = ln max(E1, E2) by numerical integration, as the paper computes it.

    E1 = E_mu0 (mu0/mu)^l and E2 = E_mu (mu/mu0)^l, with mu0 = N(0, s^2) and mu = (1-q) mu0 + q N(1, s^2). The trapezoidal rule
    on an analytic, decaying integrand converges faster than any power of the step.
    """
    x = np.linspace(-14 * sigma - 1, order + 1 + 14 * sigma, points)
    step = x[1] - x[0]
    log_base = -(x**2) / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi))
    loss = np.logaddexp(math.log1p(-rate) if rate < 1 else -math.inf, math.log(rate) + (2 * x - 1) / (2 * sigma**2))
    first = logsumexp(log_base - order * loss) + math.log(step)
    second = logsumexp(log_base + (order + 1) * loss) + math.log(step)
    return float(max(first, second))


@lru_cache(maxsize=1024)
def log_moments(rate: float, sigma: float) -> tuple[float, ...]:
    """alpha(1), ..., alpha(32) of one step."""
    return tuple(log_moment_closed(rate, sigma, order) for order in range(1, ORDERS + 1))


class MomentsAccountant(Accountant):
    """The moments accountant of "Deep Learning with Differential Privacy" (Abadi et al. 2016), kept for comparison.

    Log moments of orders 1 to 32 are added over the steps, and delta = min_l e^(alpha(l) - l epsilon).

    Formal guarantees: an upper bound for Poisson-sampled and unsampled Gaussian releases under add/remove (theorem 2 of the
    paper). It is looser than RDP, which has more orders and a better conversion.
    """

    key: ClassVar[str] = "moments"
    name: ClassVar[str] = "moments accountant"

    def why_not(self, leaf: Event, relation: Relation) -> str | None:
        if _step(leaf, relation) is None:
            return f"the paper has moments only for Gaussian noise with Poisson sampling, and not for {relation.value} here"
        return None

    def bound_epsilon(self, events: Tally, delta: float, relation: Relation) -> float:
        if delta == 0:
            return math.inf
        moments = _total(events, relation)
        if not any(moments):
            return 0.0
        return min((alpha - math.log(delta)) / order for order, alpha in enumerate(moments, start=1))

    def bound_delta(self, events: Tally, epsilon: float, relation: Relation) -> float:
        moments = _total(events, relation)
        return math.exp(min(0.0, *(alpha - order * epsilon for order, alpha in enumerate(moments, start=1))))


def _step(leaf: Event, relation: Relation) -> tuple[float, float] | None:
    """The sampling rate and noise multiplier of one step."""
    event = bare(leaf)
    if isinstance(event, PoissonSampled):
        sigma = gaussian_multiplier(event.event, relation)
        allowed = relation is Relation.ADD_REMOVE or event.rate == 1
        return (event.rate, sigma) if sigma is not None and allowed else None
    sigma = gaussian_multiplier(event, relation)
    return None if sigma is None else (1.0, sigma)


def _total(events: Tally, relation: Relation) -> list[float]:
    total = [0.0] * ORDERS
    for leaf, count in events:
        step = _step(leaf, relation)
        assert step is not None
        rate, sigma = step
        if sigma == 0 and rate > 0:
            return [math.inf] * ORDERS
        single = log_moments(rate, sigma) if rate > 0 else (0.0,) * ORDERS
        total = [before + count * one for before, one in zip(total, single, strict=True)]
    return total
