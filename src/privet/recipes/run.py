"""A run: train by a recipe, attack what came out, and leave the folder from which everything can be told again."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from privet.attacks import LossThreshold
from privet.clipping import Clipping, MovingEllipticalClipping
from privet.data import CATALOGUE, Dataset, Progress, Split
from privet.methods.private_accuracy import Measured, PrivateAccuracy, exactly
from privet.privacy import Ledger
from privet.randomness import Randomness
from privet.recipes.fit import Fitted, fit
from privet.recipes.prepare import arguments, scores
from privet.recipes.recipe import Recipe
from privet.recipes.releases import FILE as RELEASES
from privet.report import (
    AttackResult,
    DataSummary,
    Epoch,
    ModelSummary,
    OtherRun,
    RunRecord,
    renew,
    save_weights,
    versions,
)
from privet.report.data_mark import mark_of
from privet.training.folder import LEDGER, remove_working_files
from privet.training.logs import OnStep, logged


def run(
    recipe: Recipe,
    dataset: Dataset,
    out: Path,
    *,
    epsilon: float,
    delta: float,
    seed: int | None,
    command: Sequence[str],
    method: str = "dpsgd",
    options: Mapping[str, Any] | None = None,
    resume: bool = False,
    source: str = "",
    schema: str = "",
    note: str = "",
    header: bool = True,
    user: str = "",
    others: Sequence[OtherRun] | None = None,
    on_step: OnStep | None = None,
    progress: Progress | None = None,
) -> RunRecord:
    """Train, attack, and leave the ledger, the weights, the record, the card and the page in `out`.

    Killed before the record is written, it goes on with `resume`; then its working files are removed. `others` are the
    other runs on these records that the card counts, as `privet.report.find_others` gives them; `options` go to the method.
    Test records that are not public are protected, unless the data set says otherwise: see `fit`.
    """
    about = summary(dataset, source, schema, note, header=header, user=user)
    started, created = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    with logged(out, on_step) as log:
        fitted = fit(
            recipe,
            dataset,
            epsilon=epsilon,
            delta=delta,
            method=method,
            options=options,
            seed=seed,
            folder=out,
            resume=resume,
            protect_test=about.protects_test,
            on_step=log,
            progress=progress,
        )
    seen = fitted.prepared
    record = recorded(
        recipe,
        dataset,
        out,
        trained=seen.part,
        splits=(seen.train, seen.test),
        about=marked(about, dataset, out),
        measuring=fitted.measuring,
        model=fitted.model,
        method=fitted.method.title,
        accountant=fitted.method.accountant,
        settings=_settings(recipe, fitted),
        history=_epochs(fitted.history),
        ledger=fitted.ledger,
        delta=delta,
        seed=seed,
        command=command,
    )
    return finish(record, out, created, started, others)


def finish(record: RunRecord, out: Path, created: str, started: float, others: Sequence[OtherRun] | None) -> RunRecord:
    """Write the record, the card and the page, and remove what the run needed to go on."""
    seconds = round(time.monotonic() - started, 1)
    replace(record, created=created, seconds=seconds, others=None if others is None else tuple(others)).write(out)
    renew(out)
    (out / RELEASES).unlink(missing_ok=True)
    remove_working_files(out)
    return RunRecord.read(out)


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A folder beside `out` whose run takes its place at the end: an interrupted one leaves the last one as it was."""
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        yield staging
        out.mkdir(parents=True, exist_ok=True)
        # The ledger first: the record names the ledger's hash, so a crash in between is noticed, not hidden.
        for path in sorted(staging.iterdir(), key=lambda path: path.name != LEDGER):
            if (out / path.name).is_dir():
                shutil.rmtree(out / path.name)
            path.replace(out / path.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def summary(
    dataset: Dataset,
    source: str,
    schema: str,
    note: str = "",
    set_aside: int = 0,
    header: bool = True,
    user: str = "",
) -> DataSummary:
    """Which records, as far as that may be said; `marked` adds by what they are recognized.

    Of test records that are not public there is no count: one that came from dividing a file depends on the records.
    """
    public = (source or dataset.name) in CATALOGUE
    return DataSummary(
        name=dataset.name,
        fingerprint="",
        training_records=dataset.size,
        test_records=len(dataset.test) - set_aside if public else 0,
        classes=dataset.classes,
        note=note,
        source=source,
        schema=schema,
        public=public,
        shape=tuple(dataset.shape),
        set_aside=set_aside,
        size_is_stated=dataset.size_is_stated,
        measured_share=dataset.measured_share,
        unprotected=dataset.unprotected,
        header=header,
        unit=dataset.train.unit,
        user=user,
    )


def marked(about: DataSummary, dataset: Dataset, out: Path) -> DataSummary:
    """The summary with the mark of the records, whose key is written into the folder of the run."""
    return replace(about, fingerprint=mark_of(dataset.origin, out, public=about.public))


def measure(
    about: DataSummary,
    measuring: PrivateAccuracy | None,
    predicted: Tensor,
    test: Split,
    ledger: Ledger,
    seed: int | None,
) -> Measured | None:
    """The accuracy on the test records: with noise where they are protected, and None where nothing was charged for it."""
    if not about.protects_test:
        return exactly(predicted, test.labels, len(about.classes))
    if measuring is None:
        return None
    randomness = Randomness.apart("accuracy", seed)
    classes = len(about.classes)
    return measuring.read(predicted, test.labels, classes, ledger=ledger, randomness=randomness, shares=test.shares)


def title_of(dataset: Dataset) -> str:
    return f"A private classifier of {_TITLES.get(dataset.name, dataset.name)}"


def recorded(
    recipe: Recipe,
    dataset: Dataset,
    folder: Path,
    *,
    trained: nn.Module,
    splits: tuple[Split, Split],
    about: DataSummary,
    model: nn.Module,
    method: str,
    settings: dict[str, str],
    ledger: Ledger,
    delta: float,
    seed: int | None,
    command: Sequence[str],
    accountant: str = "pld",
    history: tuple[Epoch, ...] = (),
    internal: dict[str, str] | None = None,
    measuring: PrivateAccuracy | None = None,
) -> RunRecord:
    """Measure and attack what was trained, and save its weights.

    `trained` is the part of `model` that takes the records as `splits`, training and test, hold them.
    """
    train, test = splits
    members, others = scores(trained, train), scores(trained, test)
    # The records went through the model once; the attack looks at what came out.
    roc = LossThreshold()(lambda given: given, (members, train.labels), (others, test.labels))
    return RunRecord(
        title=title_of(dataset),
        method=method,
        created="",
        command=tuple(command),
        seconds=0.0,
        delta=delta,
        accountant=accountant,
        seeds=dict.fromkeys(("model", "sampling", "noise"), "secure" if seed is None else str(seed)),
        environment=versions(),
        data=about,
        model=ModelSummary(
            name=recipe.model.name,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            arguments=arguments(recipe, dataset),
            weights=save_weights(model, folder),
        ),
        settings=settings,
        history=history,
        test_accuracy=fraction_right(others, test.labels),
        utility=measure(about, measuring, others.argmax(1), test, ledger, seed),
        training_accuracy=fraction_right(members, train.labels),
        ledger_head=ledger.head,
        attack=AttackResult.of("Loss threshold", roc),
        internal=internal or {},
    )


_TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}


