"""Private training: the plan, the step and the loop."""

from privet.training.plan import Plan
from privet.training.private import BudgetExhausted, Private, make_private
from privet.training.randomness import Randomness

__all__ = ["BudgetExhausted", "Plan", "Private", "Randomness", "make_private"]
