"""Gradients of every record in one backward pass, on any model."""

from privet.gradients import rules
from privet.gradients.engine import Engine
from privet.gradients.fix import fix
from privet.gradients.knowledge import UnsupportedModelError
from privet.gradients.operation import rule
from privet.gradients.per_example import PerExampleGradients
from privet.gradients.rules.generic import SlowPathWarning

__all__ = ["Engine", "PerExampleGradients", "SlowPathWarning", "UnsupportedModelError", "fix", "rule", "rules"]
