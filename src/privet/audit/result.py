"""The result of an audit: a lower bound beside the claim and beside the highest bound that the audit could have reached."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from privet.audit.claim import Claim
from privet.errors import InputError

REFUSED = "refused"
"""The method of an audit whose every run was refused, so that nothing was released."""
CRASHED = "crashed"
"""The method of an audit whose every run ended with an error that is no refusal: it saw nothing."""


@dataclass(frozen=True)
class Audit:
    """A lower bound on epsilon. `str` says it in a sentence, `to_dict` as plain data.

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
        if self.ceiling <= self.claim.epsilon:
            return "consistent, and this audit could not have refuted it"
        return "consistent"

    def __str__(self) -> str:
        return (
            f"{self.name}: epsilon is at least {round_down(self.lower_bound)} at delta = {self.delta:g} with "
            f"{100 * self.confidence:g} % confidence ({self.method}; {self.evidence}; a perfect attack would show "
            f"{round_down(self.ceiling)}). Claimed: {self.claim.statement}. Verdict: {self.verdict}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, which has no infinity: there it is null, and named under "infinite"."""
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
            "refuted": self.refuted,
            "verdict": self.verdict,
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Audit:
        """The audit that `to_dict` wrote."""
        try:
            claim = Claim(_number(plain["claimed_epsilon"]), plain["delta"], plain["claim"])
            bounds = _number(plain["lower_bound"]), _number(plain["ceiling"])
            words = (plain["confidence"], plain["method"], plain["evidence"], plain["setting"])
            return cls(plain["mechanism"], claim, *bounds, *words)
        except (KeyError, TypeError) as error:
            raise InputError(f"This is not an audit: {error} is missing or of another kind.") from None


def round_down(epsilon: float) -> str:
    """Three significant digits, and never more than epsilon: a printed bound is still a bound."""
    if not math.isfinite(epsilon) or epsilon <= 0:
        return f"{epsilon:g}"
    digits = 2 - math.floor(math.log10(epsilon))
    return f"{math.floor(epsilon * 10**digits * (1 + 1e-12)) / 10**digits:.3g}"


def _number(value: float | None) -> float:
    return math.inf if value is None else float(value)
