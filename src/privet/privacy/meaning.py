"""The meaning of a privacy statement: what it allows an attacker, computed from the events of the run, and in plain words.

The base is the trade-off curve: the error rates of the best test for whether one record was used.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from privet.errors import InputError
from privet.privacy.accountants import Accountant, accountant_named
from privet.privacy.events import Event, GroupedL2, NotPrivate, gaussian_multiplier, pure_epsilon, tally
from privet.privacy.guarantees import Assumed, Claimed, Relation, guarantee_to_dict
from privet.privacy.pld.engine import deltas_of, epsilon_of
from privet.privacy.pld.pairs import Array, NoPairError, UnboundedError, group_pairs
from privet.privacy.spent import Spent, round_up

if TYPE_CHECKING:
    from privet.privacy.spent import Spent

VACUOUS_FALSE_POSITIVES = 1e-5
VACUOUS_TRUE_POSITIVES = 0.5
"""A statement is vacuous if it allows a test this good: one that finds half of the people in the data and is practically
never wrong about the others (docs/decisions/0009)."""


@dataclass(frozen=True)
class TradeOff:
    """The trade-off curve that follows from (epsilon, delta) statements about one mechanism.

    One statement gives the curve of (epsilon, delta)-differential privacy. The statements at all epsilons, the privacy
    profile, give the mechanism's own curve.

    Formal guarantees: no test for the presence of one record, nor for its absence, has a smaller false negative rate than
    `false_negative_rate`. Each statement bounds every test (Kairouz, Oh and Viswanath 2015, theorem 2.1), so a finite part
    of a profile never underestimates the attacker. The whole profile is exact for the worse of the two directions (Dong,
    Roth and Su 2022, proposition 2.13). The curve is convex, falling, at most 1 - a, and symmetric.

    Attributes:
        epsilons: finite numbers of at least 0, ascending.
        deltas: the delta at each epsilon.
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    def __init__(self, statements: Iterable[tuple[float, float]]) -> None:
        """Take (epsilon, delta) statements in any order; those with an infinite epsilon say nothing and are left out."""
        best: dict[float, float] = {}
        for epsilon, delta in statements:
            if not epsilon >= 0 or not 0 <= delta <= 1:
                raise InputError(
                    f"A statement needs an epsilon of at least 0 and a delta in [0, 1], not {epsilon}, {delta}."
                )
            if epsilon < math.inf:
                best[float(epsilon)] = min(float(delta), best.get(float(epsilon), 1.0))
        if not best:
            best = {0.0: 1.0}
        epsilons = sorted(best)
        # A delta that holds at one epsilon holds at every larger epsilon.
        deltas = np.minimum.accumulate([best[epsilon] for epsilon in epsilons])
        object.__setattr__(self, "epsilons", tuple(epsilons))
        object.__setattr__(self, "deltas", tuple(deltas.tolist()))

    def merged(self, other: TradeOff) -> TradeOff:
        """The curve of all statements of both."""
        pairs = [*zip(self.epsilons, self.deltas, strict=True), *zip(other.epsilons, other.deltas, strict=True)]
        return TradeOff(pairs)

    def false_negative_rates(self, false_positive_rates: npt.ArrayLike) -> Array:
        """The trade-off function at each rate: the smallest false negative rate that a test can have."""
        alpha = np.atleast_1d(np.asarray(false_positive_rates, dtype=np.float64))
        if not ((alpha >= 0) & (alpha <= 1)).all():
            raise InputError("A false positive rate is a number from 0 to 1.")
        epsilon, delta = np.array(self.epsilons), np.array(self.deltas)
        with np.errstate(divide="ignore", over="ignore"):
            grown = np.exp(
                np.minimum(epsilon + np.log(alpha)[:, None], 1.0)
            )  # e^epsilon alpha, which says nothing above 1
        steep = 1 - delta - grown
        flat = np.exp(-epsilon) * (1 - delta - alpha[:, None])
        return np.asarray(np.maximum(0.0, np.maximum(steep, flat).max(axis=1)))

    def false_negative_rate(self, false_positive_rate: float) -> float:
        return float(self.false_negative_rates(false_positive_rate)[0])

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The largest true positive rate of a test with that false positive rate."""
        if not 0 <= false_positive_rate <= 1:
            raise InputError("A false positive rate is a number from 0 to 1.")
        # Not one minus the false negative rate: that would round rates as small as delta.
        return float(self._steepness(np.array([false_positive_rate], dtype=np.float64))[0][0])

    @property
    def least_error(self) -> float:
        """The smallest sum of both error rates that a test can have."""
        epsilon, delta = np.array(self.epsilons), np.array(self.deltas)
        return float((2 * (1 - delta) * np.exp(-epsilon) / (1 + np.exp(-epsilon))).max())

    @property
    def advantage(self) -> float:
        """The largest true positive rate minus false positive rate, which is delta at epsilon 0."""
        return 1 - self.least_error

    def odds_factor(self, failure: float) -> float:
        """The factor by which a result can raise the odds that a record was used, except with probability `failure`.

        Formal guarantees: for the privacy loss L, delta(e) >= P[L >= t] (1 - e^(e - t)), so P[L >= t] is at most `failure`
        for t = e - ln(1 - delta/failure). The factor is infinite if no statement has a delta below `failure`.
        """
        if not 0 < failure < 1:
            raise InputError(f"The probability of failure must be above 0 and below 1, and is {failure!r}.")
        epsilon, delta = np.array(self.epsilons), np.array(self.deltas)
        useful = delta < failure
        if not useful.any():
            return math.inf
        loss = float((epsilon[useful] - np.log1p(-delta[useful] / failure)).min())
        return math.exp(loss) if loss < 700 else math.inf

    def posterior(self, prior: float, failure: float) -> float:
        """The largest belief after the release of somebody whose belief was `prior`, except with probability `failure`."""
        if not 0 <= prior <= 1:
            raise InputError(f"A prior is a probability, and this is {prior!r}.")
        if prior in (0.0, 1.0):
            return prior
        factor = self.odds_factor(failure)
        return 1.0 if factor == math.inf else factor * prior / (factor * prior + 1 - prior)

    def epsilon(self, delta: float) -> float:
        """The least epsilon that follows at `delta`; infinite if none does."""
        at = next((i for i, found in enumerate(self.deltas) if found <= delta), None)
        if at is None:
            return math.inf
        high, least = self.epsilons[at], self.deltas[at]
        if at == 0:
            return high
        low, most = self.epsilons[at - 1], self.deltas[at - 1]
        # Between two statements, a weighted mean of them holds: delta is linear in e^epsilon.
        share = (delta - least) / (most - least)
        return high + math.log1p(share * math.expm1(low - high))

    def group(self, size: int) -> TradeOff:
        """The curve for `size` records at once, for any mechanism.

        Formal guarantees: if T gives the largest true positive rate, a chain of `size` neighbors applies T `size` times
        (Dong, Roth and Su 2022, theorem 2.14). For a single statement this is (k epsilon, delta (1 + e^epsilon + ...)).
        Each statement here is a tangent of that curve; its slope is the product of the slopes of T along the chain.
        """
        if size < 1:
            raise InputError(f"A group has at least one record, not {size!r}.")
        found = list(self._multiplied(size))
        alpha = np.concatenate(([0.0], np.geomspace(1e-15, 1.0, 600)))
        rate, slope = alpha.copy(), np.zeros_like(alpha)
        for _ in range(size):
            rate, step = self._steepness(rate)
            slope += step
        steep = (slope >= 0) & (slope < 700)
        delta = np.clip(rate[steep] - np.exp(slope[steep]) * alpha[steep], 0.0, 1.0)
        # Allow for rounding: two numbers near 1 were subtracted.
        found += zip(slope[steep].tolist(), np.minimum(1.0, delta + 1e-15 * size).tolist(), strict=True)
        return TradeOff(found)

    def _multiplied(self, size: int) -> Iterable[tuple[float, float]]:
        for epsilon, delta in zip(self.epsilons, self.deltas, strict=True):
            grown = delta * sum(math.exp(i * epsilon) for i in range(size)) if (size - 1) * epsilon < 600 else 1.0
            yield size * epsilon, 1.0 if delta and not grown < 1 else min(1.0, grown if delta else 0.0)

    def _steepness(self, rate: Array) -> tuple[Array, Array]:
        """The largest true positive rate at each false positive rate, and ln of the slope of its bound there."""
        epsilon, delta = np.array(self.epsilons), np.array(self.deltas)
        with np.errstate(divide="ignore", over="ignore"):
            steep = np.exp(np.minimum(epsilon + np.log(rate)[:, None], 1.0)) + delta
        flat = 1 - np.exp(-epsilon) * (1 - delta - rate[:, None])
        lines, slopes = np.concatenate((steep, flat), axis=1), np.concatenate((epsilon, -epsilon))
        best = lines.argmin(axis=1)
        reached = lines[np.arange(len(rate)), best]
        return np.minimum(reached, 1.0), np.where(reached >= 1, -math.inf, slopes[best])

    @property
    def vacuous(self) -> bool:
        """Whether the statements promise nothing that anybody can rely on (docs/decisions/0009)."""
        return self.true_positive_rate(VACUOUS_FALSE_POSITIVES) >= VACUOUS_TRUE_POSITIVES


FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)
PRIORS = (0.01, 0.1, 0.5, 0.9)
GROUP_SIZES = (2, 4)
STATEMENT_ALONE = "the (epsilon, delta) statement alone"
GENERAL = "the curve for one, by the general theorem for groups"

POINTS = 300
"""The number of epsilons at which a profile is computed."""
LARGEST_EPSILON = 16.0
"""Statements at larger epsilons do not bound a test with error rates of 1e-6 or more."""
NEGLIGIBLE = 1e-10
"""Neither do statements with a smaller delta."""


@dataclass(frozen=True)
class Group:
    """A statement for several records at once.

    Attributes:
        size: the number of records.
        epsilon: an upper bound at `delta`.
        delta: as for one record, or larger if nothing follows at that delta.
        curve: the trade-off curve of a test for all of them together.
        source: how it was computed.
    """

    size: int
    epsilon: float
    delta: float
    curve: TradeOff
    source: str


@dataclass(frozen=True)
class Meaning:
    """What a statement allows an attacker who knows everything except whether one record was used.

    Formal guarantees: every number is an upper bound of what the attacker can reach, and holds if the statement holds. Of a
    claim only its (epsilon, delta) is used, not the events of the run.

    Attributes:
        spent: the statement.
        curve: the trade-off curve of the best test.
        source: how the curve was computed.
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
        """The probability with which `posterior` may fail: twice delta, because at delta one statement bounds no odds."""
        return min(0.5, 2 * self.spent.delta) or 1e-9

    def posterior(self, prior: float, failure: float | None = None) -> float:
        """The largest belief after the release of somebody whose belief was `prior`, except with probability `failure`."""
        return self.curve.posterior(prior, self.failure if failure is None else failure)

    @property
    def mu(self) -> float | None:
        """The exact mu of Gaussian differential privacy; None unless the run has only Gaussian releases without sampling."""
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

        None with sampling, because a sampled Gaussian has no useful rho.
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
        """The statement for `size` records at once: computed from the run if possible, otherwise by a general theorem."""
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
        """Convert to plain data for JSON; infinite or missing numbers are null."""
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
    """The meaning of a statement, from its event if it has one, otherwise from its epsilon and delta alone."""
    stated = TradeOff([(spent.epsilon, spent.delta)])
    profile = None
    if spent.event is not None and not isinstance(spent.guarantee, Claimed):
        profile = _profile(spent.event, spent.relation)
    if profile is None:
        return Meaning(spent, stated, STATEMENT_ALONE)
    curve, name = profile
    return Meaning(spent, curve.merged(stated), f"every step of the run, by {name}")


