"""Networks that the recipes use."""

from privet.models.cnn import tanh_cnn
from privet.models.linear import softmax_regression

__all__ = ["softmax_regression", "tanh_cnn"]
