"""Models that the recipes use, and models by name."""

from privet.models.classifiers import (
    LSTMClassifier,
    LSTMLanguageModel,
    conv_student,
    crop_cnn,
    pca_mlp,
    softmax_regression,
    tanh_cnn,
)
from privet.models.features import scattering_linear
from privet.models.named import MODELS, model_arguments, model_named, model_names, recorded_model
from privet.models.resnet import resnet

__all__ = [
    "MODELS",
    "LSTMClassifier",
    "LSTMLanguageModel",
    "conv_student",
    "crop_cnn",
    "model_arguments",
    "model_named",
    "model_names",
    "pca_mlp",
    "recorded_model",
    "resnet",
    "scattering_linear",
    "softmax_regression",
    "tanh_cnn",
]
