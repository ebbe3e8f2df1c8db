"""The neighboring relation of a privacy statement, and its guarantee: proved, assumed or only claimed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from privet.errors import InputError


class Relation(StrEnum):
    """Which data sets are neighbors in an (epsilon, delta) statement.

    A contribution of norm at most C moves a sum by at most C when a record is added or removed, and by at most 2C when a
    record is replaced. Events state their noise relative to C; accountants apply the factor.
    """

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"

    def describe(self, unit: str = "record") -> str:
        return f"{'add/remove' if self is Relation.ADD_REMOVE else 'replace'} one {unit}"

    @property
    def factor(self) -> float:
        """How far a sum can move, in units of one contribution: 1 or 2."""
        return 1.0 if self is Relation.ADD_REMOVE else 2.0

    @classmethod
    def of(cls, relation: Relation | str) -> Relation:
        try:
            return cls(relation)
        except ValueError:
            known = ", ".join(item.value for item in cls)
            raise InputError(f"There is no relation {relation!r}: there are {known}.") from None


@dataclass(frozen=True)
class Proved:
    """A theorem covers exactly this run."""

    def __str__(self) -> str:
        return "proved"


@dataclass(frozen=True)
class Assumed:
    """A theorem covers the run if the named assumptions hold; nothing in the run enforces them.

    Attributes:
        assumptions: clauses that can follow the word "assuming".
    """

    assumptions: tuple[str, ...]

    def __init__(self, *assumptions: str) -> None:
        if not assumptions or not all(isinstance(text, str) and text for text in assumptions):
            raise InputError("Assumed needs at least one assumption, each a non-empty sentence.")
        object.__setattr__(self, "assumptions", tuple(dict.fromkeys(assumptions)))

    def __str__(self) -> str:
        return "assuming " + " and ".join(self.assumptions)


@dataclass(frozen=True)
class Claimed:
    """Somebody published this number, but the argument behind it does not hold for this run.

    Attributes:
        by: who made the claim.
        because: why the claim does not hold.
    """

    by: str
    because: str

    def __post_init__(self) -> None:
        if not self.by or not self.because:
            raise InputError("Claimed needs both: who made the claim, and why it does not hold.")

    def __str__(self) -> str:
        return f"only claimed by {self.by}: {self.because}"


Guarantee = Proved | Assumed | Claimed


def weakest(guarantees: Iterable[Guarantee]) -> Guarantee:
    """Combine the guarantees of parts: any claim makes the whole a claim, and assumptions add up."""
    found = tuple(dict.fromkeys(guarantees))
    claims = [guarantee for guarantee in found if isinstance(guarantee, Claimed)]
    if claims:
        by = dict.fromkeys(claim.by for claim in claims)
        because = dict.fromkeys(claim.because for claim in claims)
        return Claimed(" and ".join(by), "; ".join(because))
    assumptions = [text for guarantee in found if isinstance(guarantee, Assumed) for text in guarantee.assumptions]
    return Assumed(*assumptions) if assumptions else Proved()


def said_vacuous(guarantee: Guarantee) -> str:
    """Describe a guarantee whose budget is too large to promise anything."""
    match guarantee:
        case Proved():
            return f"{guarantee}, but vacuous: it promises nothing in practice"
        case Assumed():
            return f"{guarantee}, but vacuous: even then it promises nothing in practice"
        case Claimed():
            return f"{guarantee}; and vacuous: even if the claim held, it would promise nothing in practice"


def guarantee_to_dict(guarantee: Guarantee) -> dict[str, Any]:
    match guarantee:
        case Proved():
            return {"guarantee": "proved"}
        case Assumed(assumptions=assumptions):
            return {"guarantee": "assumed", "assumptions": list(assumptions)}
        case Claimed(by=by, because=because):
            return {"guarantee": "claimed", "by": by, "because": because}


def guarantee_from_dict(data: dict[str, Any]) -> Guarantee:
    match data:
        case {"guarantee": "proved"}:
            return Proved()
        case {"guarantee": "assumed", "assumptions": [*assumptions]}:
            return Assumed(*assumptions)
        case {"guarantee": "claimed", "by": str(by), "because": str(because)}:
            return Claimed(by, because)
    raise InputError(f"This is not a guarantee: {data!r}.")
