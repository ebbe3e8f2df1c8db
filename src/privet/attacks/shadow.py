"""The shadow-model attack (Salem et al. 2018), as the residual-perturbation paper runs it.

The attacker trains a shadow model like the target on its own records, learns from the shadow's answers what members look
like, and applies that to the target's answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from privet.attacks.classifiers import (
    Classifier,
    Inputs,
    Outputs,
    Records,
    Train,
    as_inputs,
    class_scores,
    sample,
    shadow_outputs,
)
from privet.attacks.result import AttackResult, Roc
from privet.attacks.target import Target, register, require, why_no_model
from privet.data import Progress
from privet.errors import InputError


@dataclass(frozen=True, eq=False)
class MembershipModel:
    """A network that predicts from a classifier's answer whether the record was trained on."""

    network: nn.Module

    def scores(self, model: Classifier, inputs: Inputs, outputs: Outputs = "logits") -> NDArray[np.float64]:
        """The log-odds of membership of each record; labels are not used."""
        with torch.no_grad():
            two: Tensor = self.network(features(model, inputs, outputs)).double()
        result: NDArray[np.float64] = (two[:, 1] - two[:, 0]).numpy()
        return result


@dataclass(frozen=True)
class ShadowAttack:
    """How the attack network learns: one hidden layer of 64 units and a softmax, on all of the shadow's answers.

    The paper names no optimizer; this one is Adam for `epochs` passes.
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
        """Train the attack network on the answers of a shadow model for its training records and for others."""
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
    """The three largest class probabilities of each record, sorted; two if there are two classes."""
    probabilities = class_scores(model, inputs, outputs=outputs).softmax(dim=1)
    return probabilities.topk(min(3, probabilities.shape[1]), dim=1).values.float()


def shadow_roc(
    model: Classifier,
    members: Records,
    non_members: Records,
    population: Records,
    train: Train,
    generator: torch.Generator,
    *,
    outputs: Outputs = "logits",
) -> Roc:
    """Train a shadow model on half of the population, learn from its answers, and apply that to the target's answers."""
    x, y = as_inputs(population[0]), torch.as_tensor(population[1])
    inside, outside = torch.randperm(len(x), generator=generator).tensor_split(2)
    shadow = train((x[inside], y[inside]), generator)
    learned = ShadowAttack().learn(shadow, x[inside], x[outside], generator, shadow_outputs(train, outputs))
    return Roc.of(*(learned.scores(model, side[0], outputs) for side in (members, non_members)))


@register
@dataclass(frozen=True)
class Shadow:
    """Learn from one shadow model what members look like. Half of the others train it, and are then not attacked.

    Attributes:
        records: at most this many of each side are used.
        epochs: of the shadow model, unless the target says how it was trained.
        seed: of the sample, the shadow model and the attack network.
    """

    records: int = 2000
    epochs: int = 20
    seed: int = 0

    key: ClassVar[str] = "shadow"
    title: ClassVar[str] = "Shadow model"

    def fits(self, target: Target) -> str:
        """Why the attack cannot run on this target; empty if it can."""
        return why_no_model(target, 1, 8)

    def run(self, target: Target, progress: Progress | None = None) -> AttackResult:
        """Attack a sample of the members and half of a sample of the others."""
        require(self, target)
        generator = torch.Generator().manual_seed(self.seed)
        members, (x, y) = (sample(side, self.records, generator) for side in (target.members, target.others))
        half = len(x) // 2
        others, population = (x[:half], y[:half]), (x[half:], y[half:])
        generator = torch.Generator().manual_seed(self.seed)
        roc = shadow_roc(target.model, members, others, population, target.trainer(self.epochs, progress), generator)
        power = (
            f"The attacker queries the model with each record, does not know its label, and has a shadow model of the same "
            f"architecture, {target.shadows} on other records"
        )
        return AttackResult.of(f"{self.title} ({target.shadows})", roc, attack=self, power=power)


@dataclass(frozen=True, eq=False)
class Quarters:
    """The result of `quarters`: the ROC, the two models, and the indices of the target's records."""

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
    """The whole protocol: a training set is divided into quarters (shadow in and out, target in and out).

    Both models are trained by `train`. The attack network learns from all of the shadow's answers and is tested on all of the
    target's.
    """
    x, y = as_inputs(inputs), torch.as_tensor(labels)
    if len(x) < 4 or len(x) != len(y):
        raise InputError(f"{len(x)} inputs and {len(y)} labels cannot be quartered: give at least four of each.")
    shadow_in, shadow_out, target_in, target_out = torch.randperm(len(x), generator=generator).tensor_split(4)
    attack = attack or ShadowAttack()
    shadow, target = (train((x[part], y[part]), generator) for part in (shadow_in, target_in))
    learned = attack.learn(shadow, x[shadow_in], x[shadow_out], generator)
    roc = Roc.of(learned.scores(target, x[target_in]), learned.scores(target, x[target_out]))
    return Quarters(roc, target, shadow, target_in, target_out)
