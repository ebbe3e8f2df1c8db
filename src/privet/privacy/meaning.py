"""What a statement means: what it leaves to an attacker, computed from what was done to the data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from privet.privacy.accountants import Accountant, accountant_named
from privet.privacy.accountants._forms import gaussian_multiplier, pure_epsilon
from privet.privacy.events import Event, GroupedL2, NotPrivate, tally
from privet.privacy.group import group_pairs
from privet.privacy.guarantees import Claimed, guarantee_to_dict
from privet.privacy.pld.dominating import NoPairError, UnboundedError
from privet.privacy.pld.engine import deltas_of, epsilon_of
from privet.privacy.relations import Relation
from privet.privacy.tradeoff import Array, TradeOff

if TYPE_CHECKING:
    from privet.privacy.spent import Spent

FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
PRIORS = (0.01, 0.1, 0.5, 0.9)
GROUP_SIZES = (2, 4)
STATEMENT_ALONE = "the (epsilon, delta) statement alone"
GENERAL = "the curve for one, by the general theorem for groups"

POINTS = 300
"""At how many epsilons the profile is computed."""
LARGEST_EPSILON = 16.0
"""Larger ones do not bound a test whose error rates are 1e-6 or more."""
NEGLIGIBLE = 1e-10
"""Nor do those at which delta is below this."""


@dataclass(frozen=True)
class Group:
    """A statement for several records at once.

    Attributes:
        size: how many records.
        epsilon: an upper bound, at `delta`.
        delta: that of the statement for one record; a larger one where nothing follows at that.
        curve: the trade-off curve of a test for all of them.
        source: how it was computed.
    """

    size: int
    epsilon: float
    delta: float
    curve: TradeOff
    source: str


@dataclass(frozen=True)
class Meaning:
    """What a statement leaves to an attacker who knows everything but whether one record was used.

    Formal guarantees: every number is an upper bound of what the attacker reaches, and as good as `spent.guarantee`: it
    holds if the statement does. A claim gives no more than its (epsilon, delta), so only these two are used of it.

    Attributes:
        spent: the statement.
        curve: the trade-off curve of the best test.
        source: what the curve was computed from.
    """

    spent: Spent
    curve: TradeOff
    source: str

    @property
    def vacuous(self) -> bool:
        return math.isinf(self.spent.epsilon) or self.curve.vacuous

    @property
    def advantage(self) -> float:
        """The largest true positive rate minus false positive rate."""
        return self.curve.advantage

    def true_positive_rate(self, false_positive_rate: float) -> float:
        return self.curve.true_positive_rate(false_positive_rate)

    @property
    def failure(self) -> float:
        """The probability with which `posterior` may fail: twice delta. At delta itself one statement bounds no odds."""
        return min(0.5, 2 * self.spent.delta) or 1e-9

    def posterior(self, prior: float, failure: float | None = None) -> float:
        """The most that somebody believes after the release who believed `prior` before, except with probability `failure`."""
        return self.curve.posterior(prior, self.failure if failure is None else failure)

    @property
    def mu(self) -> float | None:
        """The mu of Gaussian differential privacy, exact; None where the run is not one of Gaussians without sampling."""
        event = self._event
        if event is None or any(isinstance(leaf, NotPrivate) for leaf, _ in tally(event)):
            return None
        sigmas = [(gaussian_multiplier(leaf, self.spent.relation), count) for leaf, count in tally(event)]
        if any(not sigma for sigma, _ in sigmas):
            return None
        return math.sqrt(math.fsum(count / sigma**2 for sigma, count in sigmas if sigma))

    @property
    def rho(self) -> float | None:
        """The rho of zero-concentrated differential privacy: mu^2/2 for Gaussians, an upper bound for pure epsilons.

        None with sampling: a sampled Gaussian has no rho worth stating.
        """
        event = self._event
        if event is None:
            return None
        parts = [(_rho(leaf, self.spent.relation), count) for leaf, count in tally(event)]
        if any(rho is None for rho, _ in parts):
            return None
        total = math.fsum(count * rho for rho, count in parts if rho is not None)
        return total if math.isfinite(total) else None

    def group(self, size: int) -> Group:
        """The statement for `size` records at once: computed from the run where that is possible, or by a general theorem."""
        epsilon, delta = self.spent.epsilon, self.spent.delta
        general = self.curve.group(size)
        event = self._event
        own = None if event is None else _group_profile(event, size, self.spent.relation, delta)
        if own is not None:
            curve = own.merged(general)
            source = f"the run itself, for {size} {self.spent.unit}s at once"
            return Group(size, curve.epsilon(delta), delta, curve, source)
        if general.epsilon(delta) < math.inf:
            return Group(size, general.epsilon(delta), delta, general, GENERAL)
        grown = TradeOff([(epsilon, delta)]).group(size)
        return Group(size, size * epsilon, min(grown.deltas), grown.merged(general), GENERAL)

    @property
    def _event(self) -> Event | None:
        return None if isinstance(self.spent.guarantee, Claimed) else self.spent.event

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; what is infinite or does not exist is null."""
        groups = [self.group(size) for size in GROUP_SIZES]
        return {
            **guarantee_to_dict(self.spent.guarantee),
            "vacuous": self.vacuous,
            "computed_from": self.source,
            "advantage": self.advantage,
            "true_positive_rates": {f"{rate:g}": self.true_positive_rate(rate) for rate in FALSE_POSITIVE_RATES},
            "posteriors": {
                "failure": self.failure,
                "from_prior": {f"{prior:g}": self.posterior(prior) for prior in PRIORS},
            },
            "groups": [
                {
                    "size": group.size,
                    "epsilon": group.epsilon if math.isfinite(group.epsilon) else None,
                    "delta": group.delta,
                    "advantage": group.curve.advantage,
                    "computed_from": group.source,
                }
                for group in groups
            ],
            "mu": self.mu,
            "rho": self.rho,
        }


