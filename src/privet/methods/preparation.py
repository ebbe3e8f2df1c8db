"""Preparation before the first step: the model of the recipe, fixed features, and the private releases that it needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from privet.data import Dataset, Progress, Split, compute_features, set_aside
from privet.errors import InputError
from privet.methods.method import Context, Task
from privet.methods.private_accuracy import PrivateAccuracy
from privet.methods.recipe import Recipe, TrainingSettings
from privet.methods.statistics import Statistic, private_components, private_mean, private_second_moment
from privet.models import model_arguments, model_named
from privet.models.features import OnFeatures
from privet.privacy import CovarianceRelease, Event, Gaussian, Ledger
from privet.privacy.events import composed
from privet.randomness import Randomness, before_training
from privet.training.releases import Releases

_CHUNK = 2000
_SMALLEST = 1e-3
"""Eigenvalues below this share of the largest are noise, and are raised to it before a power is taken."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """The model, the part of it that is trained, and the records as that part sees them."""

    model: nn.Module
    part: nn.Module
    train: Split
    test: Split


def arguments(recipe: Recipe, dataset: Dataset) -> dict[str, Any]:
    """All arguments of the recipe's model: stated ones, and those that follow from the shape of the records."""
    builder = model_named(recipe.model.name)
    return model_arguments(builder, dataset.shape, dataset.outputs, recipe.model.arguments)


def build_model(recipe: Recipe, dataset: Dataset, seed: int | None) -> nn.Module:
    """The recipe's model for these records, with fresh parameters."""
    with torch.random.fork_rng():
        if seed is not None:
            torch.manual_seed(seed)
        try:
            model = model_named(recipe.model.name)(**arguments(recipe, dataset))
        except TypeError as error:
            raise InputError(f"The model {recipe.model.name} does not fit {dataset.name}: {error}.") from None
    if not isinstance(model, nn.Module):
        raise InputError(f"{recipe.model.name} gave a {type(model).__name__}, and a model is a torch.nn.Module.")
    return cast(nn.Module, model.to(memory_format=torch.channels_last))  # type: ignore[call-overload]


def prepare(
    recipe: Recipe,
    settings: TrainingSettings,
    dataset: Dataset,
    model: nn.Module,
    releases: Releases,
    seed: int | None,
    progress: Progress | None,
) -> Prepared:
    """Make the releases before training; returns the records to train on.

    Formal guarantees: every use of the training records is in the ledger; the test records are not used.
    """
    randomness = before_training(seed)
    if isinstance(model, OnFeatures):
        kept = compute_features(dataset, model.features, model.key, progress=progress)
        _standardise(model, settings, kept.train, dataset.size, releases, randomness)
        return Prepared(model, model.head, *(_through(model.standardise, kept[s]) for s in ("train", "test")))
    if settings.components_noise:
        first, rest = _projecting(recipe, model)
        projection = cast(nn.Linear, first[-1])
        components = releases.get(
            "components",
            lambda ledger: private_components(
                dataset.train,
                projection.out_features,
                noise_multiplier=settings.components_noise,
                ledger=ledger,
                randomness=randomness,
            ),
            randomness,
        )
        projection.weight.data.copy_(components)
        return Prepared(model, rest, *(_through(first, dataset[s]) for s in ("train", "test")))
    return Prepared(model, model, dataset.train, dataset.test)


def planned_releases(settings: TrainingSettings) -> Event:
    """The events that `prepare` will record in the ledger."""
    return composed(
        *([Gaussian(settings.mean_noise)] if settings.mean_noise else []),
        *([CovarianceRelease(settings.whitening_noise)] * 2 if settings.whitening_noise else []),
        *([CovarianceRelease(settings.components_noise)] if settings.components_noise else []),
    )


