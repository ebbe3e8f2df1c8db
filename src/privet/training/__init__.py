"""Private training: the plan, the step and the loop."""

from privet.randomness import Randomness
from privet.training.drawing import Performance
from privet.training.folder import RunFolder
from privet.training.make import make_private
from privet.training.optimizers import Average, CorrectedAdam
from privet.training.plan import BudgetExhausted, Plan
from privet.training.private import Private

__all__ = [
    "Average",
    "BudgetExhausted",
    "CorrectedAdam",
    "Performance",
    "Plan",
    "Private",
    "Randomness",
    "RunFolder",
    "make_private",
]
