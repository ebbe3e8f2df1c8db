"""What a classifier answers: class scores of records, whatever kind of classifier it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privet.errors import InputError

Inputs = Tensor | NDArray[Any]
Records = tuple[Inputs, Inputs]
"""Inputs and integer labels."""
Classifier = nn.Module | Callable[[Tensor], Tensor] | Any
"""A torch module, a scikit-learn estimator with ``predict_proba``, or a function from a batch to class scores."""
Outputs = Literal["logits", "probabilities"]


def class_scores(model: Classifier, inputs: Inputs, *, outputs: Outputs = "logits", batch_size: int = 1000) -> Tensor:
    """A row of logits (or of log-probabilities) for each record, as float64; their softmax is what the model says.

    A module is asked in evaluation mode, without gradients, and put back as it was. An estimator of scikit-learn always
    gives probabilities; its classes must be numbered from 0.
    """
    if len(inputs) == 0:
        raise InputError("An attack needs at least one record on each side, and one side is empty.")
    if hasattr(model, "predict_proba"):
        return _checked(_estimated(model, inputs)).log()
    with evaluating(model), torch.no_grad():
        parts = [_checked(torch.as_tensor(model(x))) for x in torch.split(as_inputs(inputs), batch_size)]
    scores = torch.cat(parts)
    return scores if outputs == "logits" else scores.log()


def as_inputs(inputs: Inputs) -> Tensor:
    """Records as a tensor; double precision from NumPy becomes torch's usual single."""
    tensor = torch.as_tensor(inputs)
    return tensor.float() if isinstance(inputs, np.ndarray) and tensor.dtype == torch.float64 else tensor


def as_labels(labels: Inputs, classes: int, records: int) -> Tensor:
    """Labels as int64, checked against the classifier's classes."""
    tensor = torch.as_tensor(labels)
    if tensor.ndim != 1 or len(tensor) != records:
        raise InputError(f"There are {records} inputs and {len(tensor)} labels; an attack needs one label a record.")
    if tensor.is_floating_point() or int(tensor.min()) < 0 or int(tensor.max()) >= classes:
        raise InputError(f"The labels must be whole numbers from 0 to {classes - 1}, one a record.")
    return tensor.to(torch.int64)


def _estimated(model: Any, inputs: Inputs) -> Tensor:
    classes = np.asarray(model.classes_)
    if not np.array_equal(classes, np.arange(len(classes))):
        raise InputError(f"The estimator's classes are {classes.tolist()}: fit it on labels numbered from 0.")
    rows = np.asarray(inputs).reshape(len(inputs), -1)
    return torch.from_numpy(np.asarray(model.predict_proba(rows), dtype=np.float64))


def _checked(outputs: Tensor) -> Tensor:
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        raise InputError(
            f"The attack needs a row of two or more class scores a record, and the model gave {tuple(outputs.shape)}."
        )
    return outputs.to("cpu", torch.float64)


@contextmanager
def evaluating(model: Classifier) -> Iterator[None]:
    """Inside, a module is in evaluation mode; afterwards every part of it is in the mode it was in."""
    if not isinstance(model, nn.Module):
        yield
        return
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