def meaning_of(spent: Spent) -> Meaning:
    """What a statement means; by its event where it has one, otherwise by its epsilon and delta alone."""
    stated = TradeOff([(spent.epsilon, spent.delta)])
    profile = None
    if spent.event is not None and not isinstance(spent.guarantee, Claimed):
        profile = _profile(spent.event, spent.relation)
    if profile is None:
        return Meaning(spent, stated, STATEMENT_ALONE)
    curve, name = profile
    return Meaning(spent, curve.merged(stated), f"every step of the run, by {name}")


def is_vacuous(spent: Spent) -> bool:
    """Whether a statement promises nothing; its own epsilon and delta often show already that it does promise something."""
    return TradeOff([(spent.epsilon, spent.delta)]).vacuous and meaning_of(spent).vacuous


@lru_cache(maxsize=256)
def _profile(event: Event, relation: Relation) -> tuple[TradeOff, str] | None:
    """The privacy profile of an event, by the accountant that is tightest for it; None where none bounds it."""
    accountant = _tightest(event, relation)
    if accountant is None:
        return None
    widest = accountant.spent(event, NEGLIGIBLE, relation)
    epsilons = epsilons_to(widest.epsilon)
    deltas = accountant.deltas(event, epsilons, relation)
    return TradeOff(zip(epsilons.tolist(), deltas.tolist(), strict=True)), widest.accountant


def epsilons_to(largest: float) -> Array:
    """Where a profile is computed whose deltas matter up to an epsilon of `largest`: closer together where it is steep."""
    return np.asarray(min(largest, LARGEST_EPSILON) * np.linspace(0.0, 1.0, POINTS) ** 2)


def _tightest(event: Event, relation: Relation) -> Accountant | None:
    """GDP is exact where it applies; PLD covers nearly everything."""
    return next((one for one in map(accountant_named, ("gdp", "pld")) if one.supports(event, relation)), None)


@lru_cache(maxsize=256)
def _group_profile(event: Event, size: int, relation: Relation, delta: float) -> TradeOff | None:
    try:
        pairs = tuple(group_pairs(event, size, relation))
    except (NoPairError, UnboundedError):
        return None
    largest = epsilon_of(pairs, delta)
    epsilons = epsilons_to(largest)
    deltas = np.maximum(*deltas_of(pairs, epsilons, larger=True))
    return TradeOff([(largest, delta), *zip(epsilons.tolist(), deltas.tolist(), strict=True)])


def _rho(leaf: Event, relation: Relation) -> float | None:
    sigma = gaussian_multiplier(leaf, relation)
    if sigma is not None:
        return 1 / (2 * sigma**2) if sigma else math.inf
    epsilon = pure_epsilon(leaf, relation)
    if epsilon is None:
        return None
    rho = epsilon**2 / 2
    return min(rho, relation.factor**2 * leaf.rho) if isinstance(leaf, GroupedL2) else rho
