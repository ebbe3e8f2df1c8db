"""Training by a recipe: releases before training, then DP-SGD with the noise that the budget leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from privet.data import Dataset, Progress
from privet.errors import InputError
from privet.methods import dpsgd
from privet.privacy import Ledger, calibrate_steps
from privet.recipes.prepare import Prepared, prepare
from privet.recipes.recipe import Recipe, Settings
from privet.training import Plan

OnStep = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model that was trained by a recipe."""

    settings: Settings
    prepared: Prepared
    ledger: Ledger
    plan: Plan
    history: list[dict[str, Any]]

    @property
    def model(self) -> nn.Module:
        return self.prepared.model


def fit(
    recipe: Recipe,
    dataset: Dataset,
    *,
    epsilon: float,
    delta: float,
    seed: int | None = None,
    ledger: Ledger | None = None,
    on_step: OnStep | None = None,
    progress: Progress | None = None,
) -> Fitted:
    """Train by a recipe within (epsilon, delta), everything counted: what is released before training, then the steps.

    Args:
        recipe: what to do.
        dataset: its training records are protected; the accuracy after each epoch is measured on its test records.
        epsilon, delta: the budget.
        seed: makes the run repeatable, for experiments; a run that is released has none.
        ledger: where every use of the records is recorded; without it, in memory.
        on_step: called after each step, as `privet.methods.dpsgd.train` does.
        progress: called while features are computed.
    """
    settings = recipe.at(epsilon)
    ledger = ledger if ledger is not None else Ledger()
    prepared = prepare(recipe, settings, dataset, seed=seed, ledger=ledger, progress=progress)
    lot = round(settings.sampling_rate * len(dataset.train))
    if lot < 1:
        raise InputError(f"{dataset.name} has {len(dataset.train)} training records, too few for {recipe.name}.")
    steps = settings.steps or max(1, round(settings.epochs * len(dataset.train) / lot))
    noise: dict[str, Any] = {"epsilon": epsilon}
    if settings.noise_multiplier:
        affordable = calibrate_steps(
            epsilon, delta, lot / len(dataset.train), settings.noise_multiplier, before=ledger.event
        )
        steps, noise = min(steps, affordable), {"noise_multiplier": settings.noise_multiplier}
    optimizer = torch.optim.SGD(prepared.part.parameters(), lr=settings.learning_rate, momentum=settings.momentum)
    trained = dpsgd.train(
        prepared.part,
        optimizer,
        prepared.train,
        test=prepared.test,
        on_step=on_step,
        ledger=ledger,
        batch_size=lot,
        steps=steps,
        delta=delta,
        max_grad_norm=settings.clip,
        loss_reduction="mean",
        average=settings.average or None,
        scheduler=_falling(optimizer, settings) if settings.decay_epochs else None,
        seed=seed,
        **noise,
    )
    return Fitted(settings, prepared, ledger, trained.plan, trained.history)


def _falling(optimizer: torch.optim.Optimizer, settings: Settings) -> torch.optim.lr_scheduler.LRScheduler:
    """The learning rate falls linearly over the first `decay_epochs`, and stays where it is then."""
    end = settings.learning_rate_end / settings.learning_rate
    steps = settings.decay_epochs / settings.sampling_rate
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 + (end - 1) * min(step / steps, 1.0))
