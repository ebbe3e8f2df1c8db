"""What stands behind a privacy statement: a proof, a proof under assumptions, or only a claim."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from privet.errors import InputError


@dataclass(frozen=True)
class Proved:
    """A theorem covers exactly what was run."""

    def __str__(self) -> str:
        return "proved"


@dataclass(frozen=True)
class Assumed:
    """A theorem covers what was run if the named assumptions hold; nothing in the run enforces them.

    Attributes:
        assumptions: each one a clause that can be read after "assuming".
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
    """Somebody published the number, and the argument for it does not hold for what was run.

    Attributes:
        by: who claims it.
        because: why the claim does not hold.
    """

    by: str
    because: str

    def __post_init__(self) -> None:
        if not self.by or not self.because:
            raise InputError("Claimed needs both who claims it and why the claim does not hold.")

    def __str__(self) -> str:
        return f"only claimed by {self.by}: {self.because}"


Guarantee = Proved | Assumed | Claimed


def weakest(guarantees: Iterable[Guarantee]) -> Guarantee:
    """The guarantee of a whole from those of its parts: one claim makes a claim, assumptions add up."""
    found = tuple(dict.fromkeys(guarantees))
    claims = [guarantee for guarantee in found if isinstance(guarantee, Claimed)]
    if claims:
        by = dict.fromkeys(claim.by for claim in claims)
        because = dict.fromkeys(claim.because for claim in claims)
        return Claimed(" and ".join(by), "; ".join(because))
    assumptions = [text for guarantee in found if isinstance(guarantee, Assumed) for text in guarantee.assumptions]
    return Assumed(*assumptions) if assumptions else Proved()


def said_vacuous(guarantee: Guarantee) -> str:
    """A guarantee in words where the budget is too large to promise anything: what stands behind it is still named."""
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
