"""Budgets: solve for noise, steps or batch size, given the others and (epsilon, delta); and schedules of noise.

`account` answers `privet account`: one of batch size, noise, steps and epsilon, computed from the other three.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any

from privet.errors import InputError
from privet.privacy.accountants import Accountant, accountant_named
from privet.privacy.accountants.rdp import GDP, Filter, gdp_delta
from privet.privacy.events import NOTHING, Adaptive, Event, Gaussian, Nothing, PoissonSampled, composed, tally
from privet.privacy.guarantees import Relation
from privet.privacy.ledger import Ledger
from privet.privacy.spent import Spent, delta_warning


@dataclass(frozen=True)
class Schedule:
    """Noise that changes over a run: (noise multiplier, number of steps) in order."""

    parts: tuple[tuple[float, int], ...]

    def __post_init__(self) -> None:
        if not self.parts or any(count < 1 for _, count in self.parts):
            raise InputError("Every part of a schedule needs at least one step.")
        if not all(0 < value < math.inf for value, _ in self.parts):
            raise InputError(
                "Every value of a schedule (a noise multiplier, a clipping norm) must be a number above 0."
            )

    @classmethod
    def of(cls, multipliers: Sequence[float]) -> Schedule:
        """A schedule from one multiplier for each step."""
        return cls(tuple((sigma, len(list(run))) for sigma, run in groupby(map(float, multipliers))))

    @classmethod
    def constant(cls, noise_multiplier: float, steps: int) -> Schedule:
        return cls(((noise_multiplier, steps),))

    @classmethod
    def linear(cls, first: float, last: float, steps: int, *, pieces: int = 100) -> Schedule:
        """From `first` to `last` in equal differences, with at most `pieces` different multipliers."""
        return cls._pieces([first + (last - first) * share for share in _shares(min(steps, pieces))], steps)

    @classmethod
    def exponential(cls, first: float, last: float, steps: int, *, pieces: int = 100) -> Schedule:
        """From `first` to `last` in equal ratios."""
        return cls._pieces([first * (last / first) ** share for share in _shares(min(steps, pieces))], steps)

    @classmethod
    def _pieces(cls, multipliers: list[float], steps: int) -> Schedule:
        if not multipliers:
            raise InputError(f"A schedule needs at least one step and one piece, but has {steps} steps.")
        ends = [round(steps * (i + 1) / len(multipliers)) for i in range(len(multipliers))]
        counts = [end - begin for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
        return cls(tuple(zip(multipliers, counts, strict=True)))

    @property
    def steps(self) -> int:
        return self._ends[-1] if self._ends else 0

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        """The step at which each part ends."""
        return tuple(accumulate(count for _, count in self.parts))

    def at(self, step: int) -> float:
        """The noise multiplier of step 0, 1, 2, ..."""
        if not 0 <= step < self.steps:
            raise InputError(f"The schedule has {self.steps} steps.")
        return self.parts[bisect_right(self._ends, step)][0]

    def scaled(self, factor: float) -> Schedule:
        """The same shape with every multiplier times `factor`."""
        return Schedule(tuple((sigma * factor, count) for sigma, count in self.parts))

    def event(self, rate: float) -> Event:
        """The event of a run with this schedule and Poisson sampling at `rate`."""
        return composed(*(PoissonSampled(rate, Gaussian(sigma)) * count for sigma, count in self.parts))

    @property
    def typical(self) -> float:
        """The constant multiplier with about the same cost."""
        return 1 / math.sqrt(math.fsum(count / sigma**2 for sigma, count in self.parts) / self.steps)


def _shares(count: int) -> list[float]:
    return [i / max(count - 1, 1) for i in range(count)]


_MOST_STEPS = 10**9


@dataclass(frozen=True)
class Budget:
    """An (epsilon, delta) that a run may spend; the events `before` are already part of it.

    Formal guarantees: with every returned value, `before` and the run together cost at most epsilon by the given
    accountant; a noise multiplier or a scale uses at least 99.9 % of it. Earlier events are composed with the run, not
    subtracted. If `adaptive`, the cost is that of a privacy filter whose order follows from epsilon and delta and was thus
    fixed with the budget: the run may then depend on earlier releases. Record its events as `chosen(event)`.
    """

    epsilon: float
    delta: float
    relation: Relation | str = Relation.ADD_REMOVE
    accountant: str | Accountant = "pld"
    before: Event = NOTHING
    adaptive: bool = False
    unit: str = "record"
    conditions: tuple[str, ...] = ()
    """Conditions of the ledgers that were counted; `spent` lists them."""

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise InputError(f"The epsilon of a budget must be a positive number, and is {self.epsilon!r}.")
        if not 0 < self.delta < 1:
            raise InputError(f"The delta of a budget must be above 0 and below 1, and is {self.delta!r}.")
        object.__setattr__(self, "relation", Relation.of(self.relation))
        accountant_named(self.accountant)

    def after(self, spent: Ledger | Event, *, fixed_beforehand: bool = False) -> Budget:
        """The same budget after the events of a ledger, or after a planned event.

        Somebody who continues a ledger may have looked at its releases first. Numerical composition (PLD) has no theorem for
        that, so a privacy filter counts the rest, which needs more noise: the Gaussian filter if the budget's accountant
        is "gdp", otherwise a Renyi filter.

        Args:
            spent: a ledger, or an event that is part of the plan.
            fixed_beforehand: you state that the noise and the number of all releases, past and future, were fixed before
                anybody looked at any of them. Then the budget's own accountant composes them. A planned event needs no
                such statement.
        """
        if not isinstance(spent, Ledger):
            return replace(self, before=self.before + spent)
        if spent.relation is not self.relation:
            raise InputError(f"The budget is for {self.relation}, but the ledger is for {spent.relation.value}.")
        if spent.unit != self.unit and tally(self.before):
            raise InputError(f"Earlier events protect a {self.unit}, but the ledger protects a {spent.unit}.")
        adaptive = self.adaptive or (not fixed_beforehand and bool(tally(spent.event)))
        conditions = tuple(dict.fromkeys((*self.conditions, *spent.conditions)))
        before = self.before + spent.event
        return replace(self, before=before, adaptive=adaptive, unit=spent.unit, conditions=conditions)

    def chosen(self, event: Event) -> Event:
        """`event` as it must be recorded: marked with the budget's filter if the budget is adaptive."""
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
        """The statement for the earlier events and `event` together."""
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
            raise InputError("With a sampling rate of 0 every number of steps costs nothing: give a rate above 0.")
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
        """The least x for which event(x) fits, for any family of events whose cost falls as x grows."""
        if not isinstance(self.before, Nothing) and self._cost(NOTHING) >= self.epsilon:
            raise InputError(f"The budget of epsilon {self.epsilon:g} is spent already: {self.spent()}.")
        return least_within(lambda x: self._cost(event(x)), self.epsilon, guess, what)

    def _cost(self, event: Event) -> float:
        return self._interpreter.epsilon(self.before + event, self.delta, self.relation)

    def _too_little(self, event: Event, what: str) -> InputError:
        costs = self.spent(event)
        return InputError(f"A budget of epsilon {self.epsilon:g} is less than {what} costs: {costs}.")


