"""Residual perturbation as published: ordinary training of a perturbed network, every epoch in the ledger.

`train` is the paper's, and an `Answering` network serves strategy II; `train_by_dpsgd` is the sound practical form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privet.data import Split
from privet.errors import InputError
from privet.methods import dpsgd
from privet.methods.dpsgd import OnStep, accuracy
from privet.methods.perturbation import AppliedPerturbation, ResidualPerturbation
from privet.privacy import Event, Ledger, Relation
from privet.randomness import Randomness, Source
from privet.training import BudgetExhausted

UNIT = "record (its label is public)"
REGULARISER = ResidualPerturbation(0.5)
"""The paper's gamma for the network that it compares with DP-SGD is between 0.3 and 0.75."""


@dataclass(frozen=True)
class Schedule:
    """How a network is trained: stochastic gradient descent with momentum, whose rate falls at milestones (He et al. 2016).

    Attributes:
        epochs: passes over the shuffled records.
        batch_size: records of a step; the last batch of an epoch holds what is left.
        learning_rate: at the beginning.
        milestones: after so many epochs the rate is divided by `division`.
    """

    epochs: int = 164
    batch_size: int = 128
    learning_rate: float = 0.1
    milestones: tuple[int, ...] = (82, 123)
    division: float = 10.0
    momentum: float = 0.9
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise InputError("A training has at least one epoch, and a batch at least one record.")

    def for_members(self, members: int) -> Schedule:
        """For an ensemble: the average divides each member's gradient by their number, for which the rate makes up."""
        return replace(self, learning_rate=self.learning_rate * members)

    def rate(self, epoch: int) -> float:
        """The learning rate of epoch 0, 1, 2, ..."""
        return self.learning_rate / self.division ** sum(epoch >= milestone for milestone in self.milestones)


@dataclass(frozen=True, eq=False)
class Perturbed:
    """A network that was trained under residual perturbation, with what was done to the data.

    The noise is in the network until ``applied.remove()``: its answers are meant to have it.
    """

    model: nn.Module
    applied: AppliedPerturbation
    ledger: Ledger
    steps: int
    history: list[dict[str, Any]] = field(default_factory=list)
    """One entry for each epoch: step, loss, epsilon, and the accuracy on the test records where there are any."""


def train(
    model: nn.Module,
    records: Split,
    perturbation: ResidualPerturbation,
    schedule: Schedule | None = None,
    *,
    delta: float,
    test: Split | None = None,
    blocks: Sequence[str] | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    on_step: OnStep | None = None,
    ledger: Ledger | None = None,
    seed: int | None = None,
) -> Perturbed:
    """Train a network with noise in its residual stream.

    Formal guarantees: each epoch is in the ledger before its first step, as `ResidualPerturbation.epoch` counts it; each
    record is seen once in an epoch, and under `pi` only as its clipped input plus fresh noise. Labels are taken as public, and
    so is the number of records: the ledger's neighbours replace one record's input.

    Args:
        model: any network with residual blocks; it may have batch norm, since noise on the input comes before it.
        records: the data.
        perturbation: the noise.
        schedule: how to train.
        delta: of the statement.
        test: records on which the accuracy is measured after the last epoch.
        blocks: names of the residual blocks, as in `ResidualPerturbation.apply`.
        on_step: called after each step, as `privet.methods.dpsgd.train` does; it may end the training with `BudgetExhausted`.
        ledger: where the epochs are recorded; it must be for replacing a record.
        seed: makes the order and the noise repeatable, for experiments; a model that is released has none.
    """
    records.require_records("Residual perturbation")
    schedule = schedule or Schedule()
    ledger = ledger if ledger is not None else Ledger(relation=Relation.REPLACE_ONE, unit=UNIT)
    if ledger.relation is not Relation.REPLACE_ONE:
        raise InputError("Residual perturbation hides which input a record has: its ledger is for replace-one.")
    randomness = Randomness.of(seed)
    applied = perturbation.apply(model, blocks=blocks, source=randomness.noise)
    event = applied.epoch
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=schedule.learning_rate,
        momentum=schedule.momentum,
        weight_decay=schedule.weight_decay,
    )
    per_epoch = math.ceil(len(records) / schedule.batch_size)
    steps, done, history = schedule.epochs * per_epoch, 0, list[dict[str, Any]]()
    model.train()
    try:
        for epoch in range(schedule.epochs):
            ledger.record(event)
            epsilon = ledger.spent(delta).epsilon
            standing = {"epsilon": epsilon, "delta": delta, "guarantee": str(event.guarantee)}
            for group in optimizer.param_groups:
                group["lr"] = schedule.rate(epoch)
            history.append({"epsilon": epsilon})
            total, seen = 0.0, 0
            for chosen in _permutation(len(records), randomness.sampling).split(schedule.batch_size):
                inputs, labels = records.batch(chosen)
                optimizer.zero_grad()
                value = loss(model(_as_the_weights(inputs, model)), labels)
                value.backward()
                optimizer.step()
                done, seen, total = done + 1, seen + len(chosen), total + float(value.detach()) * len(chosen)
                history[-1] |= {"step": done, "loss": total / seen}
                if on_step is not None:
                    on_step({"step": done, "steps": steps, "loss": float(value.detach()), **standing})
    except BudgetExhausted:
        pass  # the whole of the epoch is in the ledger: what was trained until here is the model
    if test is not None:
        history[-1]["accuracy"] = accuracy(model, test)
    model.eval()
    return Perturbed(model, applied, ledger, done, history)


