"""`privet attack`."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
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
    from torch import nn

    from privet.attacks import AttackResult
    from privet.data import Dataset

PICTURE = "inversion.png"
INTERNAL = "Internal, computed from private records without noise and not for release"


class AttackName(StrEnum):
    """Which attack."""

    loss = "loss"
    shadow = "shadow"
    lira = "lira"
    rmia = "rmia"
    inversion = "inversion"
    distance = "distance"
    density = "density"


ON_DATA = (AttackName.distance, AttackName.density)


class SignalName(StrEnum):
    """What the attacker looks at."""

    loss = "loss"
    confidence = "confidence"


@app.command("attack", epilog="Example:  privet attack runs/a --attack lira --shadows 16")
def attack(
    context: typer.Context,
    run: RunFolder,
    kind: Annotated[
        AttackName | None,
        typer.Option(
            "--attack",
            help="loss: how well each record is fitted; shadow: learnt from a shadow model; lira: each record against "
            "shadow models with and without it; rmia: the same with few shadow models; inversion: a picture of each class. "
            "On synthetic data: distance to the closest example; density: where it is denser than other records. "
            "Without it, loss or distance.",
        ),
    ] = None,
    signal: Annotated[
        SignalName, typer.Option(help="For loss: fit to the true label, or to the likeliest one.")
    ] = SignalName.loss,
    shadows: Annotated[
        int | None, typer.Option(help="Number of shadow models: 16 for lira, 4 for rmia unless given.", min=2)
    ] = None,
    records: Annotated[
        int, typer.Option(help="For shadow, lira, rmia, distance and density: at most this many of each side.", min=20)
    ] = 2000,
    epochs: Annotated[int, typer.Option(help="For shadow, lira and rmia: of the shadow models.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Of the shadow models.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Attack what a run made, a model or data: can its training records be told from others? Updates the run's page.

    Shadow models have the run's architecture and are trained without noise, by Adam: shadow on test records that are
    then not asked about, lira and rmia on random halves of the records in question.
    """
    from privet.attacks import Target, attack_named, closeness
    from privet.report import RunRecord, load_model, renew
    from privet.report.data_mark import KEY_FILE, fits

    record = RunRecord.read(run)
    kind = kind or (AttackName.distance if record.synthetic else AttackName.loss)
    check_used(context, kind.value)
    if kind in ON_DATA and not record.synthetic:
        raise InputError(f"{run}: the attack {kind.value} is on synthetic data, and this run made a model.")
    dataset = load_again(record.data)
    if not any(fits(record.data.fingerprint, mark, run) for mark in (dataset.origin, dataset.fingerprint)):
        raise InputError(
            f"{run}: the run used other records than {record.data.name} holds now (or its {KEY_FILE} is missing), so members "
            f"cannot be told; run it again."
        )
    lines: list[str] = []
    settings = {"shadows": shadows} if shadows is not None else {}
    settings |= {"records": records, "epochs": epochs, "seed": seed}
    with computing() as progress:
        if kind in ON_DATA:
            from privet.synthesis import read_release

            target = Target.of(dataset, synthetic=read_release(run))
            lines = [str(found) for found in closeness(target, records=records, seed=seed)]
        else:
            model = load_model(record, run)
            if kind is AttackName.inversion:
                _invert(model, dataset, run, as_json)
                return
            target = Target.of(dataset, model, aside=record.data.set_aside, progress=progress)
        attacked = attack_named(signal.value if kind is AttackName.loss else kind.value)
        known = {field.name for field in dataclasses.fields(attacked)}  # type: ignore[arg-type]
        attacked = dataclasses.replace(attacked, **{k: v for k, v in settings.items() if k in known})  # type: ignore[type-var]
        result = dataclasses.replace(attacked.run(target, progress), command=("privet", *sys.argv[1:]))
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


def _invert(model: nn.Module, dataset: Dataset, run: Path, as_json: bool) -> None:
    from privet.attacks import draw_classes

    path = run / PICTURE
    found = draw_classes(path, model, dataset)
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