def steps_of(examples: int, batch_size: int, epochs: float) -> int:
    """The number of steps of an expected `batch_size` in `epochs` epochs, rounded up; rounding errors add no step."""
    count = epochs * examples / batch_size
    if not count <= 1e18:
        raise InputError(f"{epochs:g} epochs are {count:.3g} steps, and such a run has no end: give fewer epochs.")
    return max(1, math.ceil(round(count, 9)))


def _require_rate(rate: float) -> None:
    if not 0 <= rate <= 1:
        raise InputError(f"A sampling rate must be between 0 and 1, and is {rate!r}.")


def _require_steps(steps: int) -> None:
    if steps < 1:
        raise InputError(f"A run needs at least one step, and has {steps!r}.")


def _guess_mu(epsilon: float, delta: float) -> float:
    """The mu of a Gaussian trade-off with that epsilon and delta."""
    low, high = -12.0, 12.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if gdp_delta(math.exp(middle), epsilon) > delta else (middle, high)
    return math.exp(low)


def _guess_noise(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Guess from the central limit theorem: mu = q sqrt(T (e^(1/sigma^2) - 1))."""
    if rate == 0:
        return 1.0
    mu = _guess_mu(epsilon, delta)
    if rate == 1:
        return math.sqrt(steps) / mu
    return 1 / math.sqrt(math.log1p((mu / rate) ** 2 / steps))


def _guess_steps(epsilon: float, delta: float, rate: float, sigma: float) -> float:
    if sigma < 0.05:
        return 1.0
    spread = rate**2 * math.expm1(min(1 / sigma**2, 300.0))
    return max(1.0, min(_guess_mu(epsilon, delta) ** 2 / spread, 1e9))


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


CLOSE = 1e-3
"""How far the cost of a solution may be below the limit, relative to it."""
_LEAST, _MOST = 1e-3, 1e9


def least_within(cost: Callable[[float], float], limit: float, guess: float, what: str) -> float:
    """The least x with cost(x) <= limit, for a cost that falls with x; its cost is within 0.1 % of the limit.

    Secant steps in ln x and ln cost (epsilon is nearly a power of the noise), kept inside a bracket.

    Args:
        cost: the cost of x; may be infinite.
        limit: the largest allowed cost.
        guess: where to begin.
        what: the name of x in messages.
    """
    bad: tuple[float, float] | None = None
    good: tuple[float, float] | None = None
    aim = limit * (1 - CLOSE / 2)
    x = min(max(guess, _LEAST), _MOST)
    for _ in range(100):
        value = cost(x)
        if value <= limit:
            good = (x, value)
            if value >= limit * (1 - CLOSE) or x <= _LEAST:
                return x
        else:
            bad = (x, value)
            if x >= _MOST:
                raise InputError(
                    f"No {what} keeps epsilon within {limit:g}: even with the largest, epsilon is {value:.3g}. Use another "
                    "accountant, or a larger epsilon."
                )
        if bad and good and good[0] / bad[0] < 1 + 1e-12:
            return good[0]
        x = _next(bad, good, aim)
    if good is None:
        raise InputError(f"No {what} was found that keeps epsilon within {limit:g}.")
    return good[0]


def _next(bad: tuple[float, float] | None, good: tuple[float, float] | None, aim: float) -> float:
    if bad is None or good is None:
        x, value = bad or good or (1.0, 1.0)
        if not 0 < value < math.inf:
            return min(_MOST, 4 * x) if bad else max(_LEAST, x / 4)
        # Assume a cost proportional to 1/x, and step a little further, to bracket the root.
        ratio = min(4.0, max(0.25, value / aim))
        return min(_MOST, max(_LEAST, x * ratio * (1.02 if bad else 1 / 1.02)))
    low, high = math.log(bad[0]), math.log(good[0])
    if not (0 < bad[1] < math.inf and good[1] > 0):
        return math.exp((low + high) / 2)
    slope = (math.log(good[1]) - math.log(bad[1])) / (high - low)
    step = (math.log(aim) - math.log(bad[1])) / slope if slope < 0 else (high - low) / 2
    margin = 0.02 * (high - low)
    return math.exp(min(max(low + step, low + margin), high - margin))


def largest_within(cost: Callable[[int], float], limit: float, guess: float, most: int) -> int:
    """The largest integer n <= most with cost(n) <= limit, for a cost that grows with n; 0 if there is none."""
    if cost(1) > limit:
        return 0
    low, high = 1, most + 1
    n = min(max(2, int(guess)), most)
    value_low = cost(1)
    while high - low > 1:
        n = min(max(n, low + 1), high - 1)
        value = cost(n)
        if value <= limit:
            low, value_low = n, value
        else:
            high = n
        # Until the root is bracketed from both sides, follow epsilon ~ sqrt(n); then bisect in ln n.
        if high > most and low == n:
            ratio = limit / value_low if value_low > 0 else 4.0
            n = int(low * min(16.0, max(1.05, ratio**1.6)))
        elif high - low < 16:
            n = (low + high) // 2
        else:
            ratio = limit / value_low if value_low > 0 else 4.0
            aimed = int(low * min(4.0, ratio**1.5))
            n = aimed + 1 if low < aimed + 1 < high and value == value_low else math.isqrt(low * high)
    return low


MOST_STEPS = 10**15
"""Steps or examples of a plan; at a microsecond each they take thirty years."""


@dataclass(frozen=True)
class Account:
    """A planned run of Poisson-sampled Gaussian steps and its cost.

    Attributes:
        spent: the full statement.
        examples: the number of records.
        batch_size: the expected number of records in a step.
        noise_multiplier: noise over clipping norm.
        steps: the number of steps.
        accountant: the short name of the accountant.
        left_out: which of these was computed: "epsilon", "noise_multiplier", "steps" or "batch_size".
    """

    spent: Spent
    examples: int
    batch_size: int
    noise_multiplier: float
    steps: int
    accountant: str
    left_out: str

    @property
    def rate(self) -> float:
        return self.batch_size / self.examples

    @property
    def event(self) -> Event:
        return _run(self.rate, self.noise_multiplier, self.steps)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for the user."""
        said = delta_warning(self.spent.delta, self.examples, self.spent.unit)
        return (said,) if said else ()

    def __str__(self) -> str:
        return (
            f"noise multiplier {self.noise_multiplier:.6g}, {self.steps} steps of {self.batch_size} of {self.examples} "
            f"records on average: {self.spent}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The answer for --json; an infinite epsilon is null, because JSON has no infinity."""
        epsilon = self.spent.epsilon
        return {
            "epsilon": epsilon if math.isfinite(epsilon) else None,
            "delta": self.spent.delta,
            "noise_multiplier": self.noise_multiplier,
            "steps": self.steps,
            "accountant": self.accountant,
            "relation": self.spent.relation.value,
            "guarantee": str(self.spent.guarantee),
            **({"batch_size": self.batch_size} if self.left_out == "batch_size" else {}),
            "vacuous": self.spent.vacuous,
            "meaning": self.spent.meaning.to_dict(),
        }


def account(
    *,
    examples: int,
    delta: float,
    batch_size: int | None = None,
    noise_multiplier: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    epsilon: float | None = None,
    accountant: str = "pld",
    relation: Relation | str = Relation.ADD_REMOVE,
) -> Account:
    """Compute the one of batch size, noise, steps and epsilon that is left out.

    Args:
        examples: the number of records.
        delta: the delta of the statement.
        batch_size: the expected number of records in a step; if left out, the largest that `epsilon` allows.
        noise_multiplier: noise over clipping norm; if left out, the least that `epsilon` allows.
        steps: the number of steps; if left out together with `epochs`, the most that `epsilon` allows.
        epochs: the average number of passes over the data, instead of `steps`.
        epsilon: the target, which is never exceeded; if left out, the cost of the run.
        accountant: one of `accountant_names()`.
        relation: "add-remove" or "replace-one".
    """
    interpreter, kind = accountant_named(accountant), Relation.of(relation)
    _check(examples, batch_size, noise_multiplier, steps, epochs, delta)
    given = {
        "batch_size": batch_size,
        "noise_multiplier": noise_multiplier,
        "steps": steps or epochs,
        "epsilon": epsilon,
    }
    left_out = [name for name, value in given.items() if value is None]
    if len(left_out) != 1:
        raise InputError(
            "Leave out exactly one of the batch size, the noise, the steps (or epochs) and epsilon: it is computed from the "
            "others."
        )
    if epsilon is not None:
        budget = Budget(epsilon, delta, kind, interpreter)
        if batch_size is None:
            assert noise_multiplier is not None
            batch_size = budget.batch_size(examples, noise_multiplier, steps=steps, epochs=epochs)
        elif noise_multiplier is None:
            count = _steps(examples, batch_size, steps, epochs)
            noise_multiplier = budget.noise_multiplier(batch_size / examples, count)
        else:
            steps = budget.steps(batch_size / examples, noise_multiplier)
    assert batch_size is not None and noise_multiplier is not None
    count = _steps(examples, batch_size, steps, epochs)
    if count > MOST_STEPS:
        raise InputError(f"A run of {count:.3g} steps has no end: at most {MOST_STEPS:,} steps are accounted for.")
    spent = interpreter.spent(_run(batch_size / examples, noise_multiplier, count), delta, kind)
    return Account(spent, examples, batch_size, float(noise_multiplier), count, interpreter.key, left_out[0])


def _run(rate: float, noise_multiplier: float, steps: int) -> Event:
    return PoissonSampled(rate, Gaussian(noise_multiplier)) * steps


def _steps(examples: int, batch_size: int, steps: int | None, epochs: float | None) -> int:
    if steps is not None:
        return int(steps)
    assert epochs is not None
    return steps_of(examples, batch_size, epochs)


def _check(
    examples: int,
    batch_size: int | None,
    noise_multiplier: float | None,
    steps: int | None,
    epochs: float | None,
    delta: float,
) -> None:
    if examples < 1:
        raise InputError(f"There must be at least one example, not {examples}.")
    if batch_size is not None and batch_size < 1:
        raise InputError(f"The batch size must be at least 1, and is {batch_size}.")
    if batch_size is not None and batch_size > examples:
        raise InputError(f"A batch of {batch_size} is larger than the {examples} examples it is drawn from.")
    if noise_multiplier is not None and not 0 <= noise_multiplier < math.inf:
        raise InputError(f"The noise multiplier must be a number of at least 0, and is {noise_multiplier!r}.")
    if steps is not None and epochs is not None:
        raise InputError("Give either the number of steps or of epochs, not both.")
    if examples > MOST_STEPS or (steps is not None and steps > MOST_STEPS):
        raise InputError(f"The number of examples, and that of steps, is at most {MOST_STEPS:,}.")
    if steps is not None and steps < 1:
        raise InputError(f"A run needs at least one step, not {steps}.")
    if epochs is not None and not 0 < epochs < math.inf:
        raise InputError(f"The number of epochs must be positive, and is {epochs!r}.")
    if not 0 < delta < 1:
        raise InputError(f"delta must be above 0 and below 1, and is {delta!r}.")