def is_vacuous(spent: Spent) -> bool:
    """Whether a statement promises nothing."""
    # Usually epsilon and delta alone show that it promises something, which is faster than the profile.
    return TradeOff([(spent.epsilon, spent.delta)]).vacuous and meaning_of(spent).vacuous


@lru_cache(maxsize=256)
def _profile(event: Event, relation: Relation) -> tuple[TradeOff, str] | None:
    """The privacy profile of an event by its tightest accountant; None if no accountant bounds it."""
    accountant = _tightest(event, relation)
    if accountant is None:
        return None
    widest = accountant.spent(event, NEGLIGIBLE, relation)
    epsilons = epsilons_to(widest.epsilon)
    deltas = accountant.deltas(event, epsilons, relation)
    return TradeOff(zip(epsilons.tolist(), deltas.tolist(), strict=True)), widest.accountant


def epsilons_to(largest: float) -> Array:
    """The epsilons at which to compute a profile up to `largest`, closer together where it is steep."""
    return np.asarray(min(largest, LARGEST_EPSILON) * np.linspace(0.0, 1.0, POINTS) ** 2)


def _tightest(event: Event, relation: Relation) -> Accountant | None:
    """GDP if it applies, since it is exact; otherwise PLD, which covers nearly everything; RDP for the rest."""
    return next((one for one in map(accountant_named, ("gdp", "pld", "rdp")) if one.supports(event, relation)), None)


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


