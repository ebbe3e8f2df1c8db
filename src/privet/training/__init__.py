"""Private training: the plan, the step and the loop."""

from privet.randomness import Randomness
from privet.training.adam import CorrectedAdam
from privet.training.average import Average
from privet.training.folder import RunFolder
from privet.training.limit import BudgetExhausted
from privet.training.make import make_private
from privet.training.plan import Plan
from privet.training.private import Private

__all__ = ["Average", "BudgetExhausted", "CorrectedAdam", "Plan", "Private", "Randomness", "RunFolder", "make_private"]
