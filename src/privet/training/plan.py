"""The plan of a run, from which its privacy event follows; its calibration; and the budget that no step may exceed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from privet.clipping import Clipping, ScheduledClipping, State
from privet.errors import InputError, PrivetError
from privet.noise import GaussianNoise, Noise, ScheduledNoise
from privet.privacy import AccountExhausted, Assumed, Budget, Event, Ledger, Schedule, Spent
from privet.privacy.events import composed
from privet.sampling import PoissonSampling, Sampling, UserSampling

MOST_STEPS = 10_000_000
"""The most steps of a plan. With more, even steps of a millisecond would take days."""


class BudgetExhausted(PrivetError):  # noqa: N818 - a name that reads as what happened
    """One more step would exceed the plan or the budget. Nothing was touched."""


@dataclass(frozen=True, eq=False)
class PlanState:
    """The state of the plan's clipping and noise before a step: all that changes from one step to the next."""

    clipping: State = None
    noise: State = None


@dataclass(frozen=True)
class Plan:
    """Sampling, clipping, noise and steps: everything about a training that concerns privacy.

    Formal guarantees: a run that follows the plan does `event` to the data, and nothing else.

    Attributes:
        sampling: draws the records of a step's batch.
        clipping: bounds each record's gradient.
        noise: is added to the bounded sum in each step.
        steps: the number of steps.
        records: the public size of the data set. Together with the sampling it gives the constant by which every
            noisy sum is divided; the size of the drawn batch is private.
        assumptions: what the statement assumes about the loop, beyond what the engine proves.
    """

    sampling: Sampling
    clipping: Clipping
    noise: Noise
    steps: int
    records: int
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.steps < 1 or self.records < 1:
            raise InputError(f"A plan needs at least one step and one record, not {self.steps} and {self.records}.")
        check_steps(self.steps)
        self.sampling.expected_size(self.records)
        if isinstance(self.noise, ScheduledNoise):
            self._check("noise", self.noise.multipliers)
        if isinstance(self.clipping, ScheduledClipping):
            self._check("clipping norms", self.clipping.norms)

    @property
    def expected_batch_size(self) -> float:
        """The public constant that replaces the batch size."""
        return self.sampling.expected_size(self.records)

    def init(self, parameters: Mapping[str, Tensor]) -> PlanState:
        """The state before the first step, for a model with these trainable parameters."""
        return PlanState(self.clipping.init(parameters), self.noise.init(parameters))

    def step_event(self, step: int) -> Event:
        """The event of step 0, 1, 2, ..."""
        event = self.sampling.event(self.noise.event(step))
        assumed = self.assumptions + self.trusted
        return event.under(Assumed(*assumed)) if assumed else event

    @cached_property
    def trusted(self) -> tuple[str, ...]:
        """The assumptions about parts that are not Privet's own: nobody has proved that they keep their contract."""
        contracts = (
            (self.sampling, "draws records as its event says"),
            (self.clipping, "bounds what each record contributes as it states"),
            (self.noise, "adds the noise that its event states"),
        )
        return tuple(
            f"{type(foreign).__name__}, which is not part of Privet, {contract}"
            for part, contract in contracts
            for foreign in _foreign(part)
        )

    def events(self, first: int, end: int) -> Event:
        """The event of the steps from `first` up to but not including `end`."""
        return composed(*map(self.step_event, range(first, end)))

    @cached_property
    def event(self) -> Event:
        """The event of the whole plan."""
        return self.events(0, self.steps)

    def _check(self, what: str, schedule: Schedule) -> None:
        if schedule.steps != self.steps:
            raise InputError(f"The schedule of the {what} has {schedule.steps} steps, and the plan has {self.steps}.")


def _foreign(part: Any) -> Iterator[Any]:
    """The part itself if it is not Privet's own, and otherwise the parts in it that are not: `UserSampling` holds a sampling."""
    if not type(part).__module__.startswith("privet."):
        yield part
    elif is_dataclass(part):
        values = (getattr(part, each.name) for each in fields(part))
        for value in values:
            if isinstance(value, Sampling | Clipping | Noise):
                yield from _foreign(value)


def check_steps(steps: int) -> None:
    """Refuse a training that would not end."""
    if steps > MOST_STEPS:
        raise InputError(
            f"A training has at most {MOST_STEPS:,} steps, and {steps:.3g} were asked for: give fewer epochs or steps, or a "
            "larger batch or sampling rate."
        )


def check_ledger(sampling: Sampling, ledger: Ledger) -> None:
    """Raise unless the ledger has the unit and a relation for which the sampling is accounted."""
    ledger.require_unit(sampling.unit)
    if ledger.relation not in sampling.relations:
        way = sampling.relations[0]
        raise InputError(
            f"{type(sampling).__name__} is accounted for neighbors that {way.describe(sampling.unit)}, and the "
            f"ledger is for neighbors that {ledger.relation.describe(ledger.unit)}: start it with "
            f"Ledger(relation={way.value!r}), or use PoissonSampling."
        )