PEOPLE = 1000
FAMILY = 4
WIDTH = 100


def explain(spent: Spent) -> str:
    """Explain what the statement lets an attacker learn about one person, and what it does not promise."""
    found = spent.meaning
    parts = [_lead(found), _attacker(spent), _finding(found), _guessing(found), _believing(found)]
    parts += [_family(found, found.group(FAMILY)), _not_promised(spent)]
    return "\n\n".join(parts)


def _lead(found: Meaning) -> str:
    spent = found.spent
    said = [
        f"WHAT THIS MEANS. The privacy of one {spent.unit} is measured by two numbers. Epsilon ({_size(spent.epsilon)} "
        f"here) says how strongly the release may depend on that {spent.unit}: 0 means not at all. Delta "
        f"({_chance(spent.delta)} here) is the small chance that the limit set by epsilon fails."
    ]
    if math.isinf(spent.epsilon) and not found.curve.vacuous:
        said.append(
            "THIS STATEMENT IS VACUOUS: at this delta epsilon is infinite, and nothing is promised. Ask for a larger delta; the "
            "numbers below do not depend on delta."
        )
    elif found.vacuous:
        said.append(
            "THIS STATEMENT IS VACUOUS: it promises nothing in practice. It allows an attack that finds "
            f"{_of(found.true_positive_rate(VACUOUS_FALSE_POSITIVES), 100_000)} people who are in the data while it wrongly "
            f"names {_of(VACUOUS_FALSE_POSITIVES, 100_000)} who are not{_mark(found)}. Treat the release like the records "
            "themselves."
        )
    match spent.guarantee:
        case Assumed(assumptions=assumptions):
            said.append(f'Each number marked "assumed" holds only if {" and ".join(assumptions)}.')
        case Claimed(by=by, because=because):
            said.append(
                f'Each number marked "claimed" is claimed by {by}, but the claim does not hold for this run: {because}. '
                "The attacker may do better than every limit below."
            )
    return "\n\n".join(_wrapped(text) for text in said)


