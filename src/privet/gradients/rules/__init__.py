"""One file for each kind of layer. Importing the package registers the rules."""

from privet.gradients.rules import convolution, elementwise, embedding, generic, linear, normalisation, recurrent

__all__ = ["convolution", "elementwise", "embedding", "generic", "linear", "normalisation", "recurrent"]
