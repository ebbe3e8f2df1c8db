"""`privet attack`."""

from __future__ import annotations

import dataclasses
import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from privet.cli.program import AsJson, app
from privet.cli.progress import computing, fetching
from privet.cli.report import RunFolder
from privet.errors import InputError

if TYPE_CHECKING:
    from privet.report import AttackResult


class Signal(StrEnum):
    """What the attacker looks at."""

    loss = "loss"
    confidence = "confidence"


NAMES = {Signal.loss: "Loss threshold", Signal.confidence: "Confidence threshold (the attacker has no labels)"}


@app.command("attack", epilog="Example:  privet attack runs/demo")
def attack(
    run: RunFolder,
    signal: Annotated[Signal, typer.Option(help="Fit to the true label, or to the likeliest one.")] = Signal.loss,
    as_json: AsJson = False,
) -> None:
    """Attack the model of a run: can its training records be told from others? Updates the run's page."""
    from privet import data
    from privet.attacks import LossThreshold
    from privet.recipes import outputs
    from privet.report import AttackResult, RunRecord, load_model, write_page

    record = RunRecord.read(run)
    model = load_model(record, run)
    with fetching() as progress:
        dataset = data.get(record.data.name, progress=progress)
    if dataset.fingerprint != record.data.fingerprint:
        raise InputError(
            f"{run}: the run used other records than {record.data.name} holds now, so members cannot be told; run it again."
        )
    with computing() as features:
        members, others = outputs(model, dataset, progress=features)
    attacked = LossThreshold(signal=signal.value)
    roc = attacked(lambda given: given, (members, dataset.train.labels), (others, dataset.test.labels))
    result = AttackResult.of(NAMES[signal], roc)
    dataclasses.replace(record, attack=result).write(run)
    page = write_page(run)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(result) | {"page": str(page)}, indent=1))
        return
    for line in sentences(result):
        typer.echo(line)
    typer.echo(f"The page: {page}")


def sentences(result: AttackResult) -> list[str]:
    """The result for a terminal."""
    lines = [
        f"{result.name}: {result.members:,} training records against {result.non_members:,} others",
        f"AUC {result.auc:.4f}, {100 * result.level:.0f} % interval {result.low:.4f} to {result.high:.4f} "
        f"({result.method}); a coin has 0.5",
    ]
    lines += [
        f"finds {100 * rate.tpr:.3g} % of the training records at {100 * rate.fpr:g} % false positives"
        + ("" if result.resolves(rate) else f" (none allowed: {result.non_members:,} others are too few)")
        for rate in result.rates
    ]
    return lines
