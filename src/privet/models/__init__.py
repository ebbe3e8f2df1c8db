"""Networks that the recipes use."""

from privet.models.cifar_cnn import crop_cnn
from privet.models.cnn import tanh_cnn
from privet.models.linear import softmax_regression
from privet.models.lstm import LSTMClassifier, LSTMLanguageModel
from privet.models.mlp import pca_mlp
from privet.models.on_features import scattering_linear
from privet.models.resnet import resnet
from privet.models.student import conv_student

__all__ = [
    "LSTMClassifier",
    "LSTMLanguageModel",
    "conv_student",
    "crop_cnn",
    "pca_mlp",
    "resnet",
    "scattering_linear",
    "softmax_regression",
    "tanh_cnn",
]


def model_named(name):  # temporary
    from privet.methods.preparation import builder

    return builder(name)


def model_names():
    return tuple(__all__)
