"""One file for each kind of layer. Importing the package registers the rules."""

from privet.gradients.rules import elementwise, generic, linear

__all__ = ["elementwise", "generic", "linear"]
