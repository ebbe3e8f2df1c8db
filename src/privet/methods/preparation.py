"""What happens before the first step: the recipe's model, fixed features, and the private releases that a recipe asks for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from privet.data import Dataset, Progress, Split, compute_features, set_aside
from privet.errors import InputError, PrivetError
from privet.io import write_whole
from privet.methods.method import Context, Task
from privet.methods.private_accuracy import PrivateAccuracy
from privet.methods.recipe import Recipe, Settings
from privet.methods.statistics import Statistic, private_components, private_mean, private_second_moment
from privet.models import model_arguments, model_named
from privet.models.features import OnFeatures
from privet.privacy import Ledger, LedgerError
from privet.randomness import Randomness, before_training

RELEASES = "releases.safetensors"
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


def arguments(recipe: Recipe, dataset: Dataset) -> dict[str, Any]:
    """All arguments of the recipe's model: those that it states, and those that follow from the shape of the records."""
    builder = model_named(recipe.model.name)
    return model_arguments(builder, dataset.shape, len(dataset.classes), recipe.model.arguments)


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


def reserve_accuracy(task: Task, context: Context) -> PrivateAccuracy | None:
    """Charge a noisy accuracy on protected test records before anything else is planned; once, also in a run that goes on."""
    if not context.protect_test:
        return None
    plan = PrivateAccuracy.within(task.epsilon, task.delta, context.ledger.relation)

    def charge(ledger: Ledger, _: Randomness) -> Tensor:
        plan.charge(ledger)
        return torch.tensor([plan.noise_multiplier], dtype=torch.float64)

    releases_of(task, context).get("accuracy", charge)
    return plan


def releases_of(task: Task, context: Context) -> Releases:
    """The releases before training, in the folder of the run where it has one."""
    folder = context.folder.path if context.folder is not None else None
    return Releases(context.ledger, before_training(task.seed), folder)


class Releases:
    """The releases of one run by name.

    Formal guarantees: a release whose value was kept is not made again. One that was recorded and not yet kept when the
    run was killed is made and recorded again: the ledger never shows less than was used. A kept release whose event is not
    in the ledger is refused.
    """

    def __init__(self, ledger: Ledger, randomness: Randomness, folder: Path | None = None) -> None:
        self.ledger, self.randomness = ledger, randomness
        self._path = folder / RELEASES if folder is not None else None
        self._kept: dict[str, Tensor] = {}
        if self._path is not None and self._path.exists():
            self._kept = self._read(self._path)

    def get(self, name: str, make: Callable[[Ledger, Randomness], Tensor]) -> Tensor:
        """The value that was kept under this name, or a new one."""
        if name not in self._kept:
            self._kept[name] = make(self.ledger, self.randomness).contiguous()
            if self._path is not None:
                write_whole(self._path, save(self._kept, {"head": self.ledger.head}))
        return self._kept[name]

    def _read(self, path: Path) -> dict[str, Tensor]:
        try:
            with safe_open(path, framework="pt") as file:
                head = (file.metadata() or {}).get("head")  # version 0.1 wrote none
                kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        except SafetensorError as error:
            raise PrivetError(f"{path} is damaged ({error}): start anew in another folder.") from None
        if head is not None and not self.ledger.holds({head}):
            raise LedgerError(
                f"{path} holds releases whose events are not in the ledger: lines were removed from it, or an older copy was put "
                f"back. Put back the newest ledger, or start anew in another folder."
            )
        return kept
