"""What is attacked, the protocol of an attack, and the table of attacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from privet.attacks.classifiers import Fitting, Train, fresh
from privet.attacks.result import AttackResult
from privet.data import Dataset, Progress, Split, compute_features, set_aside
from privet.errors import InputError
from privet.io.registry import Registry
from privet.models.features import OnFeatures

_CHUNK = 2000


@dataclass(frozen=True, eq=False)
class Target:
    """What is attacked, and the records that tell members from others.

    Attributes:
        members: records that were trained on, as `model` takes them (features, for a model on fixed features).
        others: records of the same distribution that were not trained on.
        model: the part of the model that was trained, from such records to class scores; None if there is no model.
        synthetic: synthetic inputs, float32, in the shape of the records; None if there are none.
        classes: the names of the classes; empty if unknown.
        shape: the shape of one record, before any fixed features; empty if unknown.
        train: trains a model as the target was trained, for shadow models. Without it a newly initialized copy of `model`
            is trained by Adam, without noise.
    """

    members: Split
    others: Split
    model: nn.Module | None = None
    synthetic: Tensor | None = None
    classes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    train: Train | None = None

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        model: nn.Module | None = None,
        *,
        synthetic: Tensor | None = None,
        aside: int = 0,
        train: Train | None = None,
        progress: Progress | None = None,
    ) -> Target:
        """A release that was made from a data set: its training records are the members, its test records the others.

        Args:
            dataset: the records.
            model: the released model. If its first part is fixed, the target is the rest, and the records become features.
            synthetic: the released synthetic inputs.
            aside: how many test records were used as public records, and are therefore left out (`privet.data.set_aside`).
            train: see `Target`.
            progress: told about the computation of features.
        """
        classes, shape = dataset.classes, dataset.shape
        if isinstance(model, OnFeatures):
            dataset = compute_features(dataset, model.features, model.key, progress=progress)
        members, others = dataset.train, set_aside(dataset, aside).test
        if isinstance(model, OnFeatures):
            members, others = (_through(model.standardise, side) for side in (members, others))
            model = model.head
        return cls(members, others, model, synthetic, classes, shape, train)

    def trainer(self, epochs: int, progress: Progress | None = None) -> Train:
        """How shadow models are trained: by `train`, or else for `epochs` epochs without noise."""
        if self.train is not None:
            return self.train
        model = self.model
        if model is None:
            raise InputError("Shadow models are copies of the target's model, and this target has none.")
        return Fitting(lambda: fresh(model), epochs=epochs, progress=progress)

    @property
    def shadows(self) -> str:
        """How shadow models are trained, in words."""
        return "trained without noise" if self.train is None else "trained as the target was"


class Attack(Protocol):
    """A membership attack: a frozen dataclass whose fields are its settings."""

    @property
    def key(self) -> str:
        """Its name in the table, on the command line and in records."""

    @property
    def title(self) -> str:
        """Its name for readers."""

    def fits(self, target: Target) -> str:
        """Why the attack cannot run on this target, as a clause; empty if it can."""

    def run(self, target: Target, progress: Progress | None = None) -> AttackResult:
        """Score the members and the others, higher for records that seem to be members, and compare."""


def _value(attack: object) -> Attack:
    """A registered object as an attack: a class is called without arguments."""
    value = attack() if isinstance(attack, type) else attack
    missing = [name for name in ("key", "title", "fits", "run") if not hasattr(value, name)]
    if missing:
        raise InputError(f"{value!r} is not an attack: it has no {missing[0]}. See privet.attacks.Attack.")
    return value  # type: ignore[return-value]


REGISTRY: Registry[Attack] = Registry("attack", "privet.attacks", check=_value)
register = REGISTRY.register


def attack_named(key: str) -> Attack:
    return REGISTRY[key]


def attack_names() -> tuple[str, ...]:
    return REGISTRY.names()


def require(attack: Attack, target: Target) -> None:
    """Raise an InputError if the attack does not fit the target."""
    if why := attack.fits(target):
        raise InputError(f"The attack {attack.key} does not fit: {why}.")


def why_no_model(target: Target, members: int, others: int) -> str:
    """Why an attack on a classifier with these minimum numbers of records does not fit; empty if it does."""
    if target.model is None:
        only = ", and only synthetic data was released" if target.synthetic is not None else ", and there is none"
        return f"it attacks a model{only}"
    if len(target.classes) == 1:
        return "the model has one class, so its answers are the same for all records"
    return too_few(target, members, others)


def too_few(target: Target, members: int, others: int) -> str:
    """Why there are not enough records of each side; empty if there are."""
    if len(target.members) < members or len(target.others) < others:
        return (
            f"it needs at least {members} training records and {others} others, and there are {len(target.members)} and "
            f"{len(target.others)}"
        )
    return ""


def _through(layer: nn.Module, records: Split) -> Split:
    """The records after a fixed layer."""
    chunks = torch.arange(len(records)).split(_CHUNK)
    made: Tensor | None = None
    with torch.no_grad():
        for rows in chunks:
            part = layer(records.batch(rows)[0])
            if made is None:
                made = torch.empty(len(records), *part.shape[1:], dtype=part.dtype)
            made[rows] = part
    assert made is not None  # a split has at least one record
    return records.with_inputs(made)
