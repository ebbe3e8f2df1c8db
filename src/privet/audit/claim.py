"""What is audited: the epsilon that is claimed at a delta, computed from events wherever there are any."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from privet.errors import InputError
from privet.privacy import Event, Ledger, Relation, Spent, accountant_named

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
        """The claim at `delta`. A claim by events holds at every delta, so an audit may choose the one it sees best."""
        if isinstance(claimed, Ledger):
            return cls.of(claimed.spent(delta), delta)
        if isinstance(claimed, Event):
            return cls.of(accountant_named("pld").spent(claimed, delta, Relation.of(relation)), delta)
        if isinstance(claimed, Spent):
            if claimed.delta != delta:
                raise InputError(f"The statement is at delta = {claimed.delta:g} and the audit at {delta:g}: take one.")
            return cls(claimed.epsilon, delta, str(claimed))
        if isinstance(claimed, bool) or not isinstance(claimed, int | float) or math.isnan(claimed) or claimed < 0:
            raise InputError(
                f"A claim is an event, a ledger, a statement or an epsilon of at least 0, not {claimed!r}."
            )
        said = f"epsilon = {claimed:g} at delta = {delta:g} (as stated; {Relation.of(relation).describe()})"
        return cls(float(claimed), delta, said)
