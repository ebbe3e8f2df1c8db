"""The budget as a limit: no step that would pass it is begun."""

from __future__ import annotations

from privet.errors import PrivetError
from privet.privacy import Budget, Ledger, Spent
from privet.training.plan import Plan


class BudgetExhausted(PrivetError):  # noqa: N818 - a name that reads as what happened
    """One more step would pass the plan or the budget; nothing was touched."""


class Limit:
    """Says how many more steps the plan and the budget allow, given everything that the ledger holds.

    Formal guarantees: after `check` returns, the ledger with that step in it is within the budget, whoever else
    records in the same ledger. What it allows is computed for all steps at once, and again only when something else
    than the plan's steps was recorded.
    """

    def __init__(self, plan: Plan, ledger: Ledger, budget: Budget | None, delta: float) -> None:
        self.plan, self.ledger, self.budget, self.delta = plan, ledger, budget, delta
        self._allowed_to = 0
        self._offset: int | None = None
        """Events in the ledger less steps of the plan in it, when `_allowed_to` was computed."""

    def check(self, step: int, in_ledger: int | None = None) -> int:
        """Raise unless step 0, 1, 2, ... may be done; gives the number of the step before which the run has to end.

        `in_ledger` is how many of the plan's steps are in the ledger already; more than `step` where steps are repeated
        exactly.
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
                f"Step {step + 1} of {self.plan.steps} would pass the budget of epsilon {self.budget.epsilon:g} at delta "
                f"{self.delta:g}: {self.spent()}. Train with what there is, or make a new plan with a larger budget."
            )
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
        """What the ledger holds costs, by the budget's accountant."""
        return self.ledger.spent(self.delta, self.budget.accountant if self.budget is not None else "pld")
