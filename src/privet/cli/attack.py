"""`privet attack`: membership inference on the release of a run."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.cli.program import AsJson, verb
from privet.cli.progress import computing
from privet.cli.records import Plugins, command_line, keys, load_again, load_plugins, load_records, pairs
from privet.errors import InputError

if TYPE_CHECKING:
    from privet.attacks import AttackResult
    from privet.data import Dataset
    from privet.report import RunRecord

PICTURE = "inversion.png"
INVERSION = "inversion"
INTERNAL = "Internal, computed from private records without noise and not for release"
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, for example runs/a.")]
Model = Annotated[
    str,
    typer.Option(
        help="For a run with a model of your own: py:package.module:Net, which builds it. A record never names code to import."
    ),
]


def attack_keys() -> list[str]:
    from privet.attacks import attack_names

    return [*attack_names(), INVERSION]


def _old(name: str) -> Any:
    return typer.Option(f"--{name}", hidden=True, help=f"Moved: write --set {name}=...")


@dataclass
class Moved:
    """Options of version 0.1 that are settings of an attack now: they work for one more version, with a warning."""

    signal: Annotated[str | None, _old("signal")] = None
    shadows: Annotated[int | None, _old("shadows")] = None
    records: Annotated[int | None, _old("records")] = None
    epochs: Annotated[int | None, _old("epochs")] = None
    seed: Annotated[int | None, _old("seed")] = None

    def settings(self) -> dict[str, Any]:
        found = {name: value for name, value in vars(self).items() if value is not None and name != "signal"}
        for name, value in found.items():
            typer.echo(
                f"privet: --{name} moved and will stop working in the next version: write --set {name}={value}",
                err=True,
            )
        return found


@verb("attack", "privet attack runs/a --attack lira --set shadows=16")
def attack(
    run: RunFolder,
    moved: Moved,
    attacks: Annotated[
        list[str] | None,
        typer.Option(
            "--attack",
            "--attacks",
            help="Attacks by key, with commas between (privet attacks lists them), or inversion: a picture of each class. "
            "Without it, loss for a model and distance for synthetic data.",
            autocompletion=attack_keys,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the attack (privet attacks lists them); repeat the option to give several.",
        ),
    ] = None,
    model: Model = "",
    data: Annotated[
        str,
        typer.Option(
            help="For a loop of your own: the records it was trained on, and others, as train and test parts."
        ),
    ] = "",
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Attack the release of a run, a model or data: can its training records be told from others?

    Every result is appended to the run's record, with date, command and power; page and card list them all.
    """
    load_plugins(plugins)
    from privet.io.names import LOOP
    from privet.methods import DataSpec
    from privet.report import RunRecord
    from privet.runs.after import attack_run, attack_with
    from privet.runs.own import record_of_loop

    record = record_of_loop(run) if (run / LOOP).exists() else RunRecord.read(run)
    given: dict[str, Any] = moved.settings() | pairs(settings or ())
    wanted = keys(attacks) or ["distance" if record.synthetic else "loss"]
    if moved.signal == "confidence" and wanted == ["loss"]:
        typer.echo(
            "privet: --signal moved and will stop working in the next version: write --attack confidence", err=True
        )
        wanted = ["confidence"]
    if wanted == [INVERSION]:
        _invert(record, run, model, as_json)
        return
    chosen = [attack_with(key, given) for key in wanted]
    if (run / LOOP).exists() and not data:
        raise InputError(
            f"{run} holds a loop of your own: name its records with --data, for example --data py:package.module:load."
        )
    dataset = load_records(DataSpec(data)) if data else load_again(record.data)
    with computing() as progress:
        results, page, extra = attack_run(run, chosen, dataset, model=model, command=command_line(), progress=progress)
    if as_json:
        facts = [dataclasses.asdict(result) for result in results]
        if not record.data.public:
            facts = [each | {"members": None, "non_members": None, "internal": INTERNAL} for each in facts]
        typer.echo(json.dumps(facts[0] | {"page": str(page)} if len(facts) == 1 else facts, indent=1))
        return
    if not record.data.public:
        typer.echo(f"{INTERNAL}:")
    for result in results:
        for line in [*sentences(result, public=record.data.public), *(extra or [thresholds(result)])]:
            typer.echo(line)
    typer.echo(f"The page: {page}")


def _invert(record: RunRecord, run: Path, model: str, as_json: bool) -> None:
    from privet.attacks import draw_classes
    from privet.report import load_model

    dataset: Dataset = load_again(record.data)
    if len(dataset.shape) != 3:
        raise InputError(f"{run}: an inversion is drawn as pictures, and the records of {dataset.name} are not images.")
    path = run / PICTURE
    found = draw_classes(path, load_model(record, run, model), dataset)
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
    """The result for a terminal; the number of records is stated where they are public."""
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
