"""What happens before the first step: fixed features, and the private releases that a recipe asks for."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from privet import models
from privet.data import Dataset, Progress, Split, compute_features, set_aside
from privet.errors import InputError
from privet.methods.dp_pca import private_components
from privet.methods.statistics import Statistic, private_mean, private_second_moment
from privet.models.features import OnFeatures
from privet.privacy import Ledger
from privet.randomness import Randomness
from privet.recipes.recipe import Recipe, Settings
from privet.recipes.releases import Releases

_CHUNK = 2000
_SMALLEST = 1e-3
"""Eigenvalues below this share of the largest are noise: they are lifted to it before a power is taken."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """The model, the part of it that is trained, and the records as that part sees them."""

    model: nn.Module
    part: nn.Module
    train: Split
    test: Split


def arguments(recipe: Recipe, dataset: Dataset) -> dict[str, int]:
    """All arguments of the recipe's model: those that it states, and those that follow from the shape of the records."""
    known = {"classes": len(dataset.classes), "inputs": math.prod(dataset.shape), "features": math.prod(dataset.shape)}
    if len(dataset.shape) == 3:
        known |= dict(zip(("channels", "height", "width"), dataset.shape, strict=True))
    asked = inspect.signature(models.MODELS[recipe.model.name]).parameters
    if "channels" in asked and "channels" not in known:
        raise InputError(f"The recipe {recipe.name} does not fit {dataset.name}: it is for images.")
    return {name: value for name, value in known.items() if name in asked} | recipe.model.arguments


def build_model(recipe: Recipe, dataset: Dataset, seed: int | None) -> nn.Module:
    """The recipe's model for these records, with fresh parameters."""
    with torch.random.fork_rng():
        if seed is not None:
            torch.manual_seed(seed)
        try:
            model = models.MODELS[recipe.model.name](**arguments(recipe, dataset))
        except TypeError as error:
            raise InputError(f"The recipe {recipe.name} does not fit {dataset.name}: {error}.") from None
    return cast(nn.Module, model.to(memory_format=torch.channels_last))  # type: ignore[call-overload]


def prepare(
    recipe: Recipe,
    settings: Settings,
    dataset: Dataset,
    model: nn.Module,
    releases: Releases,
    progress: Progress | None,
) -> Prepared:
    """Make the releases that come before training, and give the records to train on.

    Formal guarantees: every look at the training records is in the ledger; the test records take no part.
    """
    if isinstance(model, OnFeatures):
        kept = compute_features(dataset, model.features, model.key, progress=progress)
        _standardise(model, settings, kept.train, dataset.size, releases)
        return Prepared(model, model.head, *(_through(model.standardise, kept[s]) for s in ("train", "test")))
    if settings.components_noise:
        first, rest = _projecting(recipe, model)
        projection = cast(nn.Linear, first[-1])
        components = releases.get(
            "components",
            lambda ledger, randomness: private_components(
                dataset.train,
                projection.out_features,
                noise_multiplier=settings.components_noise,
                ledger=ledger,
                randomness=randomness,
            ),
        )
        projection.weight.data.copy_(components)
        return Prepared(model, rest, *(_through(first, dataset[s]) for s in ("train", "test")))
    return Prepared(model, model, dataset.train, dataset.test)


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
    """The class scores of every record, the model being in evaluation mode from here on.

    After each batch `on_batch` is told how many records are done. Batches are small: in the cache a network of convolutions
    is twice as fast.
    """
    model.eval()
    found, done = [], 0
    with torch.no_grad():
        for rows in torch.arange(len(records)).split(250):
            found.append(model(records.batch(rows)[0]))
            on_batch(done := done + len(rows))
    return torch.cat(found)


def _standardise(model: OnFeatures, settings: Settings, records: Split, size: int, releases: Releases) -> None:
    """Put the private mean and the private whitening of the features into the model.

    Sums are divided by `size`, the public number of training records, as in the plan of the steps that follow.
    """
    layer = model.standardise
    if settings.mean_noise:
        mean = releases.get(
            "mean",
            lambda ledger, randomness: private_mean(
                records,
                bound=math.sqrt(layer.mean.numel()),
                noise_multiplier=settings.mean_noise,
                public_size=size,
                ledger=ledger,
                randomness=randomness,
            ),
        )
        layer.mean.copy_(mean.view_as(layer.mean))
    if settings.whitening_noise:

        def centred(rows: Tensor) -> Tensor:
            return rows.flatten(2) - layer.mean

        for name, view in (("channels", lambda rows: centred(rows).mT), ("places", centred)):

            def release(ledger: Ledger, randomness: Randomness, view: Statistic = view) -> Tensor:
                noise = settings.whitening_noise
                return private_second_moment(
                    records,
                    noise_multiplier=noise,
                    public_size=size,
                    ledger=ledger,
                    randomness=randomness,
                    view=view,
                )

            moment = releases.get(name, release)
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
