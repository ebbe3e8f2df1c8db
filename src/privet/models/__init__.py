"""Models by name: Privet's own, those of plug-ins, and the user's own classes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from torch import nn

from privet.errors import InputError
from privet.io.registry import PREFIX, Registry, object_at
from privet.models.classifiers import (
    LSTMClassifier,
    LSTMLanguageModel,
    conv_student,
    crop_cnn,
    pca_mlp,
    resnet,
    softmax_regression,
    tanh_cnn,
)
from privet.models.features import scattering_linear

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


Builder = Callable[..., nn.Module]
"""A class or function that builds a model with fresh parameters."""


def _checked(value: object) -> Builder:
    if isinstance(value, nn.Module) or not callable(value):
        raise InputError(
            f"A {type(value).__name__} does not build models: give a class or a function that returns a model."
        )
    return value


MODELS: Registry[Builder] = Registry("model", "privet.models", _checked)
"""Functions and classes that build models, by name; `MODELS.register` adds one."""

_TABLES_AND_IMAGES = (softmax_regression, pca_mlp, tanh_cnn, crop_cnn, conv_student, resnet, scattering_linear)
_TEXT = (LSTMClassifier, LSTMLanguageModel)
for _builder in (*_TABLES_AND_IMAGES, *_TEXT):
    MODELS.register(_builder.__name__, _builder)


def model_names() -> tuple[str, ...]:
    """The names of all models, those of plug-ins included."""
    return MODELS.names()


def model_named(name: str, /) -> Builder:
    """The builder of that name, or the user's own class or function ``py:package.module:Net``.

    The prefix imports code, so only ever pass a name that the user typed; for a name from a file use `recorded_model`.
    """
    return _checked(object_at(name)) if name.startswith(PREFIX) else MODELS[name]


def recorded_model(name: str, given: str = "", /) -> Builder:
    """The builder of a model whose name was read from a file, such as the record of a run.

    Args:
        name: the name in the file.
        given: the name that the user typed, if any; it replaces the other one.

    Formal guarantees: a file never makes Privet import code. Its name must be registered; a model of the user's own is
    imported only if the user names it.
    """
    if given:
        return model_named(given)
    if name.startswith(PREFIX):
        raise InputError(
            f"The model {name} is not part of Privet, and its code is not run because a file names it: "
            f"if you trust it, name it yourself (--model {name}, or model={name!r})."
        )
    return MODELS[name]


def model_arguments(
    builder: Builder, shape: tuple[int, ...], classes: int, given: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments of a builder that follow from the records, together with those that are `given`.

    A builder gets those of `classes`, `inputs` and `features` (both the number of values of a record), `channels`, `height`
    and `width` (of images) that are among its parameters.
    """
    known = {"classes": classes, "inputs": math.prod(shape), "features": math.prod(shape)}
    if len(shape) == 3:
        known |= dict(zip(("channels", "height", "width"), shape, strict=True))
    parameters = inspect.signature(builder).parameters
    found = {name: value for name, value in known.items() if name in parameters} | (given or {})
    what = getattr(builder, "__name__", repr(builder))
    if "channels" in parameters and "channels" not in found:
        raise InputError(f"The model {what} is for images, and the records have the shape {shape}.")
    free = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    if (unknown := sorted(set(found) - set(parameters))) and not free:
        raise InputError(f"The model {what} has no argument {unknown[0]!r}: it has {', '.join(parameters) or 'none'}.")
    usual = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    for name, one in parameters.items():
        if one.kind in usual and one.default is inspect.Parameter.empty and name not in found:
            raise InputError(
                f"The model {what} needs the argument {name!r}, which the records do not give: give it a value."
            )
    return found
