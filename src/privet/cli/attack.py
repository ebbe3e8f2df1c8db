"""`privet attack`: membership inference on the release of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.cli.options import GivenSettings, either, unknown_setting, warn_moved
from privet.cli.program import AsJson, echo, how_to_go_on, verb
from privet.cli.progress import computing
from privet.cli.records import (
    ControlOptions,
    FarmOptions,
    Plugins,
    command_line,
    completing,
    keys,
    load_again,
    load_plugins,
    say_preview,
    set_option,
)
from privet.errors import InputError

if TYPE_CHECKING:
    from privet.attacks import Attack, AttackResult
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


SIGNALS = ("loss", "confidence")


@dataclass
class MovedAttackOptions:
    """Options of version 0.1 that are settings of an attack now: they work for one more version, with a warning."""

    signal: Annotated[str | None, typer.Option("--signal", hidden=True, help="Moved: write --attack confidence.")] = (
        None
    )
    shadows: Annotated[int | None, _old("shadows")] = None
    records: Annotated[int | None, _old("records")] = None
    epochs: Annotated[int | None, _old("epochs")] = None
    seed: Annotated[int | None, _old("seed")] = None

    def applied(self, wanted: list[str], settings: GivenSettings) -> list[str]:
        """The attacks that the old options mean; those that are settings now are added to `settings`."""
        for name in ("shadows", "records", "epochs", "seed"):
            if (value := getattr(self, name)) is not None:
                warn_moved(f"--{name}", f"--set {name}={value}")
                settings.add(f"--{name}", name, value)
        if self.signal is None:
            return wanted
        if wanted != ["loss"]:
            raise InputError(
                f"--signal is not used by --attack {','.join(wanted)}. Leave it out, or use it with --attack loss."
            )
        if self.signal not in SIGNALS:
            raise InputError(f"--signal is loss or confidence, and not {self.signal!r}.")
        warn_moved("--signal", f"--attack {self.signal}")
        return [self.signal]


@verb("attack", "privet attack runs/a --attack lira --set shadows=16")
def attack(
    run: RunFolder,
    moved: MovedAttackOptions,
    control: ControlOptions,
    farm: FarmOptions,
    attacks: Annotated[
        list[str] | None,
        typer.Option(
            "--attack",
            "--attacks",
            help="Attacks, separated by commas (privet attacks lists them), or inversion: a picture of each class. "
            "Without it, loss for a model and distance for synthetic data.",
            autocompletion=completing(attack_keys),
        ),
    ] = None,
    settings: Annotated[list[str] | None, set_option("attack", "privet attacks")] = None,
    model: Model = "",
    data: Annotated[
        str,
        typer.Option(
            help="For a loop of your own, or a run on records of py:package.module:load: the records it was trained on, and "
            "others, as train and test parts."
        ),
    ] = "",
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Attack the release of a run (a model or data): can an attacker tell its training records from others?

    Every result is appended to the run's record, with date, command and power; page and card list them all.
    """
    load_plugins(plugins)
    from privet.io.names import LOOP
    from privet.runs.after import attack_run
    from privet.runs.own import read_run

    record = read_run(run)
    given = GivenSettings.of(settings)
    wanted = moved.applied(keys(attacks) or ["distance" if record.synthetic else "loss"], given)
    if INVERSION in wanted:
        if control.dry_run:
            raise InputError("--attack inversion draws pictures in a few seconds and has no --dry-run: leave it out.")
        if len(wanted) > 1 or given.options:
            others = [key for key in wanted if key != INVERSION] + list(given.options.values())
            raise InputError(f"--attack inversion draws pictures and takes no {either(others)}: leave it out.")
        _invert(record, run, model, data, as_json)
        return
    chosen = _with_settings(wanted, given)
    if control.dry_run:
        from privet.runs.preview import preview_attack

        say_preview(preview_attack(record, run, chosen, model), as_json)
        return
    if (run / LOOP).exists() and not data:
        raise InputError(
            f"{run} holds a loop of your own: name its records with --data, for example --data py:package.module:load."
        )
    dataset = load_again(record.data, data)
    with how_to_go_on(pays=False), farm.in_use(), computing() as progress:
        results, page, extra = attack_run(
            run, chosen, dataset, model=model, resume=control.resume, command=command_line(), progress=progress
        )
    if as_json:
        facts = [asdict(result) for result in results]
        if not record.data.public:
            facts = [each | {"members": None, "non_members": None, "internal": INTERNAL} for each in facts]
        echo(json.dumps(facts[0] | {"page": str(page)} if len(facts) == 1 else facts, indent=1))
        return
    if not record.data.public:
        echo(f"{INTERNAL}:")
    for result in results:
        for line in [*sentences(result, public=record.data.public), *([thresholds(result)] if result.points else [])]:
            echo(line)
    for line in extra:
        echo(line)
    echo(f"The page: {page}")


def _with_settings(wanted: Sequence[str], settings: GivenSettings) -> list[Attack]:
    """The attacks with the settings that each of them has; a setting that none of them has is refused."""
    from privet.attacks import attack_named, attack_names
    from privet.runs.after import attacks_with

    def has(key: str) -> set[str]:
        attack: Any = attack_named(key)
        return {each.name for each in fields(attack)} - {"key", "title"} if is_dataclass(attack) else set()

    named, known = f"--attack {','.join(wanted)}", {name for key in wanted for name in has(key)}
    for name, option in settings.options.items():
        if name not in known:
            if users := [f"--attack {key}" for key in attack_names() if name in has(key)]:
                raise InputError(f"{option} is not used by {named}. Leave it out, or use it with {either(users)}.")
            raise InputError(unknown_setting(option, named, known))
    return attacks_with(wanted, settings.values)


def _invert(record: RunRecord, run: Path, model: str, data: str, as_json: bool) -> None:
    from privet.attacks import draw_classes
    from privet.report import load_model
    from privet.runs.after import alone_with

    dataset: Dataset = load_again(record.data, data)
    if len(dataset.shape) != 3:
        raise InputError(f"{run}: an inversion is drawn as pictures, and the records of {dataset.name} are not images.")
    path = run / PICTURE
    with alone_with(run):
        found = draw_classes(path, load_model(record, run, model), dataset)
    if as_json:
        confidence = dict(zip(dataset.classes, found.confidence.tolist(), strict=True))
        echo(json.dumps({"picture": str(path), "confidence": confidence}, indent=1))
        return
    echo(
        f"Inversion: a picture of each class, made from the model alone, which is at least "
        f"{math.floor(1000 * float(found.confidence.min())) / 10:g} % sure of it; below it the mean of the training records"
    )
    echo(f"The picture, only for those who may see the data: {path}")


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