def train_by_dpsgd(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    records: Split,
    *,
    perturbation: ResidualPerturbation = REGULARISER,
    blocks: Sequence[str] | None = None,
    **settings: Any,
) -> dpsgd.Trained:
    """DP-SGD on a network without batch norm, with the noise in its stream as a regulariser, in training alone.

    Formal guarantees: those of DP-SGD. A record's noise in the stream depends on no other record, so that its gradient is
    clipped as ever; it adds nothing to the proof. `settings` are those of `privet.methods.dpsgd.train`.
    """
    with perturbation.apply(model, blocks=blocks, at_test=False):
        return dpsgd.train(model, optimizer, records, **settings)


@dataclass(frozen=True, eq=False)
class Answering:
    """A network of strategy II that answers, and whose weights stay hidden: every answer is in the ledger before it is given.

    Formal guarantees: those of Theorem 2, under its assumptions, which travel with every event. An ensemble has the blocks and
    the last layers of all its members, and pays for each, also where they are joined into one network, which answers few rows
    faster::

        network = ensemble.joined()
        serving = Answering(network, perturbation.apply(network))
    """

    model: nn.Module
    applied: AppliedPerturbation
    ledger: Ledger = field(default_factory=lambda: Ledger(relation=Relation.REPLACE_ONE))

    def __post_init__(self) -> None:
        self.query  # noqa: B018  (refused here, not at the first question)

    @property
    def query(self) -> Event:
        """What one answer costs."""
        return self.applied.query

    def predict(self, inputs: Tensor) -> Tensor:
        """The class scores of each row, with fresh noise."""
        if not (self.applied.at_test and self.applied.is_in(self.model)):
            raise InputError("The network would answer without noise: apply the perturbation to it.")
        self.ledger.record(self.query, len(inputs))
        self.model.eval()
        with torch.no_grad():
            answers: Tensor = self.model(inputs)
        return answers


def _permutation(count: int, source: Source) -> Tensor:
    if isinstance(source, torch.Generator):
        return torch.randperm(count, generator=source)
    return source.integers(count).argsort()


def _as_the_weights(inputs: Tensor, model: nn.Module) -> Tensor:
    """Images in the memory format of the first convolution."""
    first = next((p for p in model.parameters() if p.ndim == 4), None)
    if inputs.ndim == 4 and first is not None and first.is_contiguous(memory_format=torch.channels_last):
        return inputs.contiguous(memory_format=torch.channels_last)
    return inputs
