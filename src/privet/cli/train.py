"""`privet train`: a private model by any method."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.cli.attack import INTERNAL, sentences
from privet.cli.program import AsJson, verb
from privet.cli.progress import training
from privet.cli.records import (
    Attacks,
    Budget,
    Plugins,
    PublicRecords,
    Records,
    Settings,
    check_free,
    check_used,
    command_line,
    free_folder,
    keys,
    load_plugins,
    load_records,
    make_task,
    others_on,
    say_who_is_unprotected,
)
from privet.errors import InputError

if TYPE_CHECKING:
    from privet.methods import Method, Task
    from privet.report import RunRecord
    from privet.runs import Measuring

LONG = 120.0
"""Warn before runs expected to take longer than this many seconds."""

TunedFrom = Annotated[
    list[Path] | None,
    typer.Option(
        help="The folder of a run on the same records by which settings were chosen: the card counts it too, as it does "
        "those beside --out. Repeat the option to give several.",
    ),
]


def method_keys() -> list[str]:
    from privet.methods import methods_that_make

    return list(methods_that_make("model"))


def _old(name: str, instead: str, **more: Any) -> Any:
    """An option of version 0.1 that is a setting now."""
    return typer.Option(name, hidden=True, help=f"Moved: write {instead}.", **more)


@dataclass
class Moved:
    """Options of version 0.1 that became settings: they work for one more version, with a warning."""

    form: Annotated[str | None, _old("--form", "--method optimized-noise-FORM")] = None
    as_published: Annotated[bool, _old("--as-published", "--method optimized-noise-published")] = False
    gamma: Annotated[float | None, _old("--gamma", "--set gamma=...")] = None
    strategy: Annotated[str | None, _old("--strategy", "--set strategy=...")] = None
    pi: Annotated[float | None, _old("--pi", "--set pi=...")] = None
    radius: Annotated[float | None, _old("--radius", "--set radius=...")] = None
    ensemble: Annotated[int | None, _old("--ensemble", "--set ensemble=...")] = None
    epochs: Annotated[int | None, _old("--epochs", "--set epochs=...")] = None
    teachers: Annotated[int | None, _old("--teachers", "--set teachers=...")] = None
    queries: Annotated[int | None, _old("--queries", "--set queries=...")] = None
    sure: Annotated[tuple[float, float] | None, _old("--sure", "--set threshold=VOTES --set threshold_noise=NOISE")] = (
        None
    )

    def applied(self, method: str, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The method and the settings that the old options mean."""
        moved: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("gamma", "strategy", "pi", "radius", "ensemble", "epochs", "teachers", "queries")
            if getattr(self, name) is not None
        }
        if self.sure is not None:
            moved |= {"threshold": self.sure[0], "threshold_noise": self.sure[1]}
        for name, value in moved.items():
            warn_moved(
                f"--{name.replace('_', '-')}",
                f"--set {name}={value:g}" if name != "strategy" else f"--set {name}={value}",
            )
        if self.as_published or self.form not in (None, "grouped"):
            if method != "optimized-noise":
                raise InputError(
                    f"--form and --as-published belong to optimized-noise, not to {method}: leave them out."
                )
            if self.as_published and self.form not in (None, "grouped"):
                raise InputError("--as-published is the form grouped: leave --form out.")
            method = f"{method}-{'published' if self.as_published else self.form}"
            warn_moved("--form and --as-published", f"--method {method}")
        return method, moved | settings


def warn_moved(old: str, new: str) -> None:
    typer.echo(f"privet: {old} moved and will stop working in the next version: write {new}", err=True)


@verb("train", "privet train --data mnist --epsilon 3 --out runs/a")
def train(
    context: typer.Context,
    records: Records,
    budget: Budget,
    chosen: Settings,
    moved: Moved,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the run; without it, one in runs, named after data and method.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="How to train; privet methods lists them.", autocompletion=method_keys)
    ] = "dpsgd",
    public: PublicRecords = "",
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out that was stopped, or start it.")
    ] = False,
    attacks: Attacks = None,
    plugins: Plugins = None,
    tuned_from: TunedFrom = None,
    as_json: AsJson = False,
) -> None:
    """Train a private model: its cost, its accuracy and what an attack finds, on one page."""
    load_plugins(plugins)
    budget.check()
    from privet.methods import METHODS, method_for, method_named
    from privet.runs import Measuring

    key, settings = moved.applied(method, chosen.given())
    named = method_named(key)
    if named.makes != "model":
        raise InputError(f"The method {key} makes data, not a model: take privet synthesize --method {key}.")
    check_used(context, named, {each: METHODS[each] for each in method_keys()})
    if out is None and resume:
        raise InputError("Give the folder of the run to continue, with --out.")
    out = out or free_folder(f"{Path(records.data.rpartition(':')[2]).stem}-{key}")
    check_free(out, resume)
    if named.needs_public and not public:
        raise InputError(
            f"--method {key} needs public records without labels: give --public with a number of test records or a data set."
        )
    spec = records.spec()
    dataset = load_records(spec)
    say_who_is_unprotected(dataset)
    task = make_task(spec, dataset, budget, public)
    ready = method_for(key, task, settings)
    if not as_json:
        say_recipe(ready, task)
    record = run_shown(ready, task, out, Measuring(attacks=tuple(keys(attacks))), resume=resume, tuned_from=tuned_from)
    say(record, out, as_json)


