"""One call for the membership attacks on any classifier."""

from __future__ import annotations

from typing import Literal

import torch

from privet.attacks.answers import Classifier, Outputs, Records, as_inputs
from privet.attacks.fitting import Train, shadow_outputs
from privet.attacks.lira import lira
from privet.attacks.loss_threshold import LossThreshold
from privet.attacks.roc import Roc
from privet.attacks.shadow import ShadowAttack
from privet.errors import InputError

Attack = Literal["loss", "confidence", "shadow", "lira"]


def membership(
    model: Classifier,
    members: Records,
    non_members: Records,
    *,
    attack: Attack = "loss",
    train: Train | None = None,
    population: Records | None = None,
    shadows: int | None = None,
    outputs: Outputs = "logits",
    seed: int = 0,
) -> Roc:
    """Can records that a classifier was trained on be told from records that it was not?

        privet.attacks.membership(model, (x_train, y_train), (x_test, y_test)).auc

    Args:
        model: a torch module, a scikit-learn estimator, or a function from a batch to class scores.
        members, non_members: inputs and integer labels, as arrays or tensors; both kinds from one distribution.
        attack: "loss" and "confidence" threshold the fit, with and without the label; "shadow" learns from one shadow
            model; "lira" compares each record with what shadow models make of it, and is the strongest.
        train: for the last two: from inputs and labels, and a generator, to a classifier like the target;
            `privet.attacks.Fitting` does it for torch modules, and many at once.
        population: other records of the distribution, that the target was not trained on: a shadow is trained on half of
            them. Needed by "shadow"; "lira" can use it.
        shadows: how many shadow models "lira" trains; 16 without it.
        outputs: whether the model's class scores are logits or probabilities.
    """
    unused = {"train": train, "population": population, "shadows": shadows} if attack in ("loss", "confidence") else {}
    unused |= {"shadows": shadows} if attack == "shadow" else {}
    for name, value in unused.items():
        if value is not None:
            raise InputError(f"The {attack} attack does not use {name}: leave it out, or choose the attack 'lira'.")
    if attack in ("loss", "confidence"):
        return LossThreshold(attack, outputs)(model, members, non_members)
    if attack not in ("shadow", "lira"):
        raise InputError(f"There is no attack {attack!r}: there are loss, confidence, shadow and lira.")
    if train is None:
        raise InputError(
            f"The {attack} attack trains models of its own: give train, for example privet.attacks.Fitting."
        )
    generator = torch.Generator().manual_seed(seed)
    if attack == "lira":
        return lira(
            model,
            members,
            non_members,
            train,
            generator,
            shadows=16 if shadows is None else shadows,
            population=population,
            outputs=outputs,
        ).roc
    if population is None:
        raise InputError("The shadow attack trains on records of its own: give population, inputs and labels.")
    x, y = as_inputs(population[0]), torch.as_tensor(population[1])
    inside, outside = torch.randperm(len(x), generator=generator).tensor_split(2)
    shadow = train((x[inside], y[inside]), generator)
    learnt = ShadowAttack().learn(shadow, x[inside], x[outside], generator, shadow_outputs(train, outputs))
    return Roc.of(*(learnt.scores(model, side[0], outputs) for side in (members, non_members)))