def fraction_right(outputs: Tensor, labels: Tensor) -> float:
    """Of how many records the likeliest class is the label."""
    return int((outputs.argmax(1) == labels).sum()) / len(labels)


def _settings(recipe: Recipe, fitted: Fitted) -> dict[str, str]:
    """The settings as the page shows them."""
    settings, plan, unit = fitted.settings, fitted.plan, fitted.prepared.train.unit
    passes = fitted.steps * plan.sampling.rate
    momentum = f", momentum {settings.momentum:g}" if settings.momentum else ""
    falls = f", falling to {settings.learning_rate_end:g}" if settings.decay_epochs else ""
    shown = {
        "Recipe": f"{recipe.name}: {recipe.title}",
        "Steps": f"{fitted.steps:,}, about {passes:.3g} passes over the data",
        "Lot": f"{plan.expected_batch_size:,.0f} {unit}s expected, each drawn with probability {plan.sampling.rate:.4g}",
        "Clipping": _clipping(plan.clipping, settings.clip, unit),
        "Noise": f"{plan.noise.describe()} on the sum of a lot",
        "Optimizer": f"SGD, learning rate {settings.learning_rate:g}{falls}{momentum}",
    }
    if settings.average:
        shown["Parameters"] = f"moving average, decay {settings.average:g}"
    released = {"mean": settings.mean_noise, "second moments": settings.whitening_noise}
    released |= {"principal components": settings.components_noise}
    before = [f"{what} with noise {noise:g}" for what, noise in released.items() if noise]
    if before:
        shown["Released before training"] = ", ".join(before)
    return shown


def _clipping(clipping: Clipping, norm: float, unit: str) -> str:
    if isinstance(clipping, MovingEllipticalClipping):
        return clipping.describe()
    return f"each {unit}'s gradient to a norm of at most C = {norm:g}"


def _epochs(history: list[dict[str, Any]]) -> tuple[Epoch, ...]:
    """The entries of the history; one in which no record was drawn has no loss, and is left out."""
    return tuple(
        Epoch(max(1, round(entry["epoch"])), entry["step"], entry["loss"], entry["epsilon"], entry.get("accuracy"))
        for entry in history
        if "loss" in entry
    )
