"""`privet compare`: every method that fits the data at one budget, on one page."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privet.cli.options import check_methods, current_key
from privet.cli.program import AsJson, echo, how_to_go_on, verb
from privet.cli.progress import board, computing, table
from privet.cli.records import (
    Attacks,
    BudgetOptions,
    ControlOptions,
    FarmOptions,
    Plugins,
    PublicRecords,
    RecordOptions,
    SettingOptions,
    choose_delta,
    command_line,
    completing,
    keys,
    load_plugins,
    load_records,
    say_account,
    say_preview,
    say_who_is_unprotected,
)
from privet.errors import InputError, PrivetError

if TYPE_CHECKING:
    from privet.data import Dataset
    from privet.io.farm import Farm
    from privet.methods import Task
    from privet.runs.comparison import Comparison
    from privet.runs.job import Job

EVERY = "all"
MOST_MINUTES = 525_600
"""A year; 0 means no limit."""


def method_keys() -> list[str]:
    from privet.methods import METHODS

    return [EVERY, *METHODS]


@dataclass
class RaceOptions:
    """How the methods run."""

    out: Annotated[Path, typer.Option(help="The folder of the comparison; a stopped one is continued.")] = Path(
        "runs/compare"
    )
    minutes: Annotated[
        float,
        typer.Option(help="The most minutes that each method may train; 0 for no limit.", min=0, max=MOST_MINUTES),
    ] = 0.0
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "--methods",
            help="Methods, separated by commas, or all. By default, those that fit the data and train quickly.",
            autocompletion=completing(method_keys),
        ),
    ] = None
    export: Annotated[
        Path | None,
        typer.Option(help="Write the table to this .csv or .tex file too. Columns named internal are not for release."),
    ] = None


@verb("compare", "privet compare --data mnist --epsilon 3 --minutes 5 --out runs/compare")
def compare(
    context: typer.Context,
    records: RecordOptions,
    budget: BudgetOptions,
    chosen: SettingOptions,
    race: RaceOptions,
    farm: FarmOptions,
    control: ControlOptions,
    public: PublicRecords = "",
    attacks: Attacks = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Run every method that fits the data at one budget, attack and audit each, and show them side by side on one page.

    Each method runs in a worker process, on this machine or in a cluster. A stopped comparison goes on if it is called again
    with the same options, with or without --resume: finished methods are not run again. Choosing one of the methods by their
    results costs as much as all of them together; the page says how much.
    """
    load_plugins(plugins)
    budget.check()
    where = farm.farm()
    if math.isnan(race.minutes):
        raise InputError("--minutes is a number of at least 0, and not nan.")
    from privet.methods import METHODS
    from privet.report.export import check_suffix, export
    from privet.runs import Measuring
    from privet.runs.job import Job

    if race.export is not None:
        check_suffix(race.export)
    spec, settings = records.spec(), chosen.given()
    say_account(spec, race.out)
    dataset = load_records(spec, made_up=control.dry_run)
    if dataset.target is not None:
        raise InputError(
            f"A comparison ranks methods by their accuracy, and {dataset.target.name} is a number: use privet train."
        )
    say_who_is_unprotected(dataset)
    job = Job(
        spec,
        budget.epsilon,
        choose_delta(budget.delta, dataset),
        (),
        race.minutes,
        budget.seed,
        public,
        settings.values,
        measuring=Measuring(tuple(keys(attacks))),
        plugins=tuple(str(Path(file).resolve()) for file in plugins or ()),
        command=command_line(),
    )
    task = job.task(dataset)
    methods, left_out = _methods(race.methods, task)
    check_methods(context, [METHODS[key].fitted(task) for key in methods], settings, dict(METHODS.items()))
    for key in methods:
        job.method(key, task)  # a value that cannot be used is refused before any method starts
    _check_attacks(job, methods, task)
    job = replace(job, methods=tuple(methods))
    if control.dry_run:
        say_dry_run(job, task, race.out, where, as_json)
        return
    with how_to_go_on(race.out, pays=False), job.kept_in(race.out):
        result = run(job, dataset, race.out, left_out, farm=where, quiet=as_json)
    if race.export is not None:
        caption = f"Methods at epsilon {job.epsilon:g}, delta {job.delta:g}, on {dataset.name}."
        export([outcome.facts() for outcome in result.outcomes], race.export, caption)
    say(result, race.out, as_json)


