"""The loss-threshold attack (Yeom et al. 2018): a record that the model fits well was probably trained on.

It needs one query per record and no shadow models. It bounds nothing from above: an AUC of one half says that
this attack learned nothing, not that no attack can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from privet.attacks.answers import Classifier, Inputs, Outputs, Records, as_labels, class_scores
from privet.attacks.roc import Roc

Signal = Literal["loss", "confidence"]


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

    def __call__(self, model: Classifier, members: Records, non_members: Records) -> Roc:
        """The ROC of the attack on a classifier: each side is a pair of inputs and integer labels."""
        return Roc.of(self.scores(model, *members), self.scores(model, *non_members))

    def scores(self, model: Classifier, inputs: Inputs, labels: Inputs) -> NDArray[np.float64]:
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
    inputs: Inputs,
    labels: Inputs,
    *,
    signal: Signal = "loss",
    outputs: Outputs = "logits",
    batch_size: int = 1000,
) -> NDArray[np.float64]:
    """How well a classifier fits each record: the log-odds of its label, log p_y - log sum of the others."""
    logits = class_scores(model, inputs, outputs=outputs, batch_size=batch_size)
    wanted = as_labels(labels, logits.shape[1], len(logits))
    scores: NDArray[np.float64] = log_odds(logits, wanted if signal == "loss" else logits.argmax(dim=1)).numpy()
    return scores


def log_odds(logits: Tensor, chosen: Tensor) -> Tensor:
    """log p_c - log(1 - p_c) of the chosen class of each row; leading dimensions are batches of rows."""
    index = chosen.expand(logits.shape[:-1])[..., None]
    rest = logits.scatter(-1, index, float("-inf")).logsumexp(dim=-1)
    return logits.gather(-1, index).squeeze(-1) - rest
