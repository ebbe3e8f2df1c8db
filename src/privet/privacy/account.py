"""The answer of `privet account`: one of batch size, noise, steps and epsilon, computed from the other three."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from privet.errors import InputError
from privet.privacy.accountants import accountant_named
from privet.privacy.budget import Budget, steps_of
from privet.privacy.events import Event, Gaussian, PoissonSampled
from privet.privacy.guarantees import Relation
from privet.privacy.spent import Spent, delta_warning


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
    if steps is not None and steps < 1:
        raise InputError(f"A run needs at least one step, not {steps}.")
    if epochs is not None and not 0 < epochs < math.inf:
        raise InputError(f"The number of epochs must be positive, and is {epochs!r}.")
    if not 0 < delta < 1:
        raise InputError(f"delta must be above 0 and below 1, and is {delta!r}.")
