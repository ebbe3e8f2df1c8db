"""The total of a data set's account, and what an event costs it: privacy filters for runs that depend on earlier ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from privet.errors import InputError
from privet.privacy.accountants import UnsupportedEventError
from privet.privacy.accountants.composition import piece_of
from privet.privacy.accountants.rdp import Filter, divergences, gdp_epsilon, renyi_limit
from privet.privacy.events import (
    Adaptive,
    Event,
    NotPrivate,
    PaddedPoisson,
    PoissonSampled,
    PureEpsilon,
    amplified,
    bare,
    tally,
    why_not_inside,
)
from privet.privacy.guarantees import Claimed, Relation
from privet.privacy.pld.composition import renyi_epsilon

ROUNDING = 1e-9
"""How far a sum may pass a limit by rounding, relative to the limit."""
MOST_EPSILON, MOST_DELTA = 1e6, 0.5
"""The largest total of an account, and the largest budget of a run."""
STATED_SHARE = 0.1
"""The share of delta that is kept for charges that state only epsilon and delta."""
_LOWER = 0.6
"""The second order, as a share of the first one (both minus 1): it serves steps from small samples, whose divergence explodes
at high orders."""


@dataclass(frozen=True)
class Price:
    """What something costs an account.

    Attributes:
        divergences: the Renyi divergence of each of the account's orders; may be infinite.
        delta: the probability with which nothing is bounded: the delta of an (epsilon, delta), the chance of an aborted step.
    """

    divergences: tuple[float, ...]
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not all(number >= 0 for number in self._numbers()):  # false for NaN too
            raise InputError(f"A price cannot be {self!r}: its numbers must be 0 or more.")

    @classmethod
    def free(cls, orders: int) -> Price:
        return cls((0.0,) * orders)

    def __add__(self, other: Price) -> Price:
        return Price.of(one + more for one, more in self._pairs(other))

    def __sub__(self, other: Price) -> Price:
        """The difference, never below 0. An infinite price stays infinite."""
        return Price.of(one if math.isinf(one) else max(0.0, one - less) for one, less in self._pairs(other))

    def __or__(self, other: Price) -> Price:
        """The larger of both, number by number."""
        return Price.of(max(pair) for pair in self._pairs(other))

    def scaled(self, factor: float) -> Price:
        return Price.of(factor * number for number in self._numbers())

    def covers(self, other: Price) -> bool:
        """Whether no number of `other` is larger."""
        return all(less <= one for one, less in self._pairs(other))

    @property
    def is_free(self) -> bool:
        return not any(self._numbers())

    def to_list(self) -> list[float | None]:
        """For JSON, which has no infinity: null stands for it."""
        return [number if math.isfinite(number) else None for number in self._numbers()]

    @classmethod
    def from_list(cls, numbers: object, orders: int) -> Price:
        given = numbers if isinstance(numbers, list) else []
        if len(given) != orders + 1 or not all(n is None or type(n) in (int, float) for n in given):
            raise InputError(f"This is not a price for {orders} orders: {numbers!r}.")
        return cls.of(math.inf if number is None else float(number) for number in given)

    @classmethod
    def of(cls, numbers: Iterable[float]) -> Price:
        *found, delta = numbers
        return cls(tuple(found), delta)

    def _numbers(self) -> tuple[float, ...]:
        return (*self.divergences, self.delta)

    def _pairs(self, other: Price) -> Iterator[tuple[float, float]]:
        return zip(self._numbers(), other._numbers(), strict=True)


@dataclass(frozen=True)
class Total:
    """The total that all runs on a data set may spend together, and the filters that enforce it.

    Attributes:
        epsilon, delta, relation, unit: the statement that holds for everything together.
        orders: the orders of the Renyi filters.
        limits: the largest total divergence of each order.
        stated: the part of delta for charges that state only epsilon and delta. The filters share the rest equally.

    Formal guarantees: if all releases together always fit (`fits`), whatever they show and however each one was chosen after
    the earlier ones, then together they are (epsilon, delta)-differentially private. For one order this is the theorem of
    Feldman and Zrnic (2021). For several: stop everything when the sum of one order would pass its limit; what was released
    until then is (epsilon, delta_i)-DP. If at least one order always stays within its limit, then the deltas of the orders
    add up to a delta for the whole (union bound). An (epsilon_i, delta_i)-DP release is a randomized response of epsilon_i
    that reveals everything with probability delta_i (Kairouz, Oh and Viswanath 2015); the probability that this ever happens
    is at most the sum of the delta_i, and without it both data sets have the same factors. Runs at the same time are covered
    as well (Haney et al. 2023: filters of a fixed Renyi order hold for concurrent interactions). See docs/decisions/1902.
    """

    epsilon: float
    delta: float
    relation: Relation
    unit: str
    orders: tuple[float, ...]
    limits: tuple[float, ...]
    stated: float

    @classmethod
    def of(
        cls,
        epsilon: float,
        delta: float,
        relation: Relation | str = Relation.ADD_REMOVE,
        unit: str = "record",
        stated_share: float = STATED_SHARE,
    ) -> Total:
        """The filters for a total; they depend on nothing else, because they have to be fixed before the first release.

        Args:
            epsilon, delta, relation, unit: the total.
            stated_share: the share of delta for charges that state only epsilon and delta.
        """
        if not 0 < epsilon < math.inf:
            raise InputError(f"The epsilon of an account must be a positive number, and is {epsilon!r}.")
        if not 1e-100 < delta < 1:
            raise InputError(f"The delta of an account must be above 1e-100 and below 1, and is {delta!r}.")
        if epsilon > MOST_EPSILON or delta > MOST_DELTA:
            raise InputError(
                f"The total of an account is at most epsilon = {MOST_EPSILON:g} at delta = {MOST_DELTA:g}, and not epsilon = "
                f"{epsilon:g} at delta = {delta:g}: a larger one protects nobody."
            )
        if not 0 <= stated_share < 1:
            raise InputError(f"The share of delta must be at least 0 and below 1, and is {stated_share!r}.")
        if not unit or unit != " ".join(unit.split()):
            raise InputError(f"The unit of an account is a word such as 'record' or 'user', and not {unit!r}.")
        stated = stated_share * delta
        first = Filter.for_budget(epsilon, delta - stated).order or 2.0
        second = round(max(1.1, 1 + _LOWER * (first - 1)), 2)
        for orders in ((first, second), (first,)):
            limits = tuple(renyi_limit(order, epsilon, (delta - stated) / len(orders)) for order in orders)
            if min(limits) > 0 and len(set(orders)) == len(orders):
                break
        else:
            raise InputError(f"An epsilon of {epsilon:g} at delta = {delta:g} is too small for an account.")
        return cls(epsilon, delta, Relation.of(relation), unit, orders, limits, stated)

    def __post_init__(self) -> None:
        if not self.orders or len(self.orders) != len(self.limits) or not 0 <= self.stated < self.delta:
            raise InputError("The filters of this account do not belong together.")
        each = math.log((self.delta - self.stated) / len(self.orders))
        for order, limit in zip(self.orders, self.limits, strict=True):
            if not order > 1 or renyi_epsilon((order - 1) * limit, order - 1, each) > self.epsilon * (1 + ROUNDING):
                raise InputError(f"The filter of order {order:g} allows more than epsilon = {self.epsilon:g}.")

    @property
    def theorem(self) -> str:
        orders = [f"{order:g}" for order in self.orders]
        return f"Renyi filter{'s' if len(orders) > 1 else ''} of order {' and '.join(orders)}"

    @property
    def free(self) -> Price:
        """The price of nothing."""
        return Price.free(len(self.orders))

    def fits(self, price: Price) -> bool:
        """Whether a sum of prices is within the total: delta, and the limit of at least one order."""
        return self.share(price) <= 1 + ROUNDING

    def share(self, price: Price) -> float:
        """The share of the total that a sum of prices takes; above 1, no statement holds."""
        if price.delta and not self.stated:
            return math.inf
        stated = price.delta / self.stated if price.delta else 0.0
        return max(stated, min(used / limit for used, limit in zip(price.divergences, self.limits, strict=True)))

    def room(self, used: Price, delta: float | None = None) -> float:
        """The epsilon of the largest single Gaussian release that still fits, as a guide for the next run."""
        left = [
            2 * max(0.0, limit - spent) / order
            for order, limit, spent in zip(self.orders, self.limits, used.divergences, strict=True)
        ]
        mu = math.sqrt(max(left))
        return gdp_epsilon(mu, self.delta if delta is None else delta) if mu and self.fits(used) else 0.0

    def at_least(self, epsilon: float, delta: float) -> Price:
        """A lower bound of the price of any run whose exact epsilon at `delta` is at least `epsilon`.

        The divergence of an order bounds epsilon from above, so a run with that epsilon has at least the divergence that
        gives it.
        """
        found = (renyi_limit(order, epsilon, delta) for order in self.orders)
        return Price(tuple(max(0.0, least) for least in found))

    def price(self, event: Event) -> Price:
        """What an event costs. Raises `UnsupportedEventError` if no theorem bounds it, or if its cost is only claimed."""
        if isinstance(event.guarantee, Claimed):
            raise UnsupportedEventError(
                f"An account counts only proved costs, and the privacy of this run is {event.guarantee}. Run it without the "
                "account on data that need no protection."
            )
        total = self.free
        for leaf, count in tally(event):
            single = _price(leaf.event if isinstance(leaf, Adaptive) else leaf, self.orders, self.relation)
            if isinstance(single, str):
                raise UnsupportedEventError(
                    f"The account is for neighbors that {self.relation.describe(self.unit)}, and no theorem bounds the "
                    f"cost of {type(bare(leaf)).__name__}: {single}."
                )
            total += single.scaled(count)
        return total

    def stated_price(self, epsilon: float, delta: float = 0.0, relation: Relation | str | None = None) -> Price:
        """The price of an (epsilon, delta)-DP release that was proved elsewhere, for `relation` (the account's own by default).

        Replacing a record is removing it and adding another, so it costs (2 epsilon, (1 + e^epsilon) delta).
        """
        if not (epsilon >= 0 and 0 <= delta <= 1):
            raise InputError(f"There is no release of epsilon = {epsilon!r} at delta = {delta!r}.")
        kind = self.relation if relation is None else Relation.of(relation)
        if kind is not self.relation:
            if self.relation is Relation.ADD_REMOVE:
                raise UnsupportedEventError(
                    "A statement about replacing a record bounds nothing for adding or removing one, which this account counts."
                )
            epsilon, delta = 2 * epsilon, min(1.0, (1 + math.exp(min(epsilon, 700.0))) * delta)
        return Price(_response(epsilon, self.orders), delta)


@lru_cache(maxsize=4096)
def _price(leaf: Event, orders: tuple[float, ...], relation: Relation) -> Price | str:
    """The price of one use of `leaf`, or the reason why there is none."""
    if isinstance(bare(leaf), NotPrivate):
        return Price((math.inf,) * len(orders))
    if reason := why_not_inside(leaf):
        return reason
    event, delta = bare(leaf), 0.0
    if isinstance(event, PaddedPoisson):
        delta = event.overflow
        event = PoissonSampled(event.rate, event.event)
    bounds = [found for found in (_direct(event, orders, relation), _replaced(event, orders, relation)) if found]
    if bounds:
        return Price(tuple(min(each) for each in zip(*bounds, strict=True)), delta)
    piece = piece_of(event, 1, relation)
    if piece is None or piece.sigma is not None:
        return f"no Renyi divergence is known for it under {relation.value}"
    return Price(_response(amplified(piece.epsilon, piece.rate), orders), min(1.0, delta + piece.extra))


def _direct(event: Event, orders: tuple[float, ...], relation: Relation) -> tuple[float, ...] | None:
    found = divergences(event, relation, orders)
    return None if found is None else tuple(max(0.0, float(one)) if one == one else math.inf for one in found)


def _replaced(event: Event, orders: tuple[float, ...], relation: Relation) -> tuple[float, ...] | None:
    """Replacing a record as removing it and adding another: the triangle inequality of Renyi divergences.

    D_a(P|Q) <= (a - 1/2) / (a - 1) D_2a(P|R) + D_(2a-1)(R|Q) (Mironov 2017, proposition 11; Cauchy-Schwarz).
    """
    if relation is not Relation.REPLACE_ONE:
        return None
    sums = []
    for order in orders:
        both = _direct(event, (2 * order, 2 * order - 1), Relation.ADD_REMOVE)
        if both is None:
            return None
        sums.append((order - 0.5) / (order - 1) * both[0] + both[1])
    return tuple(sums)


def _response(epsilon: float, orders: tuple[float, ...]) -> tuple[float, ...]:
    """The divergences of randomized response, which dominates every mechanism of that pure epsilon."""
    if epsilon == 0:
        return (0.0,) * len(orders)
    if not math.isfinite(epsilon):
        return (math.inf,) * len(orders)
    found = _direct(PureEpsilon(epsilon), orders, Relation.ADD_REMOVE)
    assert found is not None
    # A divergence is at most epsilon: for large epsilon the numbers overflow.
    return tuple(min(one, epsilon) for one in found)
