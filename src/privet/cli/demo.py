"""`privet demo`: the main job end to end, by four methods that put their noise in four places."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privet.cli import compare
from privet.cli.data import NAMES
from privet.cli.program import AsJson, verb
from privet.cli.progress import fetching
from privet.cli.records import Budget, choose_delta, command_line
from privet.errors import InputError, PrivetError

if TYPE_CHECKING:
    from privet.data import Dataset

FALLBACK = "digits"
RECIPES = {"mnist": "mnist-scattering", "fashion-mnist": "fashion-scattering", "digits": "digits-linear"}
METHODS = ("dpsgd", "moments", "optimized-noise-elliptical", "residual")
"""In the order of their start: on two cores the longest does not come last."""
OLDER = ("CARD.md", "card.json", "ledger.jsonl", "model.safetensors", "record.json", "steps.csv")
"""What a demo left in its folder when it was one run: a newer one takes its place."""


@verb("demo", "privet demo --epsilon 1 --out runs/tighter")
def demo(
    budget: Budget,
    data: Annotated[
        str | None,
        typer.Option(
            help="mnist, fashion-mnist or digits; without it mnist, or digits where mnist is not available.",
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
    dataset, note = _records(data)
    from privet.methods import DataSpec
    from privet.runs import Measuring, staged
    from privet.runs.job import Job

    small = dataset.size < 10_000  # a small data set gets the network that its paper has
    job = Job(
        DataSpec(dataset.name, note=note),
        budget.epsilon,
        choose_delta(budget.delta, dataset),
        METHODS,
        seed=budget.seed,
        settings={"recipe": RECIPES[dataset.name]},
        # The size that four minutes of two cores allow.
        own_settings={
            "moments": {"size": min(dataset.size, 10_000)},
            "residual": {"epochs": 10 if small else 2, "shrink": 1 if small else 2},
        },
        measuring=Measuring(students=("cnn",), epochs=10),
        command=command_line() if command_line()[1:2] == ("demo",) else ("privet", "demo"),
    )
    with staged(out) as folder:
        folder.rmdir()
        job.keep(folder)
        result = compare.run(job, dataset, folder, {}, quiet=as_json)
    for name in OLDER:
        (out / name).unlink(missing_ok=True)
    compare.say(result, out, as_json)


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


def _records(name: str | None) -> tuple[Dataset, str]:
    """The data set, and a note for the record where it is not the one that was wanted."""
    from privet import data

    if name is not None and name not in RECIPES:
        raise InputError(f"The demo has no recipe for {name!r}: it has them for {', '.join(RECIPES)}.")
    try:
        with fetching() as progress:
            return data.get(name or "mnist", progress=progress), ""
    except InputError:
        raise
    except PrivetError as error:
        if name is not None:
            raise
        typer.echo(f"privet: {error}", err=True)
        typer.echo("privet: MNIST is not available, so the demo uses the small digits data set instead.", err=True)
        return data.get(FALLBACK), "MNIST is not available, so this small data set was taken."
