"""The shadow-model attack (Salem et al. 2018), as the residual-perturbation paper runs it.

The attacker trains a shadow model like the target on records of its own, learns from the shadow's answers what members look
like, and asks the target.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from privet.attacks.answers import Classifier, Inputs, Outputs, as_inputs, class_scores
from privet.attacks.fitting import Train
from privet.attacks.roc import Roc
from privet.errors import InputError


@dataclass(frozen=True, eq=False)
class MembershipModel:
    """A network that tells from a classifier's answer whether the record was trained on."""

    network: nn.Module

    def scores(self, model: Classifier, inputs: Inputs, outputs: Outputs = "logits") -> NDArray[np.float64]:
        """The log-odds of membership of each record; the label is not used."""
        with torch.no_grad():
            two: Tensor = self.network(features(model, inputs, outputs)).double()
        result: NDArray[np.float64] = (two[:, 1] - two[:, 0]).numpy()
        return result


@dataclass(frozen=True)
class ShadowAttack:
    """How the attack network learns: one hidden layer of 64, softmax, on all of the shadow's answers.

    The paper gives no optimizer; this is Adam for `epochs` passes.
    """

    hidden: int = 64
    epochs: int = 60
    batch_size: int = 128
    learning_rate: float = 3e-3

    def learn(
        self,
        shadow: Classifier,
        inside: Inputs,
        outside: Inputs,
        generator: torch.Generator,
        outputs: Outputs = "logits",
    ) -> MembershipModel:
        """The attack network, from the answers of a shadow model on its training records and on others."""
        seen = [features(shadow, side, outputs) for side in (inside, outside)]
        x = torch.cat(seen)
        y = torch.cat([torch.ones(len(seen[0])), torch.zeros(len(seen[1]))]).long()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
            network = nn.Sequential(nn.Linear(x.shape[1], self.hidden), nn.ReLU(), nn.Linear(self.hidden, 2))
        optimizer = torch.optim.Adam(network.parameters(), lr=self.learning_rate)
        for _ in range(self.epochs):
            for chosen in torch.randperm(len(x), generator=generator).split(self.batch_size):
                optimizer.zero_grad()
                F.cross_entropy(network(x[chosen]), y[chosen]).backward()
                optimizer.step()
        return MembershipModel(network)


def features(model: Classifier, inputs: Inputs, outputs: Outputs = "logits") -> Tensor:
    """The three largest class probabilities of each record, sorted; two where there are two classes."""
    probabilities = class_scores(model, inputs, outputs=outputs).softmax(dim=1)
    return probabilities.topk(min(3, probabilities.shape[1]), dim=1).values.float()


@dataclass(frozen=True, eq=False)
class Quarters:
    """The whole protocol's result: the target that was attacked, the ROC, and the records of each role."""

    roc: Roc
    target: Classifier
    shadow: Classifier
    target_in: Tensor
    target_out: Tensor


def quarters(
    train: Train,
    inputs: Inputs,
    labels: Inputs,
    generator: torch.Generator,
    attack: ShadowAttack | None = None,
) -> Quarters:
    """The protocol from the beginning: a training set in quarters (shadow in and out, target in and out).

    Both models are trained by `train`; the attack is trained on all answers of the shadow and asked about all of the target's.
    """
    x, y = as_inputs(inputs), torch.as_tensor(labels)
    if len(x) < 4 or len(x) != len(y):
        raise InputError(f"{len(x)} inputs and {len(y)} labels cannot be quartered: give at least four of both.")
    shadow_in, shadow_out, target_in, target_out = torch.randperm(len(x), generator=generator).tensor_split(4)
    attack = attack or ShadowAttack()
    shadow, target = (train((x[part], y[part]), generator) for part in (shadow_in, target_in))
    learnt = attack.learn(shadow, x[shadow_in], x[shadow_out], generator)
    roc = Roc.of(learnt.scores(target, x[target_in]), learnt.scores(target, x[target_out]))
    return Quarters(roc, target, shadow, target_in, target_out)
