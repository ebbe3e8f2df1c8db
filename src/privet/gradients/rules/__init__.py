"""One file for each kind of layer. Importing the package registers the rules."""

from privet.gradients.rules import convolution, elementwise, embedding, generic, linear

__all__ = ["convolution", "elementwise", "embedding", "generic", "linear"]
