"""The privacy statement of a run: epsilon with everything that belongs to it; and the choice of delta."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from privet.errors import InputError, PrivetWarning
from privet.privacy.events import Event
from privet.privacy.guarantees import Guarantee, Relation, guarantee_to_dict, said_vacuous

if TYPE_CHECKING:
    from privet.privacy.meaning import Meaning


@dataclass(frozen=True)
class Spent:
    """A complete (epsilon, delta) statement.

    Attributes:
        epsilon: an upper bound at `delta`.
        delta: the delta of the statement.
        relation: which data sets are neighbors.
        unit: what is added, removed or replaced, such as "record" or "user".
        sampling: how records were sampled; empty if every record was used.
        accountant: the accountant that computed epsilon.
        guarantee: whether the statement is proved, assumed or claimed.
        conditions: facts that the statement takes as public, such as the number of records. Unlike the assumptions of the
            guarantee they do not weaken the proof.
        event: what was done to the data; `meaning` is computed from it. None if only epsilon and delta are known.
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
        """What the statement allows an attacker: trade-off curve, advantage, posteriors, groups."""
        from privet.privacy.meaning import meaning_of

        return meaning_of(self)

    @property
    def vacuous(self) -> bool:
        """Whether the budget is too large to promise anything (docs/decisions/0009)."""
        from privet.privacy.meaning import is_vacuous

        return math.isinf(self.epsilon) or is_vacuous(self)

    def __str__(self) -> str:
        # If epsilon is infinite, there is nothing to prove or claim.
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
        """Convert to plain data for JSON; an infinite epsilon is null and is listed under "infinite"."""
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
    """Format epsilon with three significant digits, rounded up, so that the printed number is still a bound."""
    if not math.isfinite(epsilon) or epsilon <= 0:
        return f"{epsilon:g}"
    if epsilon >= 1000:
        return f"{math.ceil(epsilon)}"
    digits = 2 - math.floor(math.log10(epsilon))
    # The tolerance keeps a value such as 3.0000000000000004 from being printed as 3.01.
    bound = math.ceil(epsilon * 10**digits * (1 - 1e-12)) / 10**digits
    return f"{bound:.3g}" if bound < 1000 else "1000"


def usual_delta(count: int) -> float:
    """The default delta for `count` records (or users): a power of ten with delta * count <= 0.6, at most 1e-5.

    A delta of 1 / count allows a mechanism that publishes one record in full. The limit 0.6 comes from the first paper on
    DP-SGD (1e-5 for 60,000 records). `count` must be public, because delta is part of the statement.
    """
    if count < 1:
        raise InputError(f"There must be at least one record, not {count}.")
    digits = 5
    while 10 * count > 6 * 10**digits:  # whole numbers: 1e-5 * 60,000 is more than 0.6 in floating point
        digits += 1
    return float(f"1e-{digits}")


def delta_warning(delta: float, count: int, unit: str = "record") -> str:
    """A warning for the user if delta is 1 / count or more; otherwise an empty text.

    Args:
        delta: the delta of the statement.
        count: the public number of records, or users.
        unit: "record" or "user".
    """
    if count < 1 or delta * count < 1:
        return ""
    return (
        f"delta = {delta:g} is not below 1/N = {1 / count:g}, where N is the number of {unit}s. By convention delta is well "
        f"below 1/N: a mechanism that publishes one random {unit} in full has delta = 1/N. Use {usual_delta(count):g} or less."
    )


def warn_of_delta(delta: float, count: int, unit: str = "record") -> None:
    """Warn (`PrivetWarning`) if delta is 1 / count or more."""
    if said := delta_warning(delta, count, unit):
        warnings.warn(said, PrivetWarning, stacklevel=4)  # the caller of make_private
