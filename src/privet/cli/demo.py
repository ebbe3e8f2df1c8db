"""`privet demo`: the whole toolkit end to end, with four methods that add their noise in four places."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privet.cli import compare
from privet.cli.program import AsJson, echo, how_to_go_on, verb
from privet.cli.progress import fetching
from privet.cli.records import NAMES, BudgetOptions, ControlOptions, choose_delta, command_line, load_records
from privet.errors import InputError, PrivetError

if TYPE_CHECKING:
    from privet.data import Dataset
    from privet.runs.comparison import Comparison
    from privet.runs.job import Job

FALLBACK = "digits"
RECIPES = {"mnist": "mnist-scattering", "fashion-mnist": "fashion-scattering", "digits": "digits-linear"}
METHODS = ("dpsgd", "moments", "optimized-noise-elliptical", "residual")
"""The methods in the order they start: on two cores the longest must not come last."""
STUDENT_EPOCHS = 10
OLDER = ("CARD.md", "card.json", "ledger.jsonl", "model.safetensors", "record.json", "steps.csv")
"""Files of a demo of version 0.1, which was a single run; a new demo replaces them."""


@verb("demo", "privet demo --epsilon 1 --out runs/tighter")
def demo(
    budget: BudgetOptions,
    control: ControlOptions,
    data: Annotated[
        str | None,
        typer.Option(
            help="mnist, fashion-mnist or digits. By default mnist, or digits if mnist is not available.",
            autocompletion=lambda: [name for name in NAMES if name in RECIPES],
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of the demo.")] = Path("runs/demo"),
    as_json: AsJson = False,
) -> None:
    """Train private classifiers in four ways at one budget, account for them, attack and audit each, and write one page.

    DP-SGD, elliptical clipping, residual perturbation as published, and a student of synthetic data: a small privet compare.
    """
    budget.check()
    _check_folder(out)
    dataset, note = _records(data, made_up=control.dry_run)
    from privet.methods import DataSpec
    from privet.runs import Measuring
    from privet.runs.job import Job

    job = Job(
        DataSpec(dataset.name, note=note),
        budget.epsilon,
        choose_delta(budget.delta, dataset),
        METHODS,
        seed=budget.seed,
        settings={"recipe": RECIPES[dataset.name]},
        own_settings=_sizes(dataset),
        measuring=Measuring(students=("cnn",), epochs=STUDENT_EPOCHS),
        command=command_line() if command_line()[1:2] == ("demo",) else ("privet", "demo"),
    )
    if control.dry_run:
        compare.say_dry_run(job, job.task(dataset), out, None, as_json)
        return
    with how_to_go_on(out, pays=False):
        result = _result(job, dataset, out, control.resume, as_json)
    compare.say(result, out, as_json)


def _result(job: Job, dataset: Dataset, out: Path, resume: bool, quiet: bool) -> Comparison:
    """Run the demo in a folder beside `out` and move it to `out` when it is finished, so that a stopped demo replaces nothing.

    If it is called again after a stop, it goes on, even if it was stopped during the move.
    """
    from privet.runs.comparison import read_result
    from privet.training.folder import alone_in

    running, finished = (out.parent / f".{out.name}.{state}" for state in ("unfinished", "finished"))
    if finished.exists():
        with alone_in(finished):
            _put(finished, out)
        return read_result(out)
    if resume and not running.exists() and _holds(out, job):
        return read_result(out)
    with job.kept_in(running):
        compare.run(job, dataset, running, {}, quiet=quiet)
        running.rename(finished)
        _put(finished, out)
    return read_result(out)


def _holds(out: Path, job: Job) -> bool:
    """Whether `out` holds this demo and it is finished."""
    from privet.io.names import COMPARISON
    from privet.runs.job import JOB, Job

    return (
        all((out / name).exists() for name in (JOB, COMPARISON)) and replace(Job.read(out), command=job.command) == job
    )


def _put(finished: Path, out: Path) -> None:
    """Move a finished demo to its folder."""
    from privet.io.names import LOCK
    from privet.training.folder import alone_in

    out.mkdir(parents=True, exist_ok=True)
    with alone_in(out):
        for path in sorted(finished.iterdir()):
            if path.name == LOCK:
                continue
            if (out / path.name).is_dir():
                shutil.rmtree(out / path.name)
            path.replace(out / path.name)
        for name in OLDER:
            (out / name).unlink(missing_ok=True)
    shutil.rmtree(finished)


def _sizes(dataset: Dataset) -> dict[str, dict[str, int]]:
    """The settings that four minutes of two cores allow; a small data set gets the network of the paper."""
    small = dataset.size < 10_000
    return {
        "moments": {"size": min(dataset.size, 10_000)},
        "residual": {"epochs": 10 if small else 2, "shrink": 1 if small else 2},
    }


def _check_folder(out: Path) -> None:
    from privet.report import RunRecord
    from privet.report.record import FILE
    from privet.runs.job import JOB, Job

    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give a folder with --out.")
    commands = [RunRecord.read(out).command] if (out / FILE).exists() else []
    commands += [Job.read(out).command] if (out / JOB).exists() else []
    if any(command[:2] != ("privet", "demo") for command in commands):
        raise InputError(f"{out} holds a run that is not a demo: give another folder with --out.")


def _records(name: str | None, *, made_up: bool = False) -> tuple[Dataset, str]:
    """The data set, and a note for the record if it replaces MNIST; for a dry run, made-up records."""
    from privet import data
    from privet.methods import DataSpec

    if name is not None and name not in RECIPES:
        raise InputError(f"The demo has no recipe for {name!r}. It has recipes for {', '.join(RECIPES)}.")
    if made_up:
        return load_records(DataSpec(name or "mnist"), made_up=True), ""
    try:
        with fetching() as progress:
            return data.get(name or "mnist", progress=progress), ""
    except InputError:
        raise
    except PrivetError as error:
        if name is not None:
            raise
        echo(f"privet: {error}", err=True)
        echo("privet: MNIST is not available, so the demo uses the small digits data set instead.", err=True)
        return data.get(FALLBACK), "MNIST is not available, so this small data set was used."
