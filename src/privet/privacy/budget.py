"""What may be spent, what of it is left, and the unknown of a run that fits it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from privet.errors import InputError
from privet.privacy.accountants import Accountant, accountant_named
from privet.privacy.accountants.filters import Filter
from privet.privacy.accountants.gdp import GDP, gdp_delta
from privet.privacy.events import NOTHING, Adaptive, Event, Gaussian, Nothing, PoissonSampled, tally
from privet.privacy.ledger import Ledger
from privet.privacy.relations import Relation
from privet.privacy.schedules import Schedule
from privet.privacy.solving import largest_within, least_within
from privet.privacy.spent import Spent

_MOST_STEPS = 10**9


@dataclass(frozen=True)
class Budget:
    """An (epsilon, delta) that a run may spend, of which `before` is spent already.

    Formal guarantees: everything that is returned keeps before + run at or below epsilon by the given accountant; a noise
    multiplier or a scale spends at least 99.9 % of it. What is spent before is composed with the run, not subtracted. If
    `adaptive`, the cost is that of a privacy filter whose order follows from epsilon and delta, so that it was fixed with
    the budget: what follows may then depend on what was released. Record it as `chosen(event)`.
    """

    epsilon: float
    delta: float
    relation: Relation | str = Relation.ADD_REMOVE
    accountant: str | Accountant = "pld"
    before: Event = NOTHING
    adaptive: bool = False
    unit: str = "record"
    conditions: tuple[str, ...] = ()
    """Of the ledgers that were counted: `spent` names them."""

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise InputError(f"epsilon of a budget must be a positive number, and is {self.epsilon!r}.")
        if not 0 < self.delta < 1:
            raise InputError(f"delta of a budget must be above 0 and below 1, and is {self.delta!r}.")
        object.__setattr__(self, "relation", Relation.of(self.relation))
        accountant_named(self.accountant)

    def after(self, spent: Ledger | Event, *, fixed_beforehand: bool = False) -> Budget:
        """The same budget with what a ledger holds, or a planned event, spent.

        What follows a ledger may have been chosen by looking at what it released. Numerical composition (PLD) has no theorem
        for that, so the rest is counted by a privacy filter, which needs more noise: the Gaussian one if the budget's
        accountant is "gdp", else a Renyi filter.

        Args:
            spent: a ledger, or an event that is part of the plan.
            fixed_beforehand: you state that the noise and the number of all releases, past and future, were fixed before any
                of them was looked at. Then the budget's own accountant composes them. An event given here is a plan and
                needs no such statement.
        """
        if not isinstance(spent, Ledger):
            return replace(self, before=self.before + spent)
        if spent.relation is not self.relation:
            raise InputError(f"The budget is for {self.relation} and the ledger for {spent.relation.value}.")
        if spent.unit != self.unit and tally(self.before):
            raise InputError(f"What was spent before protects a {self.unit}, and the ledger a {spent.unit}.")
        adaptive = self.adaptive or (not fixed_beforehand and bool(tally(spent.event)))
        conditions = tuple(dict.fromkeys((*self.conditions, *spent.conditions)))
        before = self.before + spent.event
        return replace(self, before=before, adaptive=adaptive, unit=spent.unit, conditions=conditions)

    def chosen(self, event: Event) -> Event:
        """`event` as it is to be recorded: if the budget is adaptive, with the filter by which it has to be counted."""
        if not self.adaptive or not tally(event):
            return event
        return Adaptive(event, self._filter.order, self._filter.limit or 0.0, Relation.of(self.relation).value)

    @property
    def _filter(self) -> Filter:
        gaussian = isinstance(accountant_named(self.accountant), GDP)
        return Filter.for_budget(self.epsilon, self.delta, self.relation, gaussian=gaussian)

    @property
    def _interpreter(self) -> Accountant:
        return Filter(self._filter.order) if self.adaptive else accountant_named(self.accountant)

    def spent(self, event: Event = NOTHING) -> Spent:
        """The statement for what was spent before and `event`."""
        found = self._interpreter.spent(self.before + event, self.delta, self.relation, unit=self.unit)
        return replace(found, conditions=self.conditions)

    def allows(self, event: Event) -> bool:
        return self._cost(event) <= self.epsilon

    def noise_multiplier(self, rate: float, steps: int) -> float:
        """The least noise multiplier for `steps` Poisson-sampled Gaussian steps."""
        _require_rate(rate)
        _require_steps(steps)
        guess = _guess_noise(self.epsilon, self.delta, rate, steps) * (
            2 if self.relation is Relation.REPLACE_ONE else 1
        )
        return self.least(lambda sigma: PoissonSampled(rate, Gaussian(sigma)) * steps, guess, "noise multiplier")

    def scale(self, schedule: Schedule, rate: float) -> float:
        """The least factor for a schedule's noise multipliers."""
        _require_rate(rate)
        guess = _guess_noise(self.epsilon, self.delta, rate, schedule.steps) / schedule.typical
        return self.least(lambda factor: schedule.scaled(factor).event(rate), guess, "scale of the schedule")

    def steps(self, rate: float, noise_multiplier: float) -> int:
        """The most Poisson-sampled Gaussian steps."""
        _require_rate(rate)
        step = PoissonSampled(rate, Gaussian(noise_multiplier))
        if rate == 0:
            raise InputError("With a sampling rate of 0 nothing is ever spent: any number of steps will do.")
        guess = _guess_steps(self.epsilon, self.delta, rate, noise_multiplier)
        found = largest_within(lambda steps: self._cost(step * steps), self.epsilon, guess, _MOST_STEPS)
        if not found:
            raise self._too_little(step, "one step")
        return found

    def batch_size(
        self, examples: int, noise_multiplier: float, *, steps: int | None = None, epochs: float | None = None
    ) -> int:
        """The largest expected batch of Poisson sampling, for a number of steps or of epochs."""
        if (steps is None) == (epochs is None):
            raise InputError("Give either steps or epochs.")
        if examples < 1:
            raise InputError(f"There must be at least one example, not {examples!r}.")
        if steps is not None:
            _require_steps(steps)
        if epochs is not None and not 0 < epochs < math.inf:
            raise InputError(f"The number of epochs must be positive, and is {epochs!r}.")

        def event(size: int) -> Event:
            count = steps if steps is not None else steps_of(examples, size, epochs or 0.0)
            return PoissonSampled(size / examples, Gaussian(noise_multiplier)) * count

        found = largest_within(lambda size: self._cost(event(size)), self.epsilon, examples / 100, examples)
        if not found:
            raise self._too_little(event(1), "an expected batch of one record")
        return found

    def least(self, event: Callable[[float], Event], guess: float = 1.0, what: str = "noise") -> float:
        """The least x for which event(x) fits, for any family of events that cost less as x grows."""
        if not isinstance(self.before, Nothing) and self._cost(NOTHING) >= self.epsilon:
            raise InputError(f"The budget of epsilon {self.epsilon:g} is spent already: {self.spent()}.")
        return least_within(lambda x: self._cost(event(x)), self.epsilon, guess, what)

    def _cost(self, event: Event) -> float:
        return self._interpreter.epsilon(self.before + event, self.delta, self.relation)

    def _too_little(self, event: Event, what: str) -> InputError:
        costs = self.spent(event)
        return InputError(f"A budget of epsilon {self.epsilon:g} is less than {what} costs: {costs}.")


