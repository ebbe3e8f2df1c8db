"""`privet demo`: the main job end to end, by four methods that put their noise in four places."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privet.cli import compare
from privet.cli.data import NAMES
from privet.cli.program import AsJson, app
from privet.cli.progress import fetching
from privet.cli.records import choose_delta
from privet.cli.train import Delta, Epsilon, Seed, check_budget
from privet.errors import InputError, PrivetError

if TYPE_CHECKING:
    from privet.compare.job import Sizes
    from privet.data import Dataset

FALLBACK = "digits"
RECIPES = {"mnist": "mnist-scattering", "fashion-mnist": "fashion-scattering", "digits": "digits-linear"}
METHODS = ("dpsgd", "synthetic-moments", "optimized-noise-elliptical", "residual")
"""In the order of their start: on two cores the longest does not come last."""
OLDER = ("CARD.md", "card.json", "ledger.jsonl", "model.safetensors", "record.json", "steps.csv")
"""What a demo left in its folder when it was one run: a newer one takes its place."""


@app.command("demo", epilog="Example:  privet demo --epsilon 1 --out runs/tighter")
def demo(
    data: Annotated[
        str | None,
        typer.Option(
            help="mnist, fashion-mnist or digits; without it mnist, or digits where mnist cannot be had.",
            autocompletion=lambda: [name for name in NAMES if name in RECIPES],
        ),
    ] = None,
    epsilon: Epsilon = 3.0,
    delta: Delta = None,
    out: Annotated[Path, typer.Option(help="The folder of the demo.")] = Path("runs/demo"),
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Train private classifiers in four ways at one budget, account for them, attack and audit each, and write one page.

    DP-SGD, elliptical clipping, residual perturbation as published, and a student of artificial data: a small privet compare.
    """
    check_budget(epsilon, delta)
    _check_folder(out)
    dataset, note = _records(data)
    from privet import recipes
    from privet.compare import ENTRANTS, Job

    command = ("privet", *sys.argv[1:]) if sys.argv[1:2] == ["demo"] else ("privet", "demo")
    job = Job(
        dataset.name,
        epsilon,
        choose_delta(delta, dataset),
        METHODS,
        seed=seed,
        recipe=RECIPES[dataset.name],
        command=command,
        sizes=_sizes(dataset),
        note=note,
    )
    with recipes.staged(out) as folder:
        folder.rmdir()
        job.keep(folder)
        result = compare.run(job, dataset, folder, [ENTRANTS[key] for key in METHODS], {}, quiet=as_json)
    for name in OLDER:
        (out / name).unlink(missing_ok=True)
    compare.say(result, out, as_json)


def _sizes(dataset: Dataset) -> Sizes:
    """What four minutes of two cores allow; a small data set gets the network that its paper has."""
    from privet.compare.job import Sizes

    small = dataset.size < 10_000
    return Sizes(
        examples=10_000, student_epochs=10, residual_epochs=10 if small else 2, residual_shrink=1 if small else 2
    )


def _check_folder(out: Path) -> None:
    from privet.compare.job import FILE as JOB
    from privet.compare.job import Job
    from privet.report import RunRecord
    from privet.report.record import FILE

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
        typer.echo("privet: MNIST cannot be had, so the demo uses the small digits data set instead.", err=True)
        return data.get(FALLBACK), "MNIST could not be had, so this small data set was taken."