def run_shown(
    method: Method,
    task: Task,
    out: Path,
    measuring: Measuring,
    *,
    resume: bool = False,
    tuned_from: list[Path] | None = None,
) -> RunRecord:
    """Run a method with bars on the error stream, and say before how long it will take where that is long."""
    from privet.report.words import duration
    from privet.runs import run
    from privet.runs.runner import check

    check(method, task, out, resume)
    if (seconds := method.expected_seconds(task)) > LONG:
        typer.echo(f"This will take about {duration(seconds)} here; --set epochs=... makes it shorter.", err=True)
    with training(task.delta) as show:
        return run(
            method,
            task,
            out,
            measuring=measuring,
            resume=resume,
            others=others_on(task.dataset, out, tuned_from or ()),
            command=command_line(),
            on_step=show,
            progress=lambda what, done, total: show({"what": what, "step": done, "steps": total}),
        )


def say_recipe(method: Method, task: Task) -> None:
    """Which recipe is used, and why."""
    if not hasattr(method, "recipe"):
        return
    from privet.methods.recipe import chosen

    found, why = chosen(method.recipe, task.dataset)
    typer.echo(f"Recipe {found.name}, because {why}: {found.title}.")
    typer.echo(found.why)


def say(record: RunRecord, out: Path, as_json: bool) -> None:
    """The result, for a terminal or for a program."""
    from privet.randomness.sources import SECRET, SEEDED
    from privet.report.statement import title

    mark = SEEDED if record.seeded else SECRET
    ledger = record.open_ledger(out)
    spent, calibrated = record.spent(ledger), record.calibrated(ledger)
    if as_json:
        facts = {
            "data": record.data.name,
            "method": record.how.key,
            "recipe": record.settings.get("Recipe", "").split(":")[0],
            "spent": spent.to_dict(),
            **({"calibrated": calibrated.to_dict()} if calibrated else {}),
            "randomness": mark,
            **measured_facts(record),
            "seconds": record.seconds,
            "page": str(out / "report.html"),
            "card": str(out / "CARD.md"),
        }
        typer.echo(json.dumps(facts, indent=1))
        return
    typer.echo(f"{title(record, spent)}, trained and attacked in {record.seconds:.0f} s")
    typer.echo(str(spent))
    if calibrated is not None:
        typer.echo(f"The noise was calibrated by {calibrated.accountant}: {calibrated}")
    typer.echo(f"Randomness: {mark}")
    say_measured(record)
    card = "of a seeded run, not for release" if record.seeded else "which may be published"
    typer.echo(f"The card, {card}: {out / 'CARD.md'}")
    typer.echo(f"The page{'' if record.data.public else ', which is internal'}: {out / 'report.html'}")


def measured_facts(record: RunRecord) -> dict[str, Any]:
    """The accuracy and the attacks for JSON; figures that may not be published are under "internal"."""
    from dataclasses import asdict

    attacks = [
        {"key": one.key, "name": one.name, "auc": one.auc, "low": one.low, "high": one.high} for one in record.attacks
    ]
    measured = {"attack": attacks[-1] if attacks else None, "attacks": attacks}
    found = record.released_utility
    facts: dict[str, Any] = {"accuracy": asdict(found) if found else None}
    if record.data.public:
        return facts | {"test_accuracy": record.test_accuracy, **measured}
    return facts | {
        "not_protected": record.data.who_is_unprotected,
        "internal": {"test_accuracy": record.test_accuracy, **measured},
    }


def say_measured(record: RunRecord) -> None:
    """The accuracy beside that of the most frequent class, and the attacks, for a terminal."""
    from privet.report.statement import measured

    typer.echo(measured(record))
    if not record.data.public:
        typer.echo(f"{INTERNAL}:")
    if not record.data.public and record.data.unprotected and record.test_accuracy is not None:
        typer.echo(f"The accuracy on the unprotected records is {100 * record.test_accuracy:.2f} %.")
    for attack in record.attacks:
        for line in sentences(attack, public=record.data.public):
            typer.echo(line)
