"""The claim that is audited, and the result: a lower bound beside the claim and the highest bound that the audit could reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, ClassVar

from privet.errors import InputError
from privet.privacy import Event, Ledger, Relation, Spent, accountant_named

REFUSED = "refused"
"""The method of an audit whose every run was refused, so that nothing was released."""
CRASHED = "crashed"
"""The method of an audit whose every run ended with an error that is no refusal: it saw nothing."""
CONTRADICTION = "a contradiction"
"""The method of a refutation that needs no statistics."""

Claimed = Event | Ledger | Spent | float
"""A ledger, an event or a statement, from which epsilon follows; or a bare epsilon, for mechanisms from elsewhere."""


@dataclass(frozen=True)
class Claim:
    """An epsilon at a delta, and the sentence that states it."""

    MAY_BE_INFINITE: ClassVar = ("epsilon",)

    epsilon: float
    delta: float
    statement: str

    @classmethod
    def of(cls, claimed: Claimed, delta: float, relation: Relation | str = Relation.ADD_REMOVE) -> Claim:
        """The claim at `delta`. A claim by events holds at every delta, so an audit may choose the one where it sees most."""
        if isinstance(claimed, Ledger):
            return cls.of(claimed.spent(delta), delta)
        if isinstance(claimed, Event):
            return cls.of(accountant_named("pld").spent(claimed, delta, Relation.of(relation)), delta)
        if isinstance(claimed, Spent):
            if claimed.delta != delta:
                raise InputError(f"The statement is at delta = {claimed.delta:g} and the audit at {delta:g}: use one.")
            return cls(claimed.epsilon, delta, str(claimed))
        if isinstance(claimed, bool) or not isinstance(claimed, int | float) or math.isnan(claimed) or claimed < 0:
            raise InputError(
                f"A claim is an event, a ledger, a statement or an epsilon of at least 0, not {claimed!r}."
            )
        said = f"epsilon = {claimed:g} at delta = {delta:g} (as stated; {Relation.of(relation).describe()})"
        return cls(float(claimed), delta, said)


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
        setting: the records and what the attacker sees, in words; empty where the name says it.
        audited: the parts of a run that were audited, in words; empty where the name says it.
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
            claim = Claim(_number(plain["claimed_epsilon"]), plain["delta"], plain["claim"])
            bounds = _number(plain["lower_bound"]), _number(plain["ceiling"])
            words = (plain["confidence"], plain["method"], plain["evidence"], plain["setting"])
            more = {name: plain.get(name, "") for name in ("audited", "not_audited", "power", "date")}
            return cls(plain["mechanism"], claim, *bounds, *words, **more, command=tuple(plain.get("command", ())))
        except (KeyError, TypeError) as error:
            raise InputError(f"This is not an audit: {error} is missing or has the wrong type.") from None


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
