"""Networks that the recipes use."""

from privet.models.cnn import tanh_cnn

__all__ = ["tanh_cnn"]