def say_dry_run(job: Job, task: Task, out: Path, farm: Farm | None, as_json: bool) -> None:
    """Describe the comparison without making it."""
    from privet.io.farm import cores
    from privet.runs.preview import preview_comparison

    methods = [job.method(key, task) for key in job.methods]
    say_preview(preview_comparison(methods, task, out, (farm and farm.jobs) or cores()), as_json)


def run(
    job: Job,
    dataset: Dataset,
    out: Path,
    left_out: dict[str, str],
    *,
    farm: Farm | None = None,
    quiet: bool = False,
) -> Comparison:
    """Run the methods of the job that `out` keeps, showing the progress of each; leaves the page and `compare.json` there."""
    from privet.runs.comparison import finish, write_comparison
    from privet.runs.race import race

    _prepare(job, dataset)
    with board(job.delta, quiet=quiet) as show:
        rows = race(job.methods, out, farm=farm, on_change=show)
    result = finish(job, out, rows, left_out, (dataset.origin, dataset.fingerprint))
    write_comparison(result, out)
    return result


def say(result: Comparison, out: Path, as_json: bool) -> None:
    """The result, for a terminal or for a program; an error where there is none."""
    from privet.runs.comparison import PAGE

    page = out / PAGE
    if as_json:
        echo(json.dumps(result.to_dict() | {"page": str(page)}, indent=1, allow_nan=False))
    else:
        private = any(outcome.record is not None and not outcome.record.data.public for outcome in result.outcomes)
        if private:
            echo(
                "Internal, not for release: AUC and TPR, and an accuracy that the card does not have, are computed from private "
                "records without noise."
            )
        table(result)
        echo(f"The page{', which is internal' if private else ''}: {page}")
    if not any(outcome.record is not None for outcome in result.outcomes):
        raise PrivetError(f"No method finished. The reasons are in {page} and in the .log files beside it.")


def _check_attacks(job: Job, methods: list[str], task: Task) -> None:
    """Refuse an attack that fits none of the methods, before anything is spent."""
    from privet.runs.runner import why_no_attack

    for attack in job.measuring.attacks:
        reasons = [why_no_attack(attack, job.method(key, task), task, job.measuring) for key in methods]
        if all(reasons):
            raise InputError(f"The attack {attack} fits none of these methods: {reasons[0]}. Leave it out.")


def _methods(asked: list[str] | None, task: Task) -> tuple[list[str], dict[str, str]]:
    """The methods that take part, and why others do not."""
    from privet.methods import method_named
    from privet.runs.job import fitting

    wanted = keys(asked)
    found, left_out = fitting(task, every=bool(wanted))
    if wanted in ([], [EVERY]):
        return found, left_out
    for key in wanted:
        if key == EVERY:
            raise InputError("--methods all stands alone: leave out the other names.")
    wanted = list(dict.fromkeys(method_named(current_key(key)).key for key in wanted))
    if not any(key in found for key in wanted):
        raise InputError(f"None of these methods fits {task.dataset.name}: {left_out[wanted[0]]}.")
    return [key for key in wanted if key in found], {key: left_out[key] for key in wanted if key in left_out}


def _prepare(job: Job, dataset: Dataset) -> None:
    """Compute the features that several methods share once, with all cores, before the methods start."""
    from privet.data import compute_features
    from privet.methods.preparation import build_model
    from privet.methods.recipe import chosen
    from privet.models.features import OnFeatures

    if job.settings.get("model"):
        return
    recipe, _ = chosen(str(job.settings.get("recipe", "")), dataset)
    model = build_model(recipe, dataset, seed=0)
    if isinstance(model, OnFeatures):
        with computing() as progress:
            compute_features(dataset, model.features, model.key, progress=progress)