def _attacker(spent: Spent) -> str:
    add_remove, one = spent.relation is Relation.ADD_REMOVE, _belonging(spent)
    question = (
        f"whether one person's {one} used"
        if add_remove
        else f"which of two possible {_two(spent)} of one person was used"
    )
    return _wrapped(
        f"THE ATTACKER wants to know {question}. Think of the worst one: they know {_all_others(spent)}, the method, its "
        "settings and everything that was released. Only the random noise is hidden from them. "
        f"{_condition(spent)} attacker does better than the numbers below, with any computer and any other data, now or later."
    )


def _finding(found: Meaning) -> str:
    """The trade-off curve as a table of counts."""
    yes, no = _sides(found.spent)
    lines = [
        _wrapped(
            f"FINDING PEOPLE. There are {PEOPLE:,} people {yes}, and {PEOPLE:,} {no}. The attacker names those who seem to be "
            f"of the first kind. The more people they are willing to name wrongly, the more they find{_mark(found)}:"
        ),
        "",
        f"    {'wrongly named':<20}{'found, at most':<28}found by guessing blindly",
    ]
    for rate in FALSE_POSITIVE_RATES:
        most = _of(found.true_positive_rate(rate))
        lines.append(f"    {_of(rate):<20}{most + _mark(found):<28}{_of(rate)}")
    return "\n".join(lines)


def _guessing(found: Meaning) -> str:
    add_remove = found.spent.relation is Relation.ADD_REMOVE
    what = (
        "whether the person is in the data or not"
        if add_remove
        else f"which of two possible {_two(found.spent)} is used"
    )
    right = (1 + found.advantage) / 2
    return _wrapped(
        f"GUESSING ABOUT ONE PERSON. A coin decides in secret {what}. The attacker guesses right in at most {_of(right)} "
        f"such cases{_mark(found)}. Guessing blindly is right in {_of(0.5)}."
    )


def _believing(found: Meaning) -> str:
    """The table of priors and posteriors."""
    what = "that the person is in"
    if found.spent.relation is not Relation.ADD_REMOVE:
        what = f"that the first of the two {_two(found.spent)} was used"
    lines = [
        _wrapped(
            f"CHANGING THEIR MIND. This is how sure the attacker is {what}, before and after they see the release. The "
            f"limit fails with a chance of at most {_chance(found.failure)}{_mark(found)}:"
        ),
        "",
        f"    {'sure before':<20}sure afterwards, at most",
    ]
    for prior in PRIORS:
        after = found.posterior(prior)
        lines.append(f"    {_percent(prior):<20}{_percent(after, up=True)}{_mark(found)}")
    return "\n".join(lines)


