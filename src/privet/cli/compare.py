"""`privet compare`: every method that fits the data at one budget, on one page."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.cli.board import board, table
from privet.cli.options import given
from privet.cli.program import AsJson, verb
from privet.cli.progress import computing
from privet.cli.records import (
    Attacks,
    Budget,
    Plugins,
    PublicRecords,
    Records,
    Settings,
    choose_delta,
    command_line,
    keys,
    load_plugins,
    load_records,
    say_who_is_unprotected,
)
from privet.errors import InputError, PrivetError

if TYPE_CHECKING:
    from privet.data import Dataset
    from privet.methods import Task
    from privet.runs.comparison import Comparison
    from privet.runs.job import Job

EVERY = "all"


def method_keys() -> list[str]:
    from privet.methods import METHODS

    return [EVERY, *METHODS]


@dataclass
class Race:
    """How the methods run."""

    out: Annotated[Path, typer.Option(help="The folder of the comparison; one that was stopped goes on.")] = Path(
        "runs/compare"
    )
    minutes: Annotated[float, typer.Option(help="How long each method may train; 0: as long as it takes.", min=0)] = 0.0
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "--methods",
            help="One method, or several with commas between, or all; without it, those that fit and do not train for long.",
            autocompletion=method_keys,
        ),
    ] = None
    at_once: Annotated[
        int | None, typer.Option("--jobs", help="How many at once; without it, one for each core.", min=1)
    ] = None


@verb("compare", "privet compare --data mnist --epsilon 3 --minutes 5 --out runs/compare")
def compare(
    context: typer.Context,
    records: Records,
    budget: Budget,
    chosen: Settings,
    race: Race,
    public: PublicRecords = "",
    attacks: Attacks = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Run every method that fits the data at one budget, attack and audit each, and show them side by side on one page.

    Each method runs in a process of its own. Stopped and called again with the same options, it goes on. Looking at all of
    them to choose one costs what all of them cost together: the page says how much.
    """
    load_plugins(plugins)
    budget.check()
    from privet.runs import Measuring
    from privet.runs.job import Job

    spec = records.spec()
    dataset = load_records(spec)
    say_who_is_unprotected(dataset)
    job = Job(
        spec,
        budget.epsilon,
        choose_delta(budget.delta, dataset),
        (),
        race.minutes,
        budget.seed,
        public,
        chosen.given(),
        measuring=Measuring(tuple(keys(attacks))),
        plugins=tuple(str(Path(file).resolve()) for file in plugins or ()),
        command=command_line(),
    )
    task = job.task(dataset)
    methods, left_out = _methods(race.methods, task)
    _check_used(context, methods, job.settings, task)
    job = replace(job, methods=tuple(methods))
    job.keep(race.out)
    result = run(job, dataset, race.out, left_out, at_once=race.at_once, quiet=as_json)
    say(result, race.out, as_json)


def run(
    job: Job,
    dataset: Dataset,
    out: Path,
    left_out: dict[str, str],
    *,
    at_once: int | None = None,
    quiet: bool = False,
) -> Comparison:
    """Run the methods of the job that `out` keeps, showing the progress of each; leaves the page and `compare.json` there."""
    from privet.runs.comparison import finish, write_comparison
    from privet.runs.race import race

    _prepare(job, dataset)
    with board(job.delta, quiet=quiet) as show:
        rows = race(job.methods, out, at_once=at_once, on_change=show)
    result = finish(job, out, rows, left_out, (dataset.origin, dataset.fingerprint))
    write_comparison(result, out)
    return result


def say(result: Comparison, out: Path, as_json: bool) -> None:
    """The result, for a terminal or for a program; an error where there is none."""
    from privet.runs.comparison import PAGE

    page = out / PAGE
    if as_json:
        typer.echo(json.dumps(result.to_dict() | {"page": str(page)}, indent=1, allow_nan=False))
    else:
        private = any(outcome.record is not None and not outcome.record.data.public for outcome in result.outcomes)
        if private:
            typer.echo(
                "Internal, not for release: AUC and TPR, and an accuracy that the card does not have, are computed from private "
                "records without noise."
            )
        table(result)
        typer.echo(f"The page{', which is internal' if private else ''}: {page}")
    if not any(outcome.record is not None for outcome in result.outcomes):
        raise PrivetError(f"No method finished: the reasons are in {page} and in the .log files beside it.")


def _check_used(context: typer.Context, methods: list[str], settings: dict[str, Any], task: Task) -> None:
    """Refuse an option or a setting that none of the methods uses."""
    from privet.methods import METHODS, method_for, settings_of

    written, named = given(context), ", ".join(methods)
    for option, attribute in {"epsilon": "spends_budget", "public": "needs_public"}.items():
        if option in written and not any(getattr(METHODS[key], attribute) for key in methods):
            users = [key for key, method in METHODS.items() if getattr(method, attribute)]
            raise InputError(
                f"{written[option]} is not used by any of these methods: {named}. Leave it out, or use it with --method "
                f"{', '.join(users[:-1])} or {users[-1]}."
            )
    known = {setting.name for key in methods for setting in settings_of(method_for(key, task))}
    for name in settings:
        if name not in known:
            option = f"--{name}" if name in ("recipe", "model") and name in written else f"--set {name}="
            raise InputError(f"{option} is not used by any of these methods: {named}. Leave it out.")


def _methods(asked: list[str] | None, task: Task) -> tuple[list[str], dict[str, str]]:
    """The methods that take part, and why others do not."""
    from privet.methods import METHODS, method_named
    from privet.runs.job import fitting

    wanted = keys(asked)
    found, left_out = fitting(task, every=bool(wanted))
    if wanted in ([], [EVERY]):
        return found, left_out
    for key in wanted:
        if key == EVERY:
            raise InputError("--methods all stands alone: leave out the other names.")
    wanted = [method_named(key).key for key in wanted]
    if not any(key in found for key in wanted):
        raise InputError(f"None of these methods fits {task.dataset.name}: {left_out[wanted[0]]}.")
    assert set(found) <= set(METHODS)
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
