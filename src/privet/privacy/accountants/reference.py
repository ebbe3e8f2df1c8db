"""dp-accounting's own PLD accountant, kept as the reference for Privet's faster one."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privet.privacy.accountants._base import Accountant, Tally
from privet.privacy.accountants._dp_accounting import to_dp_event
from privet.privacy.events import Event
from privet.privacy.relations import Relation

if TYPE_CHECKING:
    from dp_accounting.pld import PLDAccountant


class ReferencePLD(Accountant):
    """Privacy loss distributions by dp-accounting (Doroshenko et al. 2022), add/remove only.

    Formal guarantees: an upper bound, up to floating point.
    """

    key: ClassVar[str] = "pld-reference"
    name: ClassVar[str] = "dp-accounting PLD"

    def __init__(self, interval: float = 1e-4) -> None:
        self.interval = interval

    def why_not(self, leaf: Event, relation: Relation) -> str | None:
        if relation is not Relation.ADD_REMOVE:
            return "it is used for add/remove only"
        from dp_accounting.pld import PLDAccountant

        event = to_dp_event(leaf, relation)
        if event is None or not PLDAccountant().supports(event):
            return "dp-accounting's PLD has no such event"
        return None

    def _epsilon(self, events: Tally, delta: float, relation: Relation) -> float:
        return float(self._compose(events, relation).get_epsilon(delta))

    def _delta(self, events: Tally, epsilon: float, relation: Relation) -> float:
        return float(self._compose(events, relation).get_delta(epsilon))

    def _compose(self, events: Tally, relation: Relation) -> PLDAccountant:
        from dp_accounting.pld import PLDAccountant

        accountant = PLDAccountant(value_discretization_interval=self.interval)
        for leaf, count in events:
            accountant.compose(to_dp_event(leaf, relation), count)
        return accountant