class BudgetLimit:
    """The number of further steps that the plan and the budget allow, given everything in the ledger.

    Formal guarantees: after `check` returns, the ledger with that step in it is within the budget, even if others
    record in the same ledger, and the account of the data set, if there is one, has the step reserved. The limit is computed
    for all steps at once, and again only when something other than the plan's steps was recorded.
    """

    def __init__(self, plan: Plan, ledger: Ledger, delta: float, budget: Budget | None = None) -> None:
        self.plan, self.ledger, self.delta, self.budget = plan, ledger, delta, budget
        self._allowed_to = 0
        self._offset: int | None = None
        """Events in the ledger minus steps of the plan in it, when `_allowed_to` was computed."""

    def check(self, step: int, in_ledger: int | None = None) -> int:
        """Raise unless step 0, 1, 2, ... may be done; returns the number of the step before which the run has to end.

        `in_ledger` is the number of the plan's steps that are in the ledger already; it is larger than `step` where steps are
        repeated exactly.
        """
        covered = step if in_ledger is None else in_ledger
        if step >= self.plan.steps:
            raise BudgetExhausted(
                f"The plan's {self.plan.steps} steps are done: {self.spent()}. Make a new plan with a larger budget to go on."
            )
        if self._offset != len(self.ledger) - covered:
            self._allowed_to = self._largest(covered)
            self._offset = len(self.ledger) - covered
        if step >= self._allowed_to:
            assert self.budget is not None
            raise BudgetExhausted(
                f"Step {step + 1} of {self.plan.steps} would exceed the budget of epsilon {self.budget.epsilon:g} at delta "
                f"{self.delta:g}: {self.spent()}. Use the model as it is, or make a new plan with a larger budget."
            )
        if self.ledger.payer is not None and covered <= step:
            try:
                self.ledger.reserve(self.plan.step_event(step))
            except AccountExhausted as error:
                raise BudgetExhausted(
                    f"Step {step + 1} of {self.plan.steps} would exceed the account: {error}"
                ) from None
        return self._allowed_to

    def _largest(self, covered: int) -> int:
        """The largest end of the run that the budget allows; `covered` steps of it are in the ledger."""
        low, high = covered, self.plan.steps
        if self.budget is None or low >= high or self._allows(covered, high):
            return max(low, high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._allows(covered, middle) else (low, middle)
        return low

    def _allows(self, first: int, end: int) -> bool:
        assert self.budget is not None
        return self.budget.allows(self.ledger.event + self.plan.events(first, end))

    def spent(self) -> Spent:
        """The cost of everything in the ledger, by the budget's accountant."""
        return self.ledger.spent(self.delta, self.budget.accountant if self.budget is not None else "pld")


@dataclass(frozen=True, eq=False)
class Calibration:
    """Computes the noise or the number of steps of a plan, if it is not given, from the rest of the budget."""

    sampling: Sampling
    noise: Callable[[float], Noise]
    budget: Budget | None
    ledger: Ledger

    def solve(
        self, steps: int | None, multiplier: float | Schedule | None, stored: Mapping[str, Any]
    ) -> tuple[int, float | Schedule]:
        """The steps and the noise multiplier; a run that is continued takes them from its `stored` settings."""
        if stored:
            steps = stored["steps"] if steps is None else steps
            multiplier = stored["noise_multiplier"] if multiplier is None else multiplier
        if isinstance(multiplier, Schedule):
            return multiplier.steps if steps is None else steps, multiplier
        if steps is None and (multiplier is None or self.budget is None):
            raise InputError("Give either epochs or steps.")
        if steps is None:
            assert multiplier is not None
            if not (self.noise is GaussianNoise and self._is_poisson):
                raise InputError(
                    "Give either epochs or steps: they are computed from the budget for Poisson sampling and Gaussian noise only."
                )
            steps = self._left.steps(self.sampling.rate, multiplier)
        if multiplier is None:
            multiplier = self._least(steps)
        return steps, multiplier

    def made(self, multiplier: float | Schedule) -> Noise:
        """The noise with this multiplier."""
        if not isinstance(multiplier, Schedule):
            return self.noise(multiplier)
        if self.noise is not GaussianNoise:
            raise InputError("Only Gaussian noise can have a schedule: give noise_multiplier as a number.")
        return ScheduledNoise(multiplier)

    def _least(self, steps: int) -> float:
        """The least noise multiplier within the budget."""
        if self.noise is GaussianNoise and self._is_poisson:
            return self._left.noise_multiplier(self.sampling.rate, steps)
        return self._left.least(lambda x: self.sampling.event(self.noise(x).event()) * steps, what="noise multiplier")

    @property
    def _left(self) -> Budget:
        assert self.budget is not None
        return self.budget.after(self.ledger, fixed_beforehand=True)

    @property
    def _is_poisson(self) -> bool:
        drawn = self.sampling.users if isinstance(self.sampling, UserSampling) else self.sampling
        return isinstance(drawn, PoissonSampling)
