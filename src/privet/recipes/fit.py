"""Training by a recipe: releases before training, then steps with the noise that the budget leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from privet.data import Dataset, Progress, Split
from privet.errors import InputError
from privet.methods import dpsgd
from privet.methods.private_accuracy import PrivateAccuracy
from privet.models.features import OnFeatures
from privet.privacy import Ledger
from privet.randomness import before_training
from privet.recipes.methods import Method, method_named
from privet.recipes.prepare import Prepared, build_model, prepare
from privet.recipes.recipe import Recipe, Settings
from privet.recipes.releases import Releases
from privet.training import Plan
from privet.training.folder import RunFolder
from privet.training.standing import OnStep

_NUMBERS_AT_ONCE = 2**22
_ENTRIES = 100
"""So many entries has the history of a long training, about."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """A model that was trained by a recipe."""

    method: Method
    settings: Settings
    prepared: Prepared
    ledger: Ledger
    plan: Plan
    steps: int
    """How many were done: fewer than planned where the budget came to its end before."""
    history: list[dict[str, Any]]
    measuring: PrivateAccuracy | None = None
    """How the accuracy on protected test records is to be measured: charged in the ledger, and not yet read."""

    @property
    def model(self) -> nn.Module:
        return self.prepared.model


def fit(
    recipe: Recipe,
    dataset: Dataset,
    *,
    epsilon: float,
    delta: float,
    method: str = "dpsgd",
    options: Mapping[str, Any] | None = None,
    seed: int | None = None,
    folder: Path | None = None,
    resume: bool = False,
    protect_test: bool = False,
    on_step: OnStep | None = None,
    progress: Progress | None = None,
) -> Fitted:
    """Train by a recipe within (epsilon, delta), everything counted: what is released before training, then the steps.

    Args:
        recipe: what to do.
        dataset: its training records are protected. Rate, steps and divisors follow from its public size; where the user
            did not state one, the ledger says that the number of records is public.
        epsilon, delta: the budget.
        method: how to train; one of `privet.recipes.methods.METHODS`.
        options: what the method takes beside the recipe's settings.
        seed: makes the run repeatable, for experiments; a run that is released has none.
        folder: where the run keeps its ledger, its releases and its checkpoints; without it, in memory.
        resume: continue the run in `folder` where there is one.
        protect_test: the test records are protected, too. Nothing is measured on them in training, and a noisy accuracy
            is charged to the ledger before it, for whoever reads it afterwards. Otherwise the accuracy after each epoch is
            measured on them.
        on_step: called after each step, as `privet.methods.dpsgd.train` does.
        progress: called while features are computed.
    """
    chosen, settings = method_named(method), recipe.at(epsilon)
    if round(settings.sampling_rate * dataset.size) < 1:
        raise InputError(f"{dataset.name} has too few training records for the recipe {recipe.name}.")
    model = build_model(recipe, dataset, seed)
    _check_used(recipe, settings, chosen, model)
    unit = dataset.train.unit
    run = RunFolder(folder, resume=resume, unit=unit) if folder is not None else None
    ledger = run.ledger if run is not None else Ledger(unit=unit)
    ledger.require_unit(unit)
    try:
        if not dataset.size_is_stated:
            ledger.size_is_public()
        releases = Releases(ledger, before_training(seed), folder)
        # Advanced composition would pay for one large release with four times the noise in every step.
        measuring = PrivateAccuracy.within(epsilon, delta) if protect_test and chosen.accountant == "pld" else None
        if measuring is not None:
            releases.get("accuracy", lambda ledger, _: _charged(measuring, ledger))
        prepared = prepare(recipe, settings, dataset, model, releases, progress)
        test = None if protect_test else prepared.test
        trained = _train(
            chosen, settings, prepared, test, dataset.size, epsilon, delta, seed, run or ledger, on_step, options or {}
        )
    finally:
        if run is not None:
            run.close()
    return Fitted(chosen, settings, prepared, trained.ledger, trained.plan, trained.steps, trained.history, measuring)


def _charged(measuring: PrivateAccuracy, ledger: Ledger) -> torch.Tensor:
    measuring.charge(ledger)
    return torch.tensor([measuring.noise_multiplier], dtype=torch.float64)


def _check_used(recipe: Recipe, settings: Settings, method: Method, model: nn.Module) -> None:
    """Raise where the recipe states a setting that this method or this model does not use."""
    unused = {
        "noise_multiplier": (not method.states_noise, f"the method {method.key} calibrates its noise to the budget")
    }
    on_features = isinstance(model, OnFeatures)
    for name in ("mean_noise", "whitening_noise"):
        unused[name] = (not on_features, f"the model {recipe.model.name} has no features to standardise")
    unused["components_noise"] = (on_features, f"the model {recipe.model.name} has no projection")
    for name, (is_unused, why) in unused.items():
        if is_unused and getattr(settings, name):
            raise InputError(
                f"The recipe {recipe.name} states {name}, which would not be used: {why}. Take it out of the recipe, or choose "
                f"another method or model."
            )


def _train(
    method: Method,
    settings: Settings,
    prepared: Prepared,
    test: Split | None,
    records: int,
    epsilon: float,
    delta: float,
    seed: int | None,
    kept: RunFolder | Ledger,
    on_step: OnStep | None,
    options: Mapping[str, Any],
) -> dpsgd.Trained:
    """Train on the prepared records, of which the public number is `records`."""
    lot = round(settings.sampling_rate * records)
    steps = settings.steps or max(1, round(settings.epochs * records / lot))
    # Everything is planned in the settings, also what is recorded before the training.
    where: dict[str, Any] = {"ledger" if isinstance(kept, Ledger) else "folder": kept, "fixed_beforehand": True}
    optimizer = torch.optim.SGD(prepared.part.parameters(), lr=settings.learning_rate, momentum=settings.momentum)
    return method.train(
        prepared.part,
        optimizer,
        prepared.train,
        test=test,
        public_size=records,
        on_step=on_step,
        measure_every=max(1, round(steps * lot / records / _ENTRIES)),
        batch_size=lot,
        physical_batch_size=_physical(prepared.train, lot),
        steps=steps,
        epsilon=epsilon,
        # Noise that a paper states: the budget then ends the training.
        noise_multiplier=(method.states_noise and settings.noise_multiplier) or None,
        delta=delta,
        accountant=method.accountant,
        max_grad_norm=settings.clip,
        loss_reduction="mean",
        average=settings.average or None,
        scheduler=_falling(optimizer, settings) if settings.decay_epochs else None,
        seed=seed,
        **where,
        **options,
    )


def _physical(records: Split, lot: int) -> int | None:
    """As many records as stay in the processor's cache: half the time of a whole lot of wide records."""
    fits = max(1, _NUMBERS_AT_ONCE // records[0][0].numel())
    return fits if fits < lot else None


def _falling(optimizer: torch.optim.Optimizer, settings: Settings) -> torch.optim.lr_scheduler.LRScheduler:
    """The learning rate falls linearly over the first `decay_epochs`, and stays where it is then."""
    end = settings.learning_rate_end / settings.learning_rate
    steps = settings.decay_epochs / settings.sampling_rate
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 + (end - 1) * min(step / steps, 1.0))
