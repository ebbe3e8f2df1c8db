"""A run by PATE: a recipe's model as the student, its fixed features for teachers and student."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from privet.data import CATALOGUE, Dataset, Progress, Split, compute_features, set_aside
from privet.errors import InputError
from privet.methods import pate
from privet.methods.private_accuracy import PrivateAccuracy
from privet.methods.voting import Voting
from privet.models.features import OnFeatures
from privet.privacy import Ledger
from privet.recipes.prepare import build_model
from privet.recipes.recipe import Recipe
from privet.recipes.run import finish, marked, recorded, summary
from privet.report import OtherRun, RunRecord
from privet.training.folder import RunFolder

TITLE = "PATE, Gaussian noisy-max votes (Papernot et al. 2018)"

OnStep = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, eq=False)
class Public:
    """The records without labels that whoever runs it states to be public.

    Either `aside` of the test records, which are not tested on then, or the training part of another data set.
    """

    aside: int = 0
    other: Dataset | None = None
    named: str = ""

    @classmethod
    def of(cls, text: str, dataset: Dataset, source: str, load: Callable[[str], Dataset]) -> Public:
        """From a number of test records, or the name of a data set as `privet.data.load` takes it."""
        if text.isascii() and text.isdigit():
            if int(text) == 0:
                raise InputError("PATE needs public records without labels, and none were given.")
            if (source or dataset.name) not in CATALOGUE and not dataset.unprotected:
                raise InputError(
                    f"The test records of {dataset.name} are protected, so none of them are public: name another data set, or "
                    "say which records go without protection (--hold-out, --unprotected-test)."
                )
            set_aside(dataset, int(text))
            return cls(aside=int(text), named=f"{int(text):,} of the test records of {dataset.name}")
        other = load(text)
        if text == source or other.origin == dataset.origin:
            raise InputError(f"{text} is what is to be protected: name other records, which are public.")
        if other.shape != dataset.shape:
            shapes = ["x".join(map(str, each.shape)) for each in (other, dataset)]
            raise InputError(f"The public records of {text} are {shapes[0]}, and those of {source} are {shapes[1]}.")
        if _shared(other.train, dataset.test):
            raise InputError(
                f"Test records of {dataset.name} are among the public ones of {text}: a model cannot be tested on records that "
                "it was trained on."
            )
        return cls(other=other, named=f"the training part of {other.name}")


@dataclass(frozen=True, eq=False)
class FittedPate:
    """The model, the part of it that was trained, what that part takes, and what was done to the records."""

    model: nn.Module
    trained: pate.Trained
    train: Split
    test: Split
    voting: Voting
    public: int
    measuring: PrivateAccuracy | None = None
    """How the accuracy on protected test records is to be measured: charged, and not yet read."""


def fit_pate(
    recipe: Recipe,
    dataset: Dataset,
    public: Public,
    *,
    epsilon: float,
    delta: float,
    voting: Voting | None = None,
    queries: int | None = None,
    student: pate.Student | None = None,
    ledger: Ledger | None = None,
    seed: int | None = None,
    protect_test: bool = False,
    on_step: OnStep | None = None,
    progress: Progress | None = None,
) -> FittedPate:
    """Train the recipe's model as a student; the settings of the recipe are those of another way of training, and unused.

    Formal guarantees: those of `privet.methods.pate.train`. Test records that were taken as public are in no test.
    """
    model = build_model(recipe, dataset, seed)
    part, seen, unlabelled = model, dataset, public.other
    if isinstance(model, OnFeatures):
        seen = compute_features(dataset, model.features, model.key, progress=progress)
        part = nn.Sequential(model.standardise, model.head)
        if unlabelled is not None:
            unlabelled = compute_features(unlabelled, model.features, model.key, progress=progress)
    seen = set_aside(seen, public.aside)
    inputs = (seen["public"] if unlabelled is None else unlabelled.train).tensors[0]
    if isinstance(model, OnFeatures):
        model.standardise.mean.copy_(inputs.mean(0).view_as(model.standardise.mean))
    voting = voting or Voting(pate.usual_teachers(dataset.size, epsilon))
    ledger = ledger if ledger is not None else Ledger(unit=dataset.train.unit)
    if not dataset.size_is_stated:
        ledger.size_is_public()
    measuring = PrivateAccuracy.within(epsilon, delta) if protect_test else None
    if measuring is not None:
        measuring.charge(ledger)
    trained = pate.train(
        part,
        seen.train,
        inputs,
        len(dataset.classes),
        epsilon=epsilon,
        delta=delta,
        named=public.named,
        queries=queries,
        voting=voting,
        student=student,
        ledger=ledger,
        seed=seed,
        on_step=on_step,
    )
    return FittedPate(model, trained, seen.train, seen.test, voting, len(inputs), measuring)


def run_pate(
    recipe: Recipe,
    dataset: Dataset,
    public: Public,
    out: Path,
    *,
    epsilon: float,
    delta: float,
    seed: int | None,
    command: Sequence[str],
    voting: Voting | None = None,
    queries: int | None = None,
    source: str = "",
    schema: str = "",
    header: bool = True,
    user: str = "",
    others: Sequence[OtherRun] | None = None,
    on_step: OnStep | None = None,
    progress: Progress | None = None,
) -> RunRecord:
    """Vote, train the student, attack it, and leave the ledger, the weights, the record, the card and the page in `out`."""
    note = f"{public.named[0].upper()}{public.named[1:]} were taken as public, without their labels: they are not protected"
    about = summary(dataset, source, schema, note, public.aside, header, user)
    started, created = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    folder = RunFolder(out, unit=dataset.train.unit)
    try:
        fitted = fit_pate(
            recipe,
            dataset,
            public,
            epsilon=epsilon,
            delta=delta,
            voting=voting,
            queries=queries,
            ledger=folder.ledger,
            seed=seed,
            protect_test=about.protects_test,
            on_step=on_step,
            progress=progress,
        )
    finally:
        folder.close()
    record = recorded(
        recipe,
        dataset,
        out,
        trained=fitted.trained.model,
        splits=(fitted.train, fitted.test),
        about=marked(about, dataset, out),
        measuring=fitted.measuring,
        model=fitted.model,
        method=TITLE,
        settings=_settings(recipe, fitted, dataset.classes),
        ledger=fitted.trained.ledger,
        delta=delta,
        seed=seed,
        command=command,
        internal={"Data-dependent cost": str(fitted.trained.answers.internal)},
    )
    return finish(record, out, created, started, others)


def _settings(recipe: Recipe, fitted: FittedPate, classes: tuple[str, ...]) -> dict[str, str]:
    """The settings as the page and the card show them: public ones, and what was released."""
    answers, confidence, student = fitted.trained.answers, fitted.voting.confidence, pate.Student()
    answered = "all answered"
    if confidence is not None:
        answered = (
            f"{len(answers.labels):,} answered: those with {confidence.threshold:g} votes for a class, counted with noise of "
            f"{confidence.noise:g} votes"
        )
    shown = {
        "Recipe": f"{recipe.name}: its model for the student, and its fixed features",
        "Teachers": f"{fitted.voting.teachers:,}, each on its own part of the records, which are dealt out at random",
        "Queries": f"{answers.asked:,} of {fitted.public:,} public records, {answered}",
        "Noise": f"Gaussian, {answers.noise:.4g} votes on each count; the class that wins is released",
        "Student": f"Adam, {student.steps:,} steps on all public records; answers smoothed over records that are alike",
    }
    if fitted.trained.never:
        shown["Never answered"] = ", ".join(classes[number] for number in fitted.trained.never)
    return shown


def _shared(public: Split, test: Split) -> bool:
    """Whether a test record is among the public ones, to the last bit."""
    known = {_bits(row) for row in public.inputs}
    return any(_bits(row) in known for row in test.inputs)


def _bits(row: Tensor) -> bytes:
    return bytes(row.contiguous().reshape(-1).view(torch.uint8).numpy())
