"""DP-SGD: noise in the gradient (Abadi et al. 2016), as one call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from privet.data import Split
from privet.errors import InputError
from privet.privacy import Ledger
from privet.training import BudgetExhausted, Plan, Private, make_private
from privet.training.logs import OnStep as OnStep
from privet.training.logs import StepReport

Loss = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Trained:
    """A privately trained model with what was done to the data."""

    model: nn.Module
    ledger: Ledger
    plan: Plan
    history: list[dict[str, Any]] = field(default_factory=list)
    """One entry for each epoch, or every few: step, epsilon, the mean loss of its steps, and the accuracy on the test
    records where there are any; where the model is averaged, the last entry also has the accuracy of the last parameters.
    The loss is that of training records, without noise: for the eyes of whoever holds them."""
    steps: int = 0
    """How many steps were done: fewer than planned where the budget came to its end before."""


def train(
    model: nn.Module,
    optimizer: Optimizer,
    records: Split,
    *,
    test: Split | None = None,
    loss: Loss = nn.functional.cross_entropy,
    augment: Callable[[Tensor], Tensor] | None = None,
    on_step: OnStep | None = None,
    ledger: Ledger | None = None,
    views: int = 1,
    measure_every: int = 1,
    **settings: Any,
) -> Trained:
    """Train a classifier privately.

    Args:
        model, optimizer, records, views, settings: as in `privet.make_private`. With ``average=0.95``, the model that is
            measured and returned is the averaged one; with ``folder=..., resume=True`` a run that was killed goes on.
        test: records on which the accuracy is measured after each epoch.
        loss: of the model's outputs and the labels; a mean or a sum over the records.
        augment: turns a batch of inputs into other ones of the same length, record by record; with `views`, each
            record comes that many times.
        on_step: gets a dictionary with step, steps, loss and epsilon after each step. The loss is that of the records in
            the batch: it is for the eyes of whoever holds the data, and not noised. Epsilon is computed
            a few times a second and after the last step: it may be a few steps old.
        ledger: where the steps are recorded.
        measure_every: epochs from one entry of the history to the next. Its epsilon and its accuracy take time of their own.
    """
    if measure_every < 1:
        raise InputError(f"measure_every is a number of epochs from 1 on, not {measure_every}.")
    history = _History(measure_every)
    private = make_private(
        model, optimizer, records, ledger=ledger, views=views, stateful={"history": history}, **settings
    )

    with closing(private):
        model.train()
        try:
            _loop(private, history, model, optimizer, loss, augment, views, test, on_step)
        except BudgetExhausted:
            # Steps that were counted twice, or a noise multiplier that was given: what was trained until here is the model.
            if private.steps_done == 0:
                raise
        if history.last_step != private.steps_done:
            history.add(private, model, test)
    if private.average is not None:
        if test is not None:
            history.entries[-1]["last_accuracy"] = accuracy(model, test)
        private.average.keep()
    return Trained(model, private.ledger, private.plan, history.entries, private.steps_done)


def _loop(
    private: Private,
    history: _History,
    model: nn.Module,
    optimizer: Optimizer,
    loss: Loss,
    augment: Callable[[Tensor], Tensor] | None,
    views: int,
    test: Split | None,
    on_step: OnStep | None,
) -> None:
    standing = StepReport(private)
    for inputs, labels in private.batches() if private.steps_done < private.plan.steps else ():
        before = private.steps_done
        if views > 1:
            inputs, labels = inputs.repeat_interleave(views, 0), labels.repeat_interleave(views, 0)
        if augment is not None:
            inputs = augment(inputs)
        optimizer.zero_grad()
        value = loss(model(inputs), labels)
        value.backward()
        optimizer.step()
        step = private.steps_done
        if step == before:
            continue
        history.losses.append(float(value.detach()))
        if on_step is not None:
            on_step({"loss": history.losses[-1], **standing(), **history.accuracy})
        if history.is_due(private):
            history.add(private, model, test)


class _History:
    """The entries of the epochs, which a checkpoint keeps."""

    def __init__(self, every: int) -> None:
        self.every = every
        """Epochs from one entry to the next."""
        self.entries: list[dict[str, Any]] = []
        self.losses: list[float] = []
        """Of the steps since the last entry; a step that drew no record has none."""

    @property
    def last_step(self) -> int:
        return int(self.entries[-1]["step"]) if self.entries else 0

    def is_due(self, private: Private) -> bool:
        steps = self.every * private.steps_per_epoch
        return private.steps_done // steps > self.last_step // steps

    @property
    def accuracy(self) -> dict[str, float]:
        """That of the last entry, where it was measured."""
        last = self.entries[-1] if self.entries else {}
        return {"accuracy": last["accuracy"]} if "accuracy" in last else {}

    def add(self, private: Private, model: nn.Module, test: Split | None) -> None:
        """Measure where the run stands; with an average, it is the averaged model that is measured."""
        step, epsilon = private.steps_done, private.spent().epsilon
        entry: dict[str, Any] = {"step": step, "epoch": step / private.steps_per_epoch, "epsilon": epsilon}
        if self.losses:
            entry["loss"] = fmean(self.losses)
        if test is not None:
            with private.average.applied() if private.average else nullcontext():
                entry["accuracy"] = accuracy(model, test)
        self.entries.append(entry)
        self.losses.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"entries": list(self.entries), "losses": list(self.losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.entries[:], self.losses[:] = state["entries"], state["losses"]


def accuracy(model: nn.Module, split: Split, batch_size: int = 2000) -> float:
    """The fraction of records whose label the model gives."""
    was_training = model.training
    model.eval()
    right = 0
    with torch.no_grad():
        for indices in torch.arange(len(split)).split(batch_size):
            inputs, labels = split.batch(indices)
            predicted: Tensor = model(inputs).argmax(1)
            right += int((predicted == labels).sum())
    model.train(was_training)
    return right / len(split)
