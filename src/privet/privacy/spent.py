"""What was spent: epsilon with everything that must travel with it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from privet.privacy.events import Event
from privet.privacy.guarantees import Guarantee, guarantee_to_dict, said_vacuous
from privet.privacy.relations import Relation

if TYPE_CHECKING:
    from privet.privacy.meaning import Meaning


@dataclass(frozen=True)
class Spent:
    """An (epsilon, delta) statement that can be read on its own.

    Attributes:
        epsilon: an upper bound, at `delta`.
        delta: the delta of the statement.
        relation: which data sets are neighbours.
        unit: what is added, removed or replaced: "record", or what one group key stands for.
        sampling: how records were chosen; empty where every record was used.
        accountant: whose theorem gave epsilon.
        guarantee: what stands behind it.
        conditions: facts that the statement takes as public, for instance the number of records. They say to whom the
            statement speaks; unlike an assumption of the guarantee they do not weaken its proof.
        event: what was done, from which `meaning` follows; None where only epsilon and delta are known.
    """

    epsilon: float
    delta: float
    relation: Relation
    unit: str
    sampling: str
    accountant: str
    guarantee: Guarantee
    conditions: tuple[str, ...] = ()
    event: Event | None = field(default=None, compare=False, repr=False)

    @property
    def meaning(self) -> Meaning:
        """What the statement leaves to an attacker: trade-off curve, advantage, posteriors, groups."""
        from privet.privacy.meaning import meaning_of

        return meaning_of(self)

    @property
    def vacuous(self) -> bool:
        """Whether the budget is too large to promise anything (docs/decisions/0009)."""
        from privet.privacy.meaning import is_vacuous

        return math.isinf(self.epsilon) or is_vacuous(self)

    def __str__(self) -> str:
        # An infinite epsilon is no guarantee that could be proved or claimed.
        standing = "nothing is protected" if math.isinf(self.epsilon) else str(self.guarantee)
        if math.isfinite(self.epsilon) and self.vacuous:
            standing = said_vacuous(self.guarantee)
        said = (
            self.relation.describe(self.unit),
            self.sampling or "no sampling",
            self.accountant,
            standing,
            *self.conditions,
        )
        return f"epsilon = {round_up(self.epsilon)} at delta = {self.delta:g} ({'; '.join(said)})"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, which has no infinity: there it is null, and named under "infinite"."""
        infinite = math.isinf(self.epsilon)
        return {
            "epsilon": None if infinite else self.epsilon,
            **({"infinite": ["epsilon"]} if infinite else {}),
            "delta": self.delta,
            "relation": self.relation.value,
            "unit": self.unit,
            "sampling": self.sampling,
            "accountant": self.accountant,
            **guarantee_to_dict(self.guarantee),
            "conditions": list(self.conditions),
            "vacuous": self.vacuous,
        }


def round_up(epsilon: float) -> str:
    """Three significant digits, and never less than epsilon: a printed bound is still a bound."""
    if not math.isfinite(epsilon) or epsilon <= 0:
        return f"{epsilon:g}"
    if epsilon >= 1000:
        return f"{math.ceil(epsilon)}"
    digits = 2 - math.floor(math.log10(epsilon))
    # The tolerance keeps a value such as 3.0000000000000004 from being printed as 3.01.
    bound = math.ceil(epsilon * 10**digits * (1 - 1e-12)) / 10**digits
    return f"{bound:.3g}" if bound < 1000 else "1000"
