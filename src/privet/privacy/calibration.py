"""The one unknown of a run from the others."""

from __future__ import annotations

from privet.privacy.accountants import Accountant
from privet.privacy.budget import Budget
from privet.privacy.events import NOTHING, Event
from privet.privacy.relations import Relation
from privet.privacy.schedules import Schedule


def calibrate_noise(
    epsilon: float,
    delta: float,
    rate: float,
    steps: int,
    *,
    relation: Relation | str = Relation.ADD_REMOVE,
    accountant: str | Accountant = "pld",
    before: Event = NOTHING,
) -> float:
    """The least noise multiplier with which `steps` Poisson-sampled steps, after `before`, stay within (epsilon, delta)."""
    return Budget(epsilon, delta, relation, accountant, before).noise_multiplier(rate, steps)


def calibrate_steps(
    epsilon: float,
    delta: float,
    rate: float,
    noise_multiplier: float,
    *,
    relation: Relation | str = Relation.ADD_REMOVE,
    accountant: str | Accountant = "pld",
    before: Event = NOTHING,
) -> int:
    """The most Poisson-sampled steps that stay within (epsilon, delta)."""
    return Budget(epsilon, delta, relation, accountant, before).steps(rate, noise_multiplier)


def calibrate_batch_size(
    epsilon: float,
    delta: float,
    examples: int,
    noise_multiplier: float,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    accountant: str | Accountant = "pld",
    before: Event = NOTHING,
) -> int:
    """The largest expected batch size that stays within (epsilon, delta), for a number of steps or of epochs."""
    budget = Budget(epsilon, delta, relation, accountant, before)
    return budget.batch_size(examples, noise_multiplier, steps=steps, epochs=epochs)


def calibrate_schedule(
    epsilon: float,
    delta: float,
    rate: float,
    schedule: Schedule,
    *,
    relation: Relation | str = Relation.ADD_REMOVE,
    accountant: str | Accountant = "pld",
    before: Event = NOTHING,
) -> Schedule:
    """The schedule with its noise scaled, up or down, to spend (epsilon, delta)."""
    budget = Budget(epsilon, delta, relation, accountant, before)
    return schedule.scaled(budget.scale(schedule, rate))
