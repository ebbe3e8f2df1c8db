"""`privet synthesize`: synthetic data by any method."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.cli.options import GivenSettings, check_methods, warn_moved
from privet.cli.program import AsJson, echo, verb
from privet.cli.records import (
    BudgetOptions,
    RecordOptions,
    RunOptions,
    SetOption,
    check_free,
    completing,
    open_task,
)
from privet.cli.train import measured_facts, run_shown, say_dry_run, say_measured
from privet.errors import InputError

if TYPE_CHECKING:
    from privet.methods import Task
    from privet.report import RunRecord

NETWORKS = ("cnn", "logistic")


def method_keys() -> list[str]:
    from privet.methods import methods_that_make

    return ["auto", *methods_that_make("data")]


@dataclass
class StudentOptions:
    """How the usefulness of synthetic data is measured."""

    students: Annotated[
        list[str] | None,
        typer.Option(
            "--student",
            help="cnn, logistic, or a classifier of scikit-learn by name; repeat the option to give several.",
        ),
    ] = None
    epochs: Annotated[
        int | None, typer.Option(help="The epochs of the students cnn and logistic; 20 by default.", min=1, max=10_000)
    ] = None
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline", help="For comparison, also train the students on the real records, without privacy."
        ),
    ] = False

    def check(self) -> None:
        if self.epochs is not None and self.students and not any(name in NETWORKS for name in self.students):
            raise InputError(
                "--epochs is not used here: it belongs to the students cnn and logistic. Leave it out, or give --student cnn "
                "or logistic."
            )


@dataclass
class SyntheticOptions:
    """The options that set fields of a method that makes data."""

    size: Annotated[
        int | None, typer.Option(help="The number of examples; by default as many as records, at most 30,000.", min=1)
    ] = None
    labels: Annotated[
        str | None,
        typer.Option(
            help="protected: labels are protected with their records; votes: teachers of disjoint records vote on the labels of "
            "the examples, within the same budget.",
        ),
    ] = None
    settings: SetOption = None
    as_published: Annotated[
        bool, typer.Option("--as-published", hidden=True, help="Moved: write --method noise-layer-gan-published.")
    ] = False

    def given(self) -> GivenSettings:
        """All settings by name."""
        found = GivenSettings.of(self.settings)
        for name in ("size", "labels"):
            if (value := getattr(self, name)) is not None:
                found.add(f"--{name}", name, value)
        return found

    def applied(self, method: str) -> str:
        """The method that an option of version 0.1 means."""
        if not self.as_published:
            return method
        if method != "noise-layer-gan":
            raise InputError(
                f"--as-published is not used by --method {method}. Leave it out, or use it with --method noise-layer-gan."
            )
        warn_moved("--as-published", f"--method {method}-published")
        return f"{method}-published"


@verb("synthesize", "privet synthesize --data mnist --epsilon 3.45 --out runs/b")
def synthesize(
    context: typer.Context,
    records: RecordOptions,
    budget: BudgetOptions,
    wanted: SyntheticOptions,
    measuring: StudentOptions,
    more: RunOptions,
    out: Annotated[Path, typer.Option(help="The folder of the run; its subfolder release may be published.")],
    method: Annotated[
        str,
        typer.Option(
            help="The method (privet methods lists them), or auto to choose by the data and the budget.",
            autocompletion=completing(method_keys),
        ),
    ] = "auto",
    as_json: AsJson = False,
) -> None:
    """Make synthetic data to publish instead of the records: its cost, what students learn from it, what an attack finds."""
    more.load()
    budget.check()
    check_free(out, more.resume)
    measuring.check()
    from privet.methods import METHODS, method_for, method_named
    from privet.runs import Measuring

    settings, key, why = wanted.given(), wanted.applied(method), "you asked for it"
    if key != "auto":
        key = method_named(key).key
        if METHODS[key].makes != "data":
            raise InputError(f"The method {key} makes a model, not data: use privet train --method {key}.")
    task = open_task(records, budget, out, made_up=more.dry_run)
    if key == "auto":
        key, why = choose(task, settings.values)
    # The method for a table has other settings than the one for images.
    check_methods(context, [METHODS[key].fitted(task)], settings, {each: METHODS[each] for each in method_keys()[1:]})
    ready = method_for(key, task, settings.values)
    if not as_json:
        echo(f"Method {ready.key}, because {why}: {ready.full_title}.")
    how = Measuring(more.attack_keys, tuple(measuring.students or ()), measuring.epochs or 20, measuring.baseline)
    if more.dry_run:
        say_dry_run(ready, task, out, how, as_json)
        return
    record = run_shown(ready, task, out, how, resume=more.resume, tuned_from=more.tuned_from, track=more.track)
    say(record, out, as_json)


def choose(task: Task, given: dict[str, Any]) -> tuple[str, str]:
    """The method for these records and this budget, and why.

    So far always class moments: on MNIST, students of every GAN here are far behind (docs/synthesis.md, the table of students).
    """
    from privet.methods import method_named
    from privet.methods.class_moments import Moments, teachable

    if task.schema is not None:
        return "moments", "these are rows of a table: histograms and correlations keep its columns and need no training"
    moments = method_named("moments", **{name: value for name, value in given.items() if name in ("size", "labels")})
    assert isinstance(moments, Moments)
    order = moments.order(task)
    if order.labels != "votes" and teachable(task.dataset.shape, order):
        return "moments", (
            f"{order.records:,} images at epsilon {order.epsilon:g} are enough for class moments and a private teacher, whose "
            f"students did better on MNIST than those of every GAN here"
        )
    return (
        "moments",
        "they are released once, and use the records only a few times, where a GAN needs many steps under noise",
    )


def say(record: RunRecord, out: Path, as_json: bool) -> None:
    """The result, for a terminal or for a program."""
    from privet.report.statement import title

    ledger = record.open_ledger(out)
    spent, calibrated = record.spent(ledger), record.calibrated(ledger)
    assert record.synthetic is not None
    students = {name.removeprefix("Student "): said for name, said in record.settings.items() if name[:8] == "Student "}
    if as_json:
        facts = {
            "data": record.data.name,
            "method": record.how.key,
            "size": record.synthetic.rows,
            "spent": spent.to_dict(),
            "calibrated": calibrated.to_dict() if calibrated is not None else None,
            **measured_facts(record),
            **({"students": students} if record.data.public else {}),
            "seconds": record.seconds,
            "release": str(out / "release"),
            "page": str(out / "report.html"),
        }
        echo(json.dumps(facts, indent=1))
        return
    echo(f"{title(record, spent)}: {record.synthetic.rows:,} examples, made and attacked in {record.seconds:.0f} s")
    echo(str(spent))
    if calibrated is not None:
        echo(f"The noise was calibrated by {calibrated.accountant}: {calibrated}")
    for name, said in students.items():
        echo(f"Student {name}, trained on the synthetic data alone: {said}")
    say_measured(record)
    echo(f"Nearest records, distances and baselines, not for release: {out / 'internal' / 'quality.md'}")
    purpose = "Seeded, so not for release" if record.seeded else "To release"
    echo(f"{purpose}: {out / 'release'} (its card: {out / 'release' / 'README.md'})")
    echo(f"The page, which is internal: {out / 'report.html'}")
