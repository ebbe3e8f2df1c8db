"""The target of an attack, the protocol of attacks, and the table of attacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from privet.attacks.classifiers import Fitting, Train, fresh, sample
from privet.attacks.result import AttackResult
from privet.data import Dataset, Progress, Split, compute_features, set_aside
from privet.errors import InputError
from privet.io.registry import Registry
from privet.models.features import OnFeatures

_CHUNK = 2000


@dataclass(frozen=True, eq=False)
class Target:
    """The target of an attack: a release, its members, and records that are not members.

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
    if target.members.is_regression:
        return "it attacks a classifier, and this model predicts a number: use the attack loss"
    if len(target.classes) == 1:
        return "the model has one class, so its answers are the same for all records"
    return too_few(target, members, others)


def too_few(target: Target, members: int, others: int) -> str:
    """Why there are not enough records of each side; empty if there are."""
    if len(target.members) < members or len(target.others) < others:
        # How many there are may be private.
        return f"it needs at least {members} training records and {others} others, and there are fewer"
    return ""


Sample = tuple[Tensor, Tensor]
"""Inputs and labels of some records."""


@dataclass(frozen=True, kw_only=True)
class AttackByShadows:
    """Base of the attacks that train models like the target: they attack a sample of each side.

    Attributes:
        records: at most this many of each side are used.
        epochs: of the shadow models, unless the target says how it was trained.
        seed: of the sample and the shadow models.
    """

    key: ClassVar[str]
    title: ClassVar[str]
    fewest: ClassVar[tuple[int, int]] = (2, 2)
    """How many members and others it needs at least."""

    records: int = 2000
    epochs: int = 20
    seed: int = 0

    def fits(self, target: Target) -> str:
        """Why the attack cannot run on this target; empty if it can."""
        return why_no_model(target, *self.fewest)

    def run(self, target: Target, progress: Progress | None = None) -> AttackResult:
        """Attack a sample of the members and a sample of the others."""
        require(self, target)
        generator = torch.Generator().manual_seed(self.seed)
        members, others = (sample(side, self.records, generator) for side in (target.members, target.others))
        return self.attacked(target, members, others, target.trainer(self.epochs, progress), generator)

    def attacked(
        self, target: Target, members: Sample, others: Sample, train: Train, generator: torch.Generator
    ) -> AttackResult:
        """The attack on samples of both sides; `train` trains a shadow model."""
        raise NotImplementedError


def halved(records: Sample) -> tuple[Sample, Sample]:
    """The first half of the records, and the others."""
    half = len(records[0]) // 2
    return (records[0][:half], records[1][:half]), (records[0][half:], records[1][half:])


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
