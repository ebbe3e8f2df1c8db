"""The audited claim, and the result: a lower bound beside the claim and the highest bound that the audit could reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import wraps
from typing import Any, ClassVar, ParamSpec

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privet.audit.bounds import Counts, OneRun, TwoSampleBound, ceiling
from privet.errors import InputError, PrivetError
from privet.privacy import Assumed, Event, Guarantee, Ledger, Relation, Spent, accountant_named
from privet.training.releases import kept_here

REFUSED = "refused"
"""The method of an audit whose every run was refused, so that nothing was released."""
CRASHED = "crashed"
"""The method of an audit whose every run ended with an error that is no refusal: it saw nothing."""
CONTRADICTION = "a contradiction"
"""The method of a refutation that needs no statistics."""

Claimable = Event | Ledger | Spent | float
"""A ledger, an event or a statement, from which epsilon follows; or a bare epsilon, for mechanisms from elsewhere."""


@dataclass(frozen=True)
class Claim:
    """An epsilon at a delta, the sentence that states it, and the guarantee in that sentence, in words."""

    MAY_BE_INFINITE: ClassVar = ("epsilon",)

    epsilon: float
    delta: float
    statement: str
    guarantee: str = ""

    @classmethod
    def of(cls, claimed: Claimable, delta: float, relation: Relation | str = Relation.ADD_REMOVE) -> Claim:
        """The claim at `delta`. A claim by events holds at every delta, so an audit may choose the one where it sees most."""
        if isinstance(claimed, Ledger):
            return cls.of(claimed.spent(delta), delta)
        if isinstance(claimed, Event):
            return cls.of(accountant_named("pld").spent(claimed, delta, Relation.of(relation)), delta)
        if isinstance(claimed, Spent):
            if claimed.delta != delta:
                raise InputError(f"The statement is at delta = {claimed.delta:g} and the audit at {delta:g}: use one.")
            return cls(claimed.epsilon, delta, str(claimed), str(claimed.guarantee))
        if isinstance(claimed, bool) or not isinstance(claimed, int | float) or math.isnan(claimed) or claimed < 0:
            raise InputError(
                f"A claim is an event, a ledger, a statement or an epsilon of at least 0, not {claimed!r}."
            )
        said = f"epsilon = {claimed:g} at delta = {delta:g} (as stated; {Relation.of(relation).describe()})"
        return cls(float(claimed), delta, said)

    def within(self, run: Guarantee) -> Claim:
        """The same claim as part of a run: if the run's guarantee rests on assumptions, so does the claim's."""
        if not isinstance(run, Assumed) or not self.guarantee:
            return self
        statement = self.statement.replace(f"; {self.guarantee}", f"; {run}", 1)
        return replace(self, statement=statement, guarantee=str(run))


@dataclass(frozen=True)
class Audit:
    """A lower bound on epsilon. `str` gives it as a sentence, `to_dict` as plain data.

    Formal guarantees: if the claim holds, `refuted` is true in at most ``1 - confidence`` of all audits. An audit that is
    not refuted proves nothing: another attack, or more draws, may see more.

    Attributes:
        name: the mechanism, in words.
        claim: what is claimed of it.
        lower_bound: epsilon is at least this, with `confidence`.
        ceiling: the bound that a perfect attack would have reached with as many draws.
        confidence: of the bound.
        method: whose theorem gave the bound.
        evidence: what was drawn, in words.
        setting: the records and what the attacker sees, in words; empty if the name says it.
        audited: the parts of a run that were audited, in words; empty if the name says it.
        not_audited: the parts of the run that a stand-in replaced, in words. The verdict does not cover them.
        power: how much the audit could have seen, in words: draws or canaries, and the ceiling.
        date: when the audit was made, in ISO format (UTC); empty for audits of version 0.1.0.
        command: the command that made it, if there was one.
    """

    MAY_BE_INFINITE: ClassVar = ("lower_bound", "ceiling")

    name: str
    claim: Claim
    lower_bound: float
    ceiling: float
    confidence: float
    method: str
    evidence: str
    setting: str = ""
    audited: str = ""
    not_audited: str = ""
    power: str = ""
    date: str = field(default="", compare=False)
    command: tuple[str, ...] = field(default=(), compare=False)

    @property
    def claimed_epsilon(self) -> float:
        return self.claim.epsilon

    @property
    def delta(self) -> float:
        return self.claim.delta

    @property
    def refuted(self) -> bool:
        """Whether the bound exceeds the claim."""
        return self.lower_bound > self.claim.epsilon

    @property
    def powerless(self) -> bool:
        """Whether it could not have refuted the claim, whatever the code did: it is no evidence for the claim."""
        return not self.refuted and (self.method in (REFUSED, CRASHED) or self.ceiling <= self.claim.epsilon)

    @property
    def verdict(self) -> str:
        if self.refuted:
            return f"refuted at {100 * self.confidence:g} %"
        if self.method == REFUSED:
            return "refused: nothing was released"
        if self.method == CRASHED:
            return "no result: every run crashed"
        covered = "consistent for the parts that were audited" if self.not_audited else "consistent"
        if self.ceiling <= self.claim.epsilon:
            return f"{covered}, and this audit could not have refuted it"
        return covered

    def by(self, command: Sequence[str]) -> Audit:
        """The same audit, with the command that made it."""
        return replace(self, command=tuple(command))

    def within(self, run: Guarantee) -> Audit:
        """The same audit, whose claim is not stronger than the guarantee of the run."""
        return replace(self, claim=self.claim.within(run))

    def leaving_out(self, *parts: str) -> Audit:
        """The same audit with further parts of the run that it does not cover, in words; empty words are left out."""
        return replace(self, not_audited="; ".join(filter(None, (self.not_audited, *parts))))

    def __str__(self) -> str:
        parts = f"Audited: {self.audited}. " if self.audited else ""
        parts += f"Not audited: {self.not_audited}. " if self.not_audited else ""
        return (
            f"{self.name}: epsilon is at least {round_down(self.lower_bound)} at delta = {self.delta:g} with "
            f"{100 * self.confidence:g} % confidence ({self.method}; {self.evidence}; a perfect attack would show "
            f"{round_down(self.ceiling)}). Claimed: {self.claim.statement}. {parts}Verdict: {self.verdict}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON. JSON has no infinity: an infinite number is null, and its name is listed under "infinite"."""
        numbers = {
            "claimed_epsilon": self.claim.epsilon,
            "lower_bound": self.lower_bound,
            "ceiling": self.ceiling,
        }
        infinite = [name for name, value in numbers.items() if math.isinf(value)]
        return {
            "mechanism": self.name,
            "setting": self.setting,
            **{name: None if name in infinite else value for name, value in numbers.items()},
            **({"infinite": infinite} if infinite else {}),
            "delta": self.delta,
            "claim": self.claim.statement,
            "guarantee": self.claim.guarantee,
            "confidence": self.confidence,
            "method": self.method,
            "evidence": self.evidence,
            "audited": self.audited,
            "not_audited": self.not_audited,
            "power": self.power,
            "date": self.date,
            "command": list(self.command),
            "refuted": self.refuted,
            "verdict": self.verdict,
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Audit:
        """Read what `to_dict` wrote, also in version 0.1.0, which did not say what was audited, when and by which command."""
        try:
            claim = Claim(_number(plain["claimed_epsilon"]), plain["delta"], plain["claim"], plain.get("guarantee", ""))
            bounds = _number(plain["lower_bound"]), _number(plain["ceiling"])
            words = (plain["confidence"], plain["method"], plain["evidence"], plain["setting"])
            more = {name: plain.get(name, "") for name in ("audited", "not_audited", "power", "date")}
            return cls(plain["mechanism"], claim, *bounds, *words, **more, command=tuple(plain.get("command", ())))
        except (KeyError, TypeError) as error:
            raise InputError(f"This is not an audit: {error} is missing or has the wrong type.") from None


Given = ParamSpec("Given")


def resumable(audit: Callable[Given, Audit]) -> Callable[Given, Audit]:
    """Make an audit once in a command: if the command is stopped and started again, it reads the result (`privet.training`)."""

    @wraps(audit)
    def kept(*given: Given.args, **named: Given.kwargs) -> Audit:
        if not (here := kept_here()).active:
            return audit(*given, **named)
        return Audit.from_dict(here.part(lambda: audit(*given, **named).to_dict()))

    return kept


def now() -> str:
    """The date of an audit that is made now."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def contradicted(name: str, claim: Claim, confidence: float, evidence: str, setting: str) -> Audit:
    """The refutation by something that cannot happen in a sound run: no draws are counted, and no bound is needed."""
    return Audit(name, claim, math.inf, math.inf, confidence, CONTRADICTION, evidence, setting, date=now())


def round_down(epsilon: float) -> str:
    """Three significant digits, never above epsilon: a printed bound is still a bound."""
    if not math.isfinite(epsilon) or epsilon <= 0:
        return f"{epsilon:g}"
    digits = 2 - math.floor(math.log10(epsilon))
    return f"{math.floor(epsilon * 10**digits * (1 + 1e-12)) / 10**digits:.3g}"


def _number(value: float | None) -> float:
    return math.inf if value is None else float(value)


Array = NDArray[np.float64]
CANDIDATES = 400
"""Thresholds that are tried."""
SHARES = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05)
"""Shares of the canaries that are tried as the number of guesses."""


def audit_scores(
    members: ArrayLike,
    others: ArrayLike,
    *,
    claim: Claim,
    bound: TwoSampleBound,
    name: str,
    setting: str = "",
    chosen_on: float = 0.25,
) -> Audit:
    """The audit of scores that were drawn with the record (`members`) and without it (`others`); a higher score means with.

    The first `chosen_on` of each side choose the threshold; only the rest is counted.
    """
    inside, outside = _checked(members), _checked(others)
    cuts = [round(chosen_on * len(side)) for side in (inside, outside)]
    if min(cuts) < 1 or cuts[0] == len(inside) or cuts[1] == len(outside):
        raise InputError("An audit needs draws to choose its threshold on and draws to count: take more draws.")
    counted = inside[cuts[0] :], outside[cuts[1] :]
    threshold = choose_threshold(inside[: cuts[0]], outside[: cuts[1]], bound)
    counts = Counts(
        int((counted[0] >= threshold).sum()), len(counted[0]), int((counted[1] >= threshold).sum()), len(counted[1])
    )
    most = ceiling(bound, counts.members, counts.others)
    evidence = f"{counts.members:,} draws with the record and {counts.others:,} without"
    return Audit(
        name=name,
        claim=claim,
        lower_bound=bound(counts),
        ceiling=most,
        confidence=bound.confidence,
        method=bound.method,
        evidence=evidence,
        setting=setting,
        power=f"{evidence}; at most epsilon {round_down(most)} could have been shown",
        date=now(),
    )


def choose_threshold(members: Array, others: Array, bound: TwoSampleBound) -> float:
    """The threshold with the best bound on these draws; scores of at least the threshold count as draws with the record."""
    pooled = np.unique(np.concatenate([members, others]))
    if len(pooled) > CANDIDATES:
        # Evenly by rank, and all of the highest and lowest: the best threshold often lies far out.
        edge = CANDIDATES // 4
        ranks = np.linspace(0, len(pooled) - 1, CANDIDATES // 2).round().astype(np.int64)
        ranks = np.unique(np.concatenate([np.arange(edge), ranks, np.arange(len(pooled) - edge, len(pooled))]))
        pooled = pooled[ranks]
    caught = len(members) - np.searchsorted(np.sort(members), pooled, side="left")
    accused = len(others) - np.searchsorted(np.sort(others), pooled, side="left")
    return float(pooled[int(np.argmax(bound.merit(caught, len(members), accused, len(others))))])


def audit_guesses(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    claim: Claim,
    bound: OneRun,
    name: str,
    setting: str = "",
    guesses: int | None = None,
    seed: int = 0,
) -> Audit:
    """The audit of one run: the highest scores are guessed in, as many of the lowest out, and the rest are not guessed.

    Formal guarantees: the number of guesses is given, or chosen on a quarter of the canaries, which are then not guessed.
    """
    values, coins = np.asarray(scores, dtype=np.float64), np.asarray(included, dtype=bool)
    if values.ndim != 1 or values.shape != coins.shape or len(values) < 8:
        raise InputError("One run needs a score and a coin for each of at least 8 canaries.")
    if np.isnan(values).any():
        raise PrivetError("Scores of canaries are not a number: the score or the trained model is bad.")
    # Tied scores are guessed in random order.
    order = np.random.default_rng(seed).permutation(len(values))
    values, coins = values[order], coins[order]
    canaries = len(values)
    if guesses is None:
        cut = canaries // 4
        share = max(SHARES, key=lambda one: bound(*_right(values[:cut], coins[:cut], one * cut), canaries))
        values, coins = values[cut:], coins[cut:]
        guesses = round(share * len(values))
    correct, guesses = _right(values, coins, guesses)
    most = bound.ceiling(guesses, canaries)
    return Audit(
        name=name,
        claim=claim,
        lower_bound=bound(correct, guesses, canaries),
        ceiling=most,
        confidence=bound.confidence,
        method=bound.method,
        evidence=f"{canaries:,} canaries, {guesses:,} guessed, {correct:,} of them right",
        setting=setting,
        power=f"{canaries:,} canaries, {guesses:,} guessed; at most epsilon {round_down(most)} could have been shown",
        date=now(),
    )


def _right(scores: Array, coins: NDArray[np.bool_], guesses: float) -> tuple[int, int]:
    """How many guesses were right, and how many there were."""
    half = max(1, int(guesses // 2))
    ranked = coins[np.argsort(scores, kind="stable")]
    out, inside = ranked[:half], ranked[len(ranked) - half :]
    return int((~out).sum() + inside.sum()), 2 * half


def _checked(scores: ArrayLike) -> Array:
    array = np.asarray(scores, dtype=np.float64)
    if array.ndim != 1:
        raise InputError(f"Scores are one row of numbers, one for each draw, not of shape {array.shape}.")
    if np.isnan(array).any():
        raise PrivetError(f"{int(np.isnan(array).sum())} scores are not a number: the score or the mechanism is bad.")
    return array
