"""One file for each kind of layer. Importing the package registers the rules."""

from privet.gradients.rules import convolution, embedding, generic, linear, normalization, recurrent

__all__ = ["convolution", "embedding", "generic", "linear", "normalization", "recurrent"]