def _family(found: Meaning, group: Group) -> str:
    spent, rate = found.spent, 0.01
    who = "A FAMILY" if spent.unit == "user" else "A FAMILY, or one person with several records,"
    together = f"{who} is protected less. For {group.size} {spent.unit}s together "
    if group.delta >= 1 or math.isinf(group.epsilon):
        return _wrapped(f"{together}nothing at all is promised.")
    delta = "the same delta" if group.delta == spent.delta else f"delta = {round_up(group.delta)}"
    return _wrapped(
        f"{together}the statement is epsilon = {round_up(group.epsilon)} at {delta}{_mark(found)}, computed from "
        f"{group.source}. An attacker who wrongly names {_of(rate)} such families finds at most "
        f"{_of(group.curve.true_positive_rate(rate))}{_mark(found)}; of single {spent.unit}s it was "
        f"{_of(found.true_positive_rate(rate))}{_mark(found)}."
    )


def _not_promised(spent: Spent) -> str:
    points = [
        "Facts about people in general. If the records show that smokers fall ill more often, the release may say so, and it "
        "says so about every smoker, whether they are in the data or not.",
        f"More than one {spent.unit} at a time: see the family above.",
        "Other releases from the same records. Their costs add up; this statement counts only its own run.",
        "Safe storage. The records themselves, and everything computed from them without noise, must still be kept safe.",
        "That the code did what the settings say. A proof is about the method; an audit tests the code.",
        "Anything about how accurate or fair the result is.",
    ]
    if spent.relation is Relation.REPLACE_ONE or any("number of" in fact for fact in spent.conditions):
        points.insert(1, f"The number of {spent.unit}s: it counts as public here.")
    if isinstance(spent.guarantee, Claimed):
        points.insert(0, "Any of the numbers above: they are claimed, not proved.")
    listed = [textwrap.fill(text, WIDTH, initial_indent="  - ", subsequent_indent="    ") for text in points]
    return "\n".join(["WHAT IT DOES NOT PROMISE", *listed])


def _sides(spent: Spent) -> tuple[str, str]:
    if spent.relation is Relation.ADD_REMOVE:
        return f"whose {_belonging(spent)} used", f"whose {_belonging(spent)} not used"
    if spent.unit == "user":
        return "whose first set of records was used", "whose second set was used instead"
    return f"whose first {spent.unit} was used", f"whose second {spent.unit} was used instead"


def _belonging(spent: Spent) -> str:
    """One person's part of the data, with its verb."""
    return "records were" if spent.unit == "user" else f"{spent.unit} was"


def _two(spent: Spent) -> str:
    """The two alternatives for one person's part of the data."""
    return "sets of records" if spent.unit == "user" else f"{spent.unit}s"


def _all_others(spent: Spent) -> str:
    return "the records of all other people" if spent.unit == "user" else "all other records"


def _condition(spent: Spent) -> str:
    match spent.guarantee:
        case Assumed():
            return "If the assumptions hold, no"
        case Claimed():
            return "If the claim held, no"
    return "No"


def _mark(found: Meaning) -> str:
    """The mark beside every number that is not proved."""
    match found.spent.guarantee:
        case Assumed():
            return " (assumed)"
        case Claimed():
            return " (claimed)"
    return ""


def _of(share: float, people: int = PEOPLE) -> str:
    """A share of `people`, rounded up, so that the printed number is still a bound."""
    return f"{min(people, math.ceil(share * people * (1 - 1e-12))):,} of {people:,}"


def _percent(share: float, *, up: bool = False) -> str:
    percent = 100 * share
    if up:
        percent = min(100.0, math.ceil(percent * 10 * (1 - 1e-12)) / 10)
    return f"{percent:.1f}".removesuffix(".0") + " %"


def _size(epsilon: float) -> str:
    return "infinite" if math.isinf(epsilon) else round_up(epsilon)


def _chance(probability: float) -> str:
    """A small probability as "1 in N", a larger one as a percentage."""
    if probability > 0.1 or probability <= 0:
        return _percent(probability)
    return f"1 in {math.floor(1 / probability * (1 + 1e-12)):,}" if probability > 1e-12 else f"{probability:.3g}"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH)