def outputs(
    model: nn.Module, dataset: Dataset, progress: Progress | None = None, aside: int = 0
) -> tuple[Tensor, Tensor]:
    """The class scores of all training records and of all test records; features come from the cache.

    `aside` test records were public ones in training, and are left out.
    """
    rest: nn.Module = model
    if isinstance(model, OnFeatures):
        dataset = compute_features(dataset, model.features, model.key, progress=progress)
        rest = nn.Sequential(model.standardise, model.head)
    dataset = set_aside(dataset, aside)
    return scores(rest, dataset.train), scores(rest, dataset.test)


def scores(model: nn.Module, records: Split, on_batch: Callable[[int], None] = lambda done: None) -> Tensor:
    """The class scores of every record. The model is in evaluation mode afterward.

    `on_batch` is called after each batch with the number of finished records. Batches are small: a convolutional network is
    twice as fast if a batch fits into the cache.
    """
    model.eval()
    found, done = [], 0
    with torch.no_grad():
        for rows in torch.arange(len(records)).split(250):
            found.append(model(records.batch(rows)[0]))
            on_batch(done := done + len(rows))
    return torch.cat(found)


def _standardise(
    model: OnFeatures,
    settings: TrainingSettings,
    records: Split,
    size: int,
    releases: Releases,
    randomness: Randomness,
) -> None:
    """Put the private mean and the private whitening of the features into the model.

    Sums are divided by `size`, the public number of training records, as in the plan of the steps that follow.
    """
    layer = model.standardise
    if settings.mean_noise:
        mean = releases.get(
            "mean",
            lambda ledger: private_mean(
                records,
                bound=math.sqrt(layer.mean.numel()),
                noise_multiplier=settings.mean_noise,
                public_size=size,
                ledger=ledger,
                randomness=randomness,
            ),
            randomness,
        )
        layer.mean.copy_(mean.view_as(layer.mean))
    if settings.whitening_noise:

        def centered(rows: Tensor) -> Tensor:
            return rows.flatten(2) - layer.mean

        for name, view in (("channels", lambda rows: centered(rows).mT), ("places", centered)):

            def release(ledger: Ledger, view: Statistic = view) -> Tensor:
                noise = settings.whitening_noise
                return private_second_moment(
                    records,
                    noise_multiplier=noise,
                    public_size=size,
                    ledger=ledger,
                    randomness=randomness,
                    view=view,
                )

            moment = releases.get(name, release, randomness)
            getattr(layer, name).copy_(_power(moment * len(moment), settings.whitening_power))


def _power(matrix: Tensor, power: float) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    values = values.clamp(min=_SMALLEST * float(values.max()))
    powered: Tensor = (vectors * values**power) @ vectors.mT
    return powered.to(torch.float32)


def _projecting(recipe: Recipe, model: nn.Module) -> tuple[nn.Sequential, nn.Sequential]:
    """A sequential model cut after its frozen projection."""
    if isinstance(model, nn.Sequential):
        layers = list(model)
        for place, layer in enumerate(layers, 1):
            if isinstance(layer, nn.Linear) and not layer.weight.requires_grad:
                return nn.Sequential(*layers[:place]), nn.Sequential(*layers[place:])
    raise InputError(f"The recipe {recipe.name} asks for DP-PCA, and its model {recipe.model.name} has no projection.")


def _through(layer: nn.Module, records: Split) -> Split:
    """The records after a layer, computed once."""
    with torch.no_grad():
        first = layer(records.batch([0])[0])
        made = torch.empty(len(records), *first.shape[1:], dtype=first.dtype)
        for rows in torch.arange(len(records)).split(_CHUNK):
            made[rows[0] : rows[-1] + 1] = layer(records.batch(rows)[0])
    return records.with_inputs(made)


def reserve_accuracy(task: Task, context: Context) -> PrivateAccuracy | None:
    """Charge a noisy accuracy on protected test records before anything else is planned; only once if the run is resumed."""
    if not context.protect_test:
        return None
    plan = PrivateAccuracy.within(task.epsilon, task.delta, context.ledger.relation)
    context.releases.get("accuracy", plan.charge)
    return plan
