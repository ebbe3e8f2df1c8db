"""Gaussian and Renyi differential privacy, the moments accountant, and privacy filters.

GDP (Dong, Roth and Su 2022) is used where it is exact; RDP is computed by dp-accounting; the moments accountant, its
predecessor, is there for comparison. A privacy filter gives the cost of a run whose noise, steps or end were chosen after
earlier releases were seen.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy.special import gammaln, log_ndtr, logsumexp

from privet.privacy.accountants.base import ACCOUNTANTS, Accountant, Tally, UnsupportedEventError
from privet.privacy.events import (
    Event,
    FixedSizeSampled,
    GroupedL2,
    Laplace,
    PaddedPoisson,
    PoissonSampled,
    RandomizedResponse,
    RepeatAndSelect,
    bare,
    gaussian_multiplier,
    pure_epsilon,
    tally,
    why_not_inside,
)
from privet.privacy.guarantees import Relation
from privet.privacy.pld.composition import renyi_epsilon
from privet.privacy.pld.pairs import Array
from privet.privacy.spent import Spent

if TYPE_CHECKING:
    import dp_accounting as dp
    from dp_accounting import NeighboringRelation


class GDP(Accountant):
    """Gaussian releases compose to one Gaussian release with mu = sqrt(sum 1/sigma^2).

    Formal guarantees: exact for Gaussian releases without sampling. The central-limit approximation for sampled releases
    under-reports, so it is not offered.
    """

    key: ClassVar[str] = "gdp"
    name: ClassVar[str] = "GDP"

    def why_not(self, leaf: Event, relation: Relation) -> str | None:
        if gaussian_multiplier(leaf, relation) is None:
            return "only Gaussian releases without sampling are exactly GDP"
        return None

    def bound_epsilon(self, events: Tally, delta: float, relation: Relation) -> float:
        return gdp_epsilon(total_mu(events, relation), delta)

    def bound_delta(self, events: Tally, epsilon: float, relation: Relation) -> float:
        mu = total_mu(events, relation)
        return 1.0 if mu == math.inf else gdp_delta(mu, epsilon)


def gdp_epsilon(mu: float, delta: float) -> float:
    """An upper bound of the epsilon of a Gaussian trade-off at `delta`, by bisection."""
    if delta == 0 or mu == math.inf:
        return math.inf
    if gdp_delta(mu, 0.0) <= delta:
        return 0.0
    # delta(epsilon) <= Phi(mu/2 - epsilon/mu) <= e^(-(epsilon/mu - mu/2)^2 / 2) gives the upper end.
    low, high = 0.0, mu * (mu / 2 + math.sqrt(-2 * math.log(delta)))
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if gdp_delta(mu, middle) <= delta else (middle, high)
    return high


def gdp_delta(mu: float, epsilon: float) -> float:
    """Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), plus an allowance for rounding."""
    if epsilon == math.inf:
        return 0.0
    log_first = float(log_ndtr(mu / 2 - epsilon / mu))
    log_second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    # The logarithms are exact to a unit of the last place, but their difference may be tiny.
    rounding = 2.0**-52 * (4 + abs(log_first) + abs(epsilon) + abs(log_second))
    share = -math.expm1(min(0.0, log_second - log_first))
    return min(1.0, math.exp(log_first) * (share + rounding))


def total_mu(events: Tally, relation: Relation) -> float:
    """The mu of all releases together, the root of the sum of 1/sigma^2, computed without overflow or underflow."""
    rates = []
    for leaf, count in events:
        sigma = gaussian_multiplier(leaf, relation)
        assert sigma is not None
        if sigma < 1e-300:
            return math.inf
        rates.append((1 / sigma, count))
    largest = max(rate for rate, _ in rates)
    return largest * math.sqrt(math.fsum(count * (rate / largest) ** 2 for rate, count in rates))


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
    Grouped noise is also zCDP; the better of the two bounds is used. The best of a random number of trials costs what Papernot
    and Steinke (2022) prove; the delta of one trial that their theorem for the Poisson distribution needs is PLD's where that is
    smaller than what follows from the divergences.
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


_NEGLIGIBLE = 1e-12
"""A delta of one trial below this is too small to be worth a better bound."""


@lru_cache(maxsize=4096)
def divergences(leaf: Event, relation: Relation, orders: tuple[float, ...]) -> tuple[float, ...] | None:
    """The Renyi divergence of each order of one use of `leaf`; None if none is known."""
    from dp_accounting.rdp import RdpAccountant

    event = bare(leaf)
    if isinstance(event, RepeatAndSelect):
        return _best(event, relation, orders)
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


def _best(event: RepeatAndSelect, relation: Relation, orders: tuple[float, ...]) -> tuple[float, ...] | None:
    """The divergences of the best of many trials; None if those of a trial are not known."""
    from dp_accounting.rdp import rdp_privacy_accountant

    # The theorem bounds one order with the help of others: those of the accountant are used, whichever are asked for.
    others = (*orders, *rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
    grid = tuple(sorted({float(order) for order in others if order > 1}))
    singles = [_of_trial(trial, relation, grid) for trial in event.events]
    if any(single is None for single in singles):
        return None
    costs = [single for single in singles if single is not None]
    trials, deltas = event.trials, np.zeros(len(grid))
    if trials.shape is None:
        pairs = zip(event.events, costs, strict=True)
        deltas = np.max([_deltas(trial, relation, grid, cost, trials.epsilons(grid)) for trial, cost in pairs], axis=0)
    total = dict(zip(grid, trials.best(grid, np.max(costs, axis=0), deltas).tolist(), strict=True))
    return tuple(total.get(float(order), math.inf) for order in orders)


def _of_trial(event: Event, relation: Relation, orders: tuple[float, ...]) -> Array | None:
    """The divergences of one trial; None for parts without any, and for those that also need a delta or a filter."""
    total = np.zeros(len(orders))
    for leaf, count in tally(event):
        reason = why_not_inside(leaf)
        single = None if reason or isinstance(bare(leaf), PaddedPoisson) else divergences(leaf, relation, orders)
        if single is None:
            return None
        total += count * np.asarray(single)
    return total


def _deltas(event: Event, relation: Relation, orders: tuple[float, ...], cost: Array, epsilons: Array) -> Array:
    """The delta of one trial at each epsilon: that of its divergences, or PLD's where it is smaller."""
    from dp_accounting.rdp import rdp_privacy_accountant

    known = np.array([float(rdp_privacy_accountant.compute_delta(orders, cost, epsilon)[0]) for epsilon in epsilons])
    pld, large = ACCOUNTANTS["pld"], known > _NEGLIGIBLE
    if large.any() and pld.supports(event, relation):
        known[large] = np.minimum(known[large], pld.deltas(event, epsilons[large], relation))
    return known


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
        return cls(order, renyi_limit(order, epsilon, delta), relation)

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


def renyi_limit(order: float, epsilon: float, delta: float) -> float:
    """The divergence of an order that gives epsilon at delta (Canonne, Kamath and Steinke 2020, proposition 12)."""
    return epsilon - math.log((order - 1) / order) + (math.log(delta) + math.log(order)) / (order - 1)


@lru_cache(maxsize=256)
def _order(epsilon: float, delta: float) -> float:
    """The order that allows the smallest Gaussian noise."""
    orders = [1 + step / 10 for step in range(1, 100)] + [float(order) for order in range(11, 513)]
    return max(orders, key=lambda order: renyi_limit(order, epsilon, delta) / order)


@lru_cache(maxsize=256)
def _largest_mu(epsilon: float, delta: float) -> float:
    low, high = 0.0, 1.0
    while gdp_epsilon(high, delta) <= epsilon:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gdp_epsilon(middle, delta) <= epsilon else (low, middle)
    return low
