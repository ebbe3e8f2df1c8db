"""DP-SGD: noise in the gradient (Abadi et al. 2016), as one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from privet.data import Split
from privet.privacy import Ledger
from privet.training import Plan, make_private

OnStep = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, eq=False)
class Trained:
    """A privately trained model with what was done to the data."""

    model: nn.Module
    ledger: Ledger
    plan: Plan
    history: list[dict[str, Any]] = field(default_factory=list)
    """One entry for each epoch: step, epsilon, and the accuracy on the test records where there are any."""


def train(
    model: nn.Module,
    optimizer: Optimizer,
    records: Split,
    *,
    test: Split | None = None,
    on_step: OnStep | None = None,
    ledger: Ledger | None = None,
    **settings: Any,
) -> Trained:
    """Train a classifier privately; `settings` are those of `privet.make_private`.

    `on_step` gets a dictionary with step, steps, loss and epsilon after each step. The loss is that of the records in the
    batch: it is for the eyes of whoever holds the data, it is not noised and it is not kept.
    """
    ledger = ledger if ledger is not None else Ledger()
    private = make_private(model, optimizer, records, ledger=ledger, **settings)
    history: list[dict[str, Any]] = []
    steps_per_epoch = max(round(1 / private.plan.sampling.rate), 1)
    model.train()
    for inputs, labels in private.batches():
        before = private.steps_done
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        step = private.steps_done
        if step == before:
            continue
        if on_step is not None:
            epsilon = private.spent().epsilon
            on_step({"step": step, "steps": private.plan.steps, "loss": float(loss.detach()), "epsilon": epsilon})
        if step % steps_per_epoch == 0 or step == private.plan.steps:
            entry: dict[str, Any] = {"step": step, "epoch": step / steps_per_epoch, "epsilon": private.spent().epsilon}
            if test is not None:
                entry["accuracy"] = accuracy(model, test)
            history.append(entry)
    return Trained(model, ledger, private.plan, history)


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
