"""`privet train`: a private model by any method."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.cli.attack import INTERNAL, sentences
from privet.cli.options import GivenSettings, check_methods, warn_moved
from privet.cli.program import AsJson, echo, how_to_go_on, verb
from privet.cli.progress import training
from privet.cli.records import (
    BudgetOptions,
    PublicRecords,
    RecordOptions,
    RunOptions,
    SettingOptions,
    command_line,
    completing,
    open_task,
    others_on,
    run_folder,
    say_preview,
)
from privet.errors import InputError

if TYPE_CHECKING:
    from privet.methods import Method, Task
    from privet.report import RunRecord
    from privet.runs import Measuring

LONG = 120.0
"""Warn before runs expected to take longer than this many seconds."""


def method_keys() -> list[str]:
    from privet.methods import methods_that_make

    return list(methods_that_make("model"))


def _old(name: str, instead: str, **more: Any) -> Any:
    """An option of version 0.1 that is a setting now."""
    return typer.Option(name, hidden=True, help=f"Moved: write {instead}.", **more)


FORMS = ("grouped", "isotropic", "elliptical")


@dataclass
class MovedTrainOptions:
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

    def applied(self, method: str, settings: GivenSettings) -> str:
        """The method that the old options mean; those that are settings now are added to `settings`."""
        for name in ("gamma", "strategy", "pi", "radius", "ensemble", "epochs", "teachers", "queries"):
            if (value := getattr(self, name)) is not None:
                warn_moved(
                    f"--{name}", f"--set {name}={value:g}" if isinstance(value, float) else f"--set {name}={value}"
                )
                settings.add(f"--{name}", name, value)
        if self.sure is not None:
            parts = dict(zip(("threshold", "threshold_noise"), self.sure, strict=True))
            warn_moved("--sure", " ".join(f"--set {name}={value:g}" for name, value in parts.items()))
            for name, value in parts.items():
                settings.add("--sure", name, value)
        return self._method(method)

    def _method(self, method: str) -> str:
        """The method of --form and --as-published."""
        old = "--as-published" if self.as_published else "--form"
        if self.form is None and not self.as_published:
            return method
        if method != "optimized-noise":
            raise InputError(
                f"{old} is not used by --method {method}. Leave it out, or use it with --method optimized-noise."
            )
        if self.form not in (None, *FORMS):
            raise InputError(f"--form is {', '.join(FORMS[:-1])} or {FORMS[-1]}, and not {self.form!r}.")
        if self.as_published and self.form not in (None, "grouped"):
            raise InputError("--as-published is the form grouped: leave --form out.")
        form = "published" if self.as_published else self.form
        method = method if form == "grouped" else f"{method}-{form}"
        warn_moved(old, f"--method {method}")
        return method


@verb("train", "privet train --data mnist --epsilon 3 --out runs/a")
def train(
    context: typer.Context,
    records: RecordOptions,
    budget: BudgetOptions,
    chosen: SettingOptions,
    moved: MovedTrainOptions,
    more: RunOptions,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder of the run; by default a new one in runs, named after data and method."),
    ] = None,
    method: Annotated[
        str, typer.Option(help="The method; privet methods lists them.", autocompletion=completing(method_keys))
    ] = "dpsgd",
    public: PublicRecords = "",
    as_json: AsJson = False,
) -> None:
    """Train a private model: its cost, its accuracy and what an attack finds, on one page."""
    more.load()
    budget.check()
    from privet.methods import METHODS, method_for, method_named
    from privet.runs import Measuring

    settings = chosen.given()
    named = method_named(moved.applied(method, settings))
    if named.makes != "model":
        raise InputError(f"The method {named.key} makes data, not a model: use privet synthesize --method {named.key}.")
    check_methods(context, [named], settings, {key: METHODS[key] for key in method_keys()})
    out = run_folder(out, records.data, named.key, more.resume)
    if named.needs_public and not public:
        raise InputError(
            f"--method {named.key} needs public records without labels: give --public with a number of test records or a data "
            "set."
        )
    task = open_task(records, budget, out, public, made_up=more.dry_run)
    ready = method_for(named.key, task, settings.values)
    if not as_json:
        say_recipe(ready, task)
    if more.dry_run:
        say_dry_run(ready, task, out, Measuring(more.attack_keys), as_json)
        return
    record = run_shown(
        ready, task, out, Measuring(more.attack_keys), resume=more.resume, tuned_from=more.tuned_from, track=more.track
    )
    say(record, out, as_json)


def say_dry_run(method: Method, task: Task, out: Path, measuring: Measuring, as_json: bool) -> None:
    """Describe a run without making it; refuses what the run would refuse before it uses a record."""
    from privet.runs.preview import preview_run
    from privet.runs.runner import check, usual_attack

    check(method, task, measuring)
    say_preview(preview_run(method, task, out, measuring.attacks or (usual_attack(method.makes),)), as_json)


def run_shown(
    method: Method,
    task: Task,
    out: Path,
    measuring: Measuring,
    *,
    resume: bool = False,
    tuned_from: list[Path] | None = None,
    track: list[str] | None = None,
) -> RunRecord:
    """Run a method with progress bars on the error stream; warn first if it will take long."""
    from privet.integrations.trackers import tracked
    from privet.report.words import duration
    from privet.runs import run
    from privet.runs.runner import check

    check(method, task, measuring)
    if (seconds := method.expected_seconds(task)) > LONG:
        echo(f"This will take about {duration(seconds)} here; --set epochs=... makes it shorter.", err=True)
    with how_to_go_on(out), training(task.delta) as show, tracked(*track or (), name=out.name) as log:

        def on_step(step: dict[str, Any]) -> None:
            show(step)
            log(step)

        record = run(
            method,
            task,
            out,
            measuring=measuring,
            resume=resume,
            others=others_on(task.dataset, out, tuned_from or ()),
            command=command_line(),
            on_step=on_step,
            progress=lambda what, done, total: show({"what": what, "step": done, "steps": total}),
        )
        log.finish(record, out)
        return record


def say_recipe(method: Method, task: Task) -> None:
    """Which recipe is used, and why."""
    if not hasattr(method, "recipe"):
        return
    from privet.methods.recipe import chosen

    found, why = chosen(method.recipe, task.dataset, getattr(method, "model", ""))
    echo(f"Recipe {found.name}, because {why}: {found.title}.")
    echo(found.why)


def say(record: RunRecord, out: Path, as_json: bool) -> None:
    """The result, for a terminal or for a program."""
    from privet.report.statement import title

    ledger = record.open_ledger(out)
    spent, calibrated = record.spent(ledger), record.calibrated(ledger)
    if as_json:
        more = {"calibrated": calibrated.to_dict()} if calibrated else {}
        recipe = record.settings.get("Recipe", "").split(":")[0]
        echo(json.dumps(result_facts(record, out, recipe=recipe, **more, seconds=record.seconds), indent=1))
        return
    echo(f"{title(record, spent)}, trained and attacked in {record.seconds:.0f} s")
    echo(str(spent))
    if calibrated is not None:
        echo(f"The noise was calibrated by {calibrated.accountant}: {calibrated}")
    say_result(record, out)


def result_facts(record: RunRecord, out: Path, **more: Any) -> dict[str, Any]:
    """A run that made a model, for JSON."""
    from privet.randomness.sources import SECRET, SEEDED

    return {
        "data": record.data.name,
        "method": record.how.key,
        **more,
        "spent": record.spent(record.open_ledger(out)).to_dict(),
        "randomness": SEEDED if record.seeded else SECRET,
        **measured_facts(record),
        "page": str(out / "report.html"),
        "card": str(out / "CARD.md"),
    }


def say_result(record: RunRecord, out: Path) -> None:
    """Print the randomness of a run that made a model, the measurements, and the paths of card and page."""
    from privet.randomness.sources import SECRET, SEEDED

    echo(f"Randomness: {SEEDED if record.seeded else SECRET}")
    say_measured(record)
    card = "of a seeded run, not for release" if record.seeded else "which may be published"
    echo(f"The card, {card}: {out / 'CARD.md'}")
    echo(f"The page{'' if record.data.public else ', which is internal'}: {out / 'report.html'}")


def measured_facts(record: RunRecord) -> dict[str, Any]:
    """The accuracy and the attacks for JSON; figures that may not be published are under "internal"."""
    from dataclasses import asdict

    attacks = [
        {"key": one.key, "name": one.name, "auc": one.auc, "low": one.low, "high": one.high} for one in record.attacks
    ]
    measured = {"attack": attacks[-1] if attacks else None, "attacks": attacks}
    found = record.released_utility
    facts: dict[str, Any] = {"accuracy": asdict(found) if found else None}
    if record.data.target:
        facts = {"error": asdict(record.released_error) if record.released_error else None}
    if record.data.public:
        return facts | {"test_accuracy": record.test_accuracy, **measured}
    return facts | {
        "not_protected": record.data.who_is_unprotected,
        "internal": {"test_accuracy": record.test_accuracy, **measured},
    }


def say_measured(record: RunRecord) -> None:
    """The accuracy beside that of the most frequent class, and the attacks, for a terminal."""
    from privet.report.statement import measured

    echo(measured(record))
    if not record.data.public:
        echo(f"{INTERNAL}:")
    if not record.data.public and record.data.unprotected and record.test_accuracy is not None:
        echo(f"The accuracy on the unprotected records is {100 * record.test_accuracy:.2f} %.")
    if record.data.target and record.error is not None and not record.error.noise and not record.data.public:
        error = record.error
        echo(
            f"The error on the unprotected records is {error.error:.4g} (95 % interval {error.low:.4g} to {error.high:.4g}); the "
            f"best constant has {error.constant:.4g}."
        )
    for attack in record.attacks:
        for line in sentences(attack, public=record.data.public):
            echo(line)
