"""What `privet account` answers: the cost of a run before it is run, or the noise that a budget needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from privet.errors import InputError
from privet.privacy.accountants import accountant_named
from privet.privacy.budget import Budget, steps_of
from privet.privacy.events import Event, Gaussian, PoissonSampled
from privet.privacy.relations import Relation
from privet.privacy.spent import Spent


@dataclass(frozen=True)
class Account:
    """A planned run of Poisson-sampled Gaussian steps and what it costs.

    Attributes:
        spent: the full statement.
        noise_multiplier: given, or calibrated to a target epsilon.
        rate: expected batch size over examples.
        steps: how many steps.
        accountant: the accountant's short name.
        warnings: sentences that the user should see.
    """

    spent: Spent
    noise_multiplier: float
    rate: float
    steps: int
    accountant: str
    warnings: tuple[str, ...] = ()

    @property
    def event(self) -> Event:
        return PoissonSampled(self.rate, Gaussian(self.noise_multiplier)) * self.steps

    def __str__(self) -> str:
        return f"noise multiplier {self.noise_multiplier:.6g}, {self.steps} steps at rate {self.rate:.6g}: {self.spent}"

    def to_dict(self) -> dict[str, Any]:
        """The answer for --json; an infinite epsilon is null, as JSON has no infinity."""
        epsilon = self.spent.epsilon
        return {
            "epsilon": epsilon if math.isfinite(epsilon) else None,
            "delta": self.spent.delta,
            "noise_multiplier": self.noise_multiplier,
            "steps": self.steps,
            "sampling_rate": self.rate,
            "accountant": self.accountant,
            "relation": self.spent.relation.value,
            "guarantee": str(self.spent.guarantee),
            "warnings": list(self.warnings),
        }


def account(
    *,
    examples: int,
    batch_size: int,
    delta: float,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    accountant: str = "pld",
    relation: Relation | str = Relation.ADD_REMOVE,
) -> Account:
    """The epsilon of a run with `noise_multiplier`, or the least noise multiplier for `epsilon`.

    Args:
        examples: how many records there are.
        batch_size: how many a step samples on average.
        delta: the delta of the statement.
        noise_multiplier: noise over clipping norm; or give `epsilon`.
        epsilon: a target, never overshot; or give `noise_multiplier`.
        steps: how many steps; or give `epochs`.
        epochs: how many times the data is passed on average; or give `steps`.
        accountant: one of `accountant_names()`.
        relation: "add-remove" or "replace-one".
    """
    interpreter, kind = accountant_named(accountant), Relation.of(relation)
    rate = _rate(examples, batch_size)
    count = _steps(examples, batch_size, steps, epochs)
    if not 0 < delta < 1:
        raise InputError(f"delta must be above 0 and below 1, and is {delta!r}.")
    if (noise_multiplier is None) == (epsilon is None):
        raise InputError("Give either the noise multiplier or a target epsilon, not both.")
    if noise_multiplier is not None:
        if not 0 <= noise_multiplier < math.inf:
            raise InputError(f"The noise multiplier must be a number of at least 0, and is {noise_multiplier!r}.")
        sigma = float(noise_multiplier)
    else:
        assert epsilon is not None
        sigma = Budget(epsilon, delta, kind, interpreter).noise_multiplier(rate, count)
    event = PoissonSampled(rate, Gaussian(sigma)) * count
    warnings = (
        (
            f"delta = {delta:g} is not below 1/N = {1 / examples:g}. By convention delta is well below one over the number of "
            "records: a mechanism that publishes a random record whole has delta = 1/N.",
        )
        if delta * examples >= 1
        else ()
    )
    return Account(interpreter.spent(event, delta, kind), sigma, rate, count, interpreter.key, warnings)


def _rate(examples: int, batch_size: int) -> float:
    if examples < 1:
        raise InputError(f"There must be at least one example, not {examples}.")
    if batch_size < 1:
        raise InputError(f"The batch size must be at least 1, and is {batch_size}.")
    if batch_size > examples:
        raise InputError(f"A batch of {batch_size} is larger than the {examples} examples it is drawn from.")
    return batch_size / examples


def _steps(examples: int, batch_size: int, steps: int | None, epochs: float | None) -> int:
    if (steps is None) == (epochs is None):
        raise InputError("Give either the number of steps or of epochs, not both.")
    if steps is not None:
        if steps < 1:
            raise InputError(f"A run has at least one step, not {steps}.")
        return int(steps)
    assert epochs is not None
    if not 0 < epochs < math.inf:
        raise InputError(f"The number of epochs must be positive, and is {epochs!r}.")
    return steps_of(examples, batch_size, epochs)
