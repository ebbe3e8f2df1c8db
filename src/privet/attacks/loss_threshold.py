"""The loss-threshold attack (Yeom et al. 2018): a record that the model fits well was probably trained on.

It needs one query per record and no shadow models. It bounds nothing from above: an AUC of one half says that
this attack learned nothing, not that no attack can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privet.attacks.roc import Roc
from privet.errors import InputError

Classifier = nn.Module | Callable[[Tensor], Tensor]
Signal = Literal["loss", "confidence"]
Outputs = Literal["logits", "probabilities"]


@dataclass(frozen=True)
class LossThreshold:
    """Score every record by how well the model fits it; see how far a threshold on that tells members from others.

    `signal="loss"` ranks by the cross-entropy of the true label, which is the same as by the confidence in it;
    `signal="confidence"` ranks by the largest class probability, for an attacker who does not know the labels.
    Both are scored as log-odds, log p - log(1 - p): the same order, and no rounding where p is nearly one.
    """

    signal: Signal = "loss"
    outputs: Outputs = "logits"
    batch_size: int = 1000

    def __call__(self, model: Classifier, members: tuple[Tensor, Tensor], non_members: tuple[Tensor, Tensor]) -> Roc:
        """The ROC of the attack on a classifier: each side is a pair of inputs and integer labels."""
        return Roc.of(self.scores(model, *members), self.scores(model, *non_members))

    def scores(self, model: Classifier, inputs: Tensor, labels: Tensor) -> NDArray[np.float64]:
        """One score per record, higher meaning a better fit."""
        return membership_scores(
            model,
            inputs,
            labels,
            signal=self.signal,
            outputs=self.outputs,
            batch_size=self.batch_size,
        )


def membership_scores(
    model: Classifier,
    inputs: Tensor,
    labels: Tensor,
    *,
    signal: Signal = "loss",
    outputs: Outputs = "logits",
    batch_size: int = 1000,
) -> NDArray[np.float64]:
    """How well a classifier fits each record. A module is asked in evaluation mode and put back as it was."""
    if len(inputs) != len(labels):
        raise InputError(
            f"There are {len(inputs)} inputs and {len(labels)} labels; an attack needs one label a record."
        )
    if len(inputs) == 0:
        raise InputError("An attack needs at least one record on each side, and one side is empty.")
    with _evaluating(model), torch.no_grad():
        scores = [
            _log_odds(_logits(model(x), outputs), y, signal)
            for x, y in zip(torch.split(inputs, batch_size), torch.split(labels, batch_size), strict=True)
        ]
    joined: NDArray[np.float64] = torch.cat(scores).cpu().numpy()
    return joined


def _logits(outputs: Tensor, kind: Outputs) -> Tensor:
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        raise InputError(
            f"The attack needs a row of two or more class scores a record, and the model gave {tuple(outputs.shape)}."
        )
    precise = outputs.to(torch.float64)
    return precise if kind == "logits" else precise.log()


def _log_odds(logits: Tensor, labels: Tensor, signal: Signal) -> Tensor:
    """log p_c - log(1 - p_c) for the true class, or for the likeliest where labels are unknown."""
    classes = logits.shape[1]
    if labels.ndim != 1 or int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise InputError(f"The labels must be whole numbers from 0 to {classes - 1}, one a record.")
    chosen = labels.to(logits.device, torch.int64) if signal == "loss" else logits.argmax(dim=1)
    index = chosen[:, None]
    rest = logits.scatter(1, index, float("-inf")).logsumexp(dim=1)
    return logits.gather(1, index).squeeze(1) - rest


@contextmanager
def _evaluating(model: Classifier) -> Iterator[None]:
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
