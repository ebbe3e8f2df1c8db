"""`privet attack`."""

from __future__ import annotations

import dataclasses
import json
import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privet.cli.options import check_used
from privet.cli.program import AsJson, app
from privet.cli.progress import computing
from privet.cli.records import load_again
from privet.cli.report import RunFolder
from privet.errors import InputError

if TYPE_CHECKING:
    from torch import Generator, Tensor, nn

    from privet.attacks import Roc
    from privet.data import Dataset, Progress
    from privet.report import AttackResult

PICTURE = "inversion.png"
INTERNAL = "Internal, computed from private records without noise and not for release"


class Attack(StrEnum):
    """Which attack."""

    loss = "loss"
    shadow = "shadow"
    lira = "lira"
    inversion = "inversion"
    distance = "distance"
    density = "density"


ON_DATA = (Attack.distance, Attack.density)


class Signal(StrEnum):
    """What the attacker looks at."""

    loss = "loss"
    confidence = "confidence"


NAMES = {Signal.loss: "Loss threshold", Signal.confidence: "Confidence threshold (the attacker has no labels)"}


@app.command("attack", epilog="Example:  privet attack runs/a --attack lira --shadows 16")
def attack(
    context: typer.Context,
    run: RunFolder,
    kind: Annotated[
        Attack | None,
        typer.Option(
            "--attack",
            help="loss: how well each record is fitted; shadow: learnt from a shadow model; lira: each record against "
            "shadow models with and without it; inversion: a picture of each class. Of artificial data: distance to the "
            "closest example; density: where it is denser than other records. Without it, loss or distance.",
        ),
    ] = None,
    signal: Annotated[
        Signal, typer.Option(help="For loss: fit to the true label, or to the likeliest one.")
    ] = Signal.loss,
    shadows: Annotated[int, typer.Option(help="For lira: how many shadow models.", min=4)] = 16,
    records: Annotated[
        int, typer.Option(help="For shadow, lira, distance and density: at most so many on each side.", min=20)
    ] = 2000,
    epochs: Annotated[int, typer.Option(help="For shadow and lira: of the shadow models.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Of the shadow models.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Attack what a run made, a model or data: can its training records be told from others? Updates the run's page.

    Shadow models have the run's architecture and are trained without noise, by Adam: shadow on test records that are
    then not asked about, lira on random halves of the records in question.
    """
    from privet.report import AttackResult, RunRecord, load_model, renew
    from privet.report.data_mark import KEY_FILE, fits

    record = RunRecord.read(run)
    kind = kind or (Attack.distance if record.synthetic else Attack.loss)
    check_used(context, kind.value)
    if kind in ON_DATA and not record.synthetic:
        raise InputError(f"{run}: the attack {kind.value} is on artificial data, and this run made a model.")
    dataset = load_again(record.data)
    if not any(fits(record.data.fingerprint, mark, run) for mark in (dataset.origin, dataset.fingerprint)):
        raise InputError(
            f"{run}: the run used other records than {record.data.name} holds now (or its {KEY_FILE} is missing), so members "
            f"cannot be told; run it again."
        )
    if kind in ON_DATA:
        result, lines = _on_data(kind, run, dataset, records, seed)
    else:
        model = load_model(record, run)
        if kind is Attack.inversion:
            _invert(model, dataset, run, as_json)
            return
        if kind is Attack.loss:
            name, roc = NAMES[signal], _fit(model, dataset, signal, record.data.set_aside)
        else:
            name, roc = _by_shadows(kind, model, dataset, record.data.set_aside, shadows, records, epochs, seed)
        result, lines = AttackResult.of(name, roc), []
    dataclasses.replace(record, attack=result).write(run)
    page = renew(run)
    if as_json:
        facts = dataclasses.asdict(result)
        if not record.data.public:
            facts |= {"members": None, "non_members": None, "internal": INTERNAL}
        typer.echo(json.dumps(facts | {"page": str(page)}, indent=1))
        return
    if not record.data.public:
        typer.echo(f"{INTERNAL}:")
    for line in [*sentences(result, public=record.data.public), *(lines or [thresholds(result)])]:
        typer.echo(line)
    typer.echo(f"The page: {page}")


def _on_data(kind: Attack, run: Path, dataset: Dataset, records: int, seed: int) -> tuple[AttackResult, list[str]]:
    """The result, and what else is said of artificial data."""
    from privet.synthesis import attacks, read_release

    inputs = read_release(run)
    result = attacks.membership(inputs, dataset, kind.value, asked=records, seed=seed)
    return result, [str(found) for found in attacks.closeness(inputs, dataset, asked=records, seed=seed)]


def _fit(model: nn.Module, dataset: Dataset, signal: Signal, aside: int) -> Roc:
    from privet.attacks import LossThreshold
    from privet.data import set_aside
    from privet.recipes import outputs

    with computing() as features:
        members, others = outputs(model, dataset, features, aside)
    attacked = LossThreshold(signal=signal.value)
    labels = set_aside(dataset, aside).test.labels
    return attacked(lambda given: given, (members, dataset.train.labels), (others, labels))


def _by_shadows(
    kind: Attack, model: nn.Module, dataset: Dataset, aside: int, shadows: int, records: int, epochs: int, seed: int
) -> tuple[str, Roc]:
    import torch

    from privet.attacks import Fitting, fresh, lira, membership

    generator = torch.Generator().manual_seed(seed)
    with computing() as progress:
        part, train, test = _trained_part(model, dataset, aside, records, generator, progress)
        fitting = Fitting(lambda: fresh(part), epochs=epochs, progress=progress)
        half = len(test[0]) // 2
        if kind is Attack.shadow:
            others, population = (test[0][:half], test[1][:half]), (test[0][half:], test[1][half:])
            roc = membership(part, train, others, attack="shadow", train=fitting, population=population, seed=seed)
            return "Shadow model (trained without noise)", roc
        found = lira(part, train, test, fitting, generator, shadows=shadows)
    return f"LiRA ({shadows} shadow models, {found.how.split(':')[0]}, without noise)", found.roc


def _trained_part(
    model: nn.Module, dataset: Dataset, aside: int, records: int, generator: Generator, features: Progress | None
) -> tuple[nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The part of the model that was trained, and samples of the records as that part gets them."""
    import torch

    from privet.data import compute_features, set_aside
    from privet.models.features import OnFeatures

    before: nn.Module | None = None
    if isinstance(model, OnFeatures):
        dataset = compute_features(dataset, model.features, model.key, progress=features)
        before, model = model.standardise, model.head
    dataset = set_aside(dataset, aside)
    sides = []
    for split in (dataset.train, dataset.test):
        chosen = torch.randperm(len(split), generator=generator)[:records]
        x, y = split.batch(chosen)
        with torch.no_grad():
            sides.append((x if before is None else before(x), y))
    return model, sides[0], sides[1]


def _invert(model: nn.Module, dataset: Dataset, run: Path, as_json: bool) -> None:
    from privet.attacks import class_means, draw_inversion, invert

    if len(dataset.shape) != 3:
        raise InputError(f"{run}: an inversion is drawn as pictures, and the records of {dataset.name} are not images.")
    classes = range(len(dataset.classes))
    found = invert(model, classes, dataset.shape, smoothness=0.002)
    means = class_means(*dataset.train.tensors, classes)
    path = draw_inversion(run / PICTURE, found, dataset.classes, means)
    if as_json:
        confidence = dict(zip(dataset.classes, found.confidence.tolist(), strict=True))
        typer.echo(json.dumps({"picture": str(path), "confidence": confidence}, indent=1))
        return
    typer.echo(
        f"Inversion: from nothing but the model, a picture of each class, of which it is at least "
        f"{math.floor(1000 * float(found.confidence.min())) / 10:g} % sure; beneath it the mean of the training records"
    )
    typer.echo(f"The picture, to be shown only to those who may see the data: {path}")


def sentences(result: AttackResult, *, public: bool) -> list[str]:
    """The result for a terminal; how many records there are is said where they are public."""
    against = f"{result.members:,} training records against {result.non_members:,} others"
    lines = [
        f"{result.name}: {against if public else 'training records against others'}",
        f"AUC {result.auc:.4f}, {100 * result.level:.0f} % interval {result.low:.4f} to {result.high:.4f} "
        f"({result.method}); a coin has 0.5",
    ]
    lines += [
        f"finds {100 * rate.tpr:.3g} % of the training records at {100 * rate.fpr:g} % false positives"
        + ("" if result.resolves(rate) else " (none allowed: the others are too few)")
        for rate in result.rates
    ]
    return lines


def thresholds(result: AttackResult) -> str:
    """Precision and recall at each threshold, on one line."""
    parts = [
        f"{point.threshold:g}: {'none called' if point.precision is None else f'{100 * point.precision:.1f} %'}"
        f" / {100 * point.recall:.1f} %"
        for point in result.points
    ]
    share = result.members / (result.members + result.non_members)
    return f"precision / recall from a score of {', '.join(parts)} (calling everybody: {100 * share:.1f} % / 100 %)"