def steps_of(examples: int, batch_size: int, epochs: float) -> int:
    """How many steps of an expected `batch_size` make so many epochs: rounded up, and never lost to floating point."""
    return max(1, math.ceil(round(epochs * examples / batch_size, 9)))


def _require_rate(rate: float) -> None:
    if not 0 <= rate <= 1:
        raise InputError(f"A sampling rate is between 0 and 1, and this one is {rate!r}.")


def _require_steps(steps: int) -> None:
    if steps < 1:
        raise InputError(f"A run has at least one step, and this one has {steps!r}.")


def _guess_mu(epsilon: float, delta: float) -> float:
    """The mu of a Gaussian trade-off with that epsilon and delta."""
    low, high = -12.0, 12.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if gdp_delta(math.exp(middle), epsilon) > delta else (middle, high)
    return math.exp(low)


def _guess_noise(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """By the central limit: mu = q sqrt(T (e^(1/sigma^2) - 1))."""
    if rate == 0:
        return 1.0
    mu = _guess_mu(epsilon, delta)
    if rate == 1:
        return math.sqrt(steps) / mu
    return 1 / math.sqrt(math.log1p((mu / rate) ** 2 / steps))


def _guess_steps(epsilon: float, delta: float, rate: float, sigma: float) -> float:
    if sigma == 0:
        return 1.0
    spread = rate**2 * math.expm1(min(1 / sigma**2, 300.0))
    return max(1.0, min(_guess_mu(epsilon, delta) ** 2 / spread, 1e9))
