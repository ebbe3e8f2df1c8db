"""One statement for several runs on the same records, if a theorem composes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from privet.errors import InputError
from privet.privacy.accountants import Accountant, UnsupportedEventError, accountant_named
from privet.privacy.events import Adaptive, ApproximateDP, Event, RepeatAndSelect, bare, composed, tally
from privet.privacy.guarantees import Relation
from privet.privacy.spent import Spent

_DOUBLED = (
    "Runs with statements about adding or removing a record were counted for replacing one, which is removing it and adding "
    "another: a sum then moves by up to twice as much"
)
_GROUPED = "an (epsilon, delta) for adding or removing a record is (2 epsilon, (1 + e^epsilon) delta) for replacing one"
_STATED = "a run whose parameters were chosen along the way enters with the (epsilon, delta) of its filter"
_SELECTED = "a run that was chosen among a random number of trials enters with its (epsilon, delta) by RDP"


@dataclass(frozen=True)
class Part:
    """One run: its event, the relation and unit of its own statement, and its name in messages."""

    event: Event
    relation: Relation
    unit: str = "record"
    name: str = "a run"


@dataclass(frozen=True)
class Together:
    """The cost of several runs together.

    Attributes:
        spent: the statement for the runs that were counted.
        theorems: how statements with different relations were combined; empty if the relations are the same.
        left_out: the runs that no theorem composes with the others, each with the reason.
    """

    spent: Spent
    theorems: tuple[str, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def epsilon(self) -> float:
        return self.spent.epsilon

    def __str__(self) -> str:
        said = [str(self.spent)]
        if self.theorems:
            said.append("; ".join(self.theorems))
        said += [f"Not counted: {name}, because {reason}" for name, reason in self.left_out]
        return ". ".join(said)


def spent_together(
    parts: Sequence[Part],
    delta: float,
    relation: Relation | str | None = None,
    *,
    accountant: str | Accountant = "pld",
) -> Together:
    """One statement for all parts, in the unit of the first part.

    Args:
        parts: the runs. The first one is always counted; the others may be left out, with a reason.
        delta: the delta of the statement.
        relation: which data sets are neighbors. By default the relation that all parts share, else replacing one record.
        accountant: the accountant that composes them.

    Formal guarantees: an upper bound for the counted parts. An event means the same under either relation, so it is counted
    under the requested one. If the accountant cannot, replacing a record is bounded by removing one and adding another:
    group privacy, (2 epsilon, (1 + e^epsilon) delta). A bound for replacing a record does not bound adding or removing one.
    """
    if not parts:
        raise InputError("There are no runs to count together.")
    interpreter = accountant_named(accountant)
    unit = parts[0].unit
    if relation is None:
        shared = {part.relation for part in parts if part.unit == unit}
        if len(shared) == 1:
            return spent_together(parts, delta, shared.pop(), accountant=accountant)
        try:
            return spent_together(parts, delta, Relation.REPLACE_ONE, accountant=accountant)
        except UnsupportedEventError:
            return spent_together(parts, delta, parts[0].relation, accountant=accountant)
    target = Relation.of(relation)
    events: list[Event] = []
    theorems: dict[str, None] = {}
    left_out: list[tuple[str, str]] = []
    share = delta / (4 * len(parts))
    for part in parts:
        try:
            if part.unit != unit:
                raise InputError(f"it protects one {part.unit}, but the others protect one {unit}")
            event, used = _read(interpreter, part, target, share, alone=len(parts) == 1)
        except InputError as reason:
            if part is parts[0]:
                raise
            left_out.append((part.name, str(reason).rstrip(".")))
            continue
        events.append(event)
        theorems.update(dict.fromkeys(used))
    spent = interpreter.spent(composed(*events), delta, target, unit=unit)
    sampling = composed(*(part.event for part in parts)).sampling
    return Together(replace(spent, sampling=sampling), tuple(theorems), tuple(left_out))


def _is_selected(event: Event) -> bool:
    return any(isinstance(bare(leaf), RepeatAndSelect) for leaf, _ in tally(event))


def _stated(epsilon: float, delta: float, relation: Relation) -> Event:
    """An event that costs exactly (epsilon, delta) under `relation`; accountants double stated costs for replacing."""
    if relation is Relation.ADD_REMOVE:
        return ApproximateDP(epsilon, delta)
    return ApproximateDP(epsilon / 2, delta / (1 + math.exp(epsilon / 2)))


def _read(
    accountant: Accountant, part: Part, target: Relation, share: float, *, alone: bool
) -> tuple[Event, tuple[str, ...]]:
    """The part's event as counted under `target`, and the theorems used."""
    if _is_selected(part.event) and not accountant.supports(part.event, target):
        rdp = accountant_named("rdp")
        if rdp.supports(part.event, target) and (epsilon := rdp.epsilon(part.event, share, target)) < 600:
            return _stated(epsilon, share, target).under(part.event.guarantee), (_SELECTED,)
    adaptive = not alone and any(isinstance(leaf, Adaptive) for leaf, _ in tally(part.event))
    if not adaptive and accountant.supports(part.event, target):
        return part.event, ((_DOUBLED,) if part.relation is not target and target is Relation.REPLACE_ONE else ())
    if accountant.supports(part.event, target):
        epsilon = accountant.epsilon(part.event, share, target)
        if epsilon < 600:
            return _stated(epsilon, share, target).under(part.event.guarantee), (_STATED,)
    if target is Relation.REPLACE_ONE and accountant.supports(part.event, Relation.ADD_REMOVE):
        stated = share / 4
        for _ in range(40):
            epsilon = accountant.epsilon(part.event, stated, Relation.ADD_REMOVE)
            if epsilon > 300:
                break
            if (1 + math.exp(epsilon)) * stated <= share:
                return ApproximateDP(epsilon, stated).under(part.event.guarantee), (_GROUPED,)
            stated = share / (1 + math.exp(epsilon)) / 1.5
    reason = next(
        (why for leaf, _ in tally(part.event) if (why := accountant.reason_against(leaf, target)) is not None),
        "its epsilon is too large",
    )
    raise UnsupportedEventError(f"for {target.describe(part.unit)} no theorem covers it: {reason}")
