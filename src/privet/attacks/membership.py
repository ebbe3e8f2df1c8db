"""The threshold attacks (Yeom et al. 2018), and one function for all membership attacks on a classifier.

A record that the model fits well was probably trained on. A threshold attack needs one query per record and no shadow
models. It gives no upper bound: an AUC of one half means that this attack learned nothing, not that no attack can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from privet.attacks.classifiers import (
    Classifier,
    Inputs,
    Outputs,
    Records,
    Signal,
    Train,
    membership_scores,
)
from privet.attacks.likelihood import lira, rmia
from privet.attacks.result import AttackResult, Roc
from privet.attacks.shadow import shadow_roc
from privet.attacks.target import Target, register, require, why_no_model
from privet.data import Progress, Split
from privet.errors import InputError

AttackKey = Literal["loss", "confidence", "shadow", "lira", "rmia"]
_TITLES = {"loss": "Loss threshold", "confidence": "Confidence threshold (the attacker has no labels)"}
_POWER = {
    "loss": "The attacker queries the model with each record and knows its label",
    "confidence": "The attacker queries the model with each record and does not know its label",
}


@dataclass(frozen=True)
class LossThreshold:
    """Score each record by how well the model fits it, and separate members from others by a threshold.

    Attributes:
        signal: "loss" ranks by the cross-entropy of the true label, which is the same as by the confidence in it;
            "confidence" ranks by the largest class probability, for an attacker who does not know the labels. Both scores
            are log-odds, log p - log(1 - p): the same order, without rounding if p is almost one.
        outputs: whether the model's class scores are logits or probabilities.
        batch_size: records per query.
    """

    signal: Signal = "loss"
    outputs: Outputs = "logits"
    batch_size: int = 1000

    @property
    def key(self) -> str:
        """The signal."""
        return self.signal

    @property
    def title(self) -> str:
        """The name for readers."""
        return _TITLES[self.signal]

    def fits(self, target: Target) -> str:
        """Why the attack cannot run on this target; empty if it can."""
        return why_no_model(target, 1, 1)

    def run(self, target: Target, progress: Progress | None = None) -> AttackResult:
        """Score all members and all others."""
        require(self, target)
        sides = [self._all(target.model, side) for side in (target.members, target.others)]
        return AttackResult.of(self.title, Roc.of(*sides), attack=self, power=_POWER[self.signal])

    def __call__(self, model: Classifier, members: Records, non_members: Records) -> Roc:
        """The ROC of the attack on any classifier; each side is a pair of inputs and integer labels."""
        return Roc.of(self.scores(model, *members), self.scores(model, *non_members))

    def scores(self, model: Classifier, inputs: Inputs, labels: Inputs) -> NDArray[np.float64]:
        """One score per record, higher for a better fit."""
        return membership_scores(
            model, inputs, labels, signal=self.signal, outputs=self.outputs, batch_size=self.batch_size
        )

    def _all(self, model: Classifier, records: Split) -> NDArray[np.float64]:
        """The scores of a split, a batch at a time: stored records may be larger as floats than the memory."""
        batches = torch.arange(len(records)).split(self.batch_size)
        return np.concatenate([self.scores(model, *records.batch(rows)) for rows in batches])


register(LossThreshold("loss"))
register(LossThreshold("confidence"))


def membership(
    model: Classifier,
    members: Records,
    non_members: Records,
    *,
    attack: AttackKey = "loss",
    train: Train | None = None,
    population: Records | None = None,
    shadows: int | None = None,
    outputs: Outputs = "logits",
    seed: int = 0,
) -> Roc:
    """Can records that a classifier was trained on be told from records that it was not trained on?

        privet.attacks.membership(model, (x_train, y_train), (x_test, y_test)).auc

    Args:
        model: a torch module, a scikit-learn estimator, or a function from a batch to class scores.
        members, non_members: inputs and integer labels, as arrays or tensors; both from the same distribution.
        attack: "loss" and "confidence" threshold the fit, with and without the label; "shadow" learns from one shadow
            model; "lira" and "rmia" compare each record with what shadow models make of it. "rmia" needs few of them.
        train: for the last three: from inputs and labels, and a generator, to a classifier like the target.
            `privet.attacks.Fitting` does this for torch modules, and trains many at once.
        population: other records of the distribution that the target was not trained on. "shadow" trains on half of them;
            "rmia" compares each record with them; "lira" can train on them too.
        shadows: how many shadow models "lira" (default 16) or "rmia" (default 4) trains.
        outputs: whether the model's class scores are logits or probabilities.
        seed: of the shadow models.
    """
    if attack not in ("loss", "confidence", "shadow", "lira", "rmia"):
        raise InputError(f"There is no attack {attack!r}: there are loss, confidence, shadow, lira and rmia.")
    unused = {"train": train, "population": population, "shadows": shadows} if attack in ("loss", "confidence") else {}
    unused |= {"shadows": shadows} if attack == "shadow" else {}
    for name, value in unused.items():
        if value is not None:
            raise InputError(f"The {attack} attack does not use {name}: leave it out, or choose the attack 'lira'.")
    if attack in ("loss", "confidence"):
        return LossThreshold("loss" if attack == "loss" else "confidence", outputs)(model, members, non_members)
    if train is None:
        raise InputError(f"The {attack} attack trains its own models: give train, for example privet.attacks.Fitting.")
    generator = torch.Generator().manual_seed(seed)
    if attack == "lira":
        shadows = 16 if shadows is None else shadows
        return lira(
            model, members, non_members, train, generator, shadows=shadows, population=population, outputs=outputs
        ).roc
    if population is None:
        use = "trains on" if attack == "shadow" else "compares with"
        raise InputError(f"The {attack} attack {use} other records: give population, inputs and labels.")
    if attack == "shadow":
        return shadow_roc(model, members, non_members, population, train, generator, outputs=outputs)
    shadows = 4 if shadows is None else shadows
    return rmia(model, members, non_members, population, train, generator, shadows=shadows, outputs=outputs).roc
