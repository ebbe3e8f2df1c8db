"""`privet demo`: the main job end to end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privet.cli.data import NAMES
from privet.cli.program import AsJson, app
from privet.cli.progress import fetching
from privet.cli.train import Delta, Epsilon, Seed, check_budget, say, train_by
from privet.errors import InputError, PrivetError

if TYPE_CHECKING:
    from privet.data import Dataset

FALLBACK = "digits"
RECIPES = {"mnist": "demo-cnn", "fashion-mnist": "demo-cnn", "digits": "digits-linear"}
"""A network that learns everything from the records: the demo shows the main job, not the best accuracy."""


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
    delta: Delta = 1e-5,
    out: Annotated[Path, typer.Option(help="The folder of the run.")] = Path("runs/demo"),
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Train a private classifier, account for it, attack it, and write its page."""
    check_budget(epsilon, delta)
    _check_folder(out)
    dataset, note = _records(data)
    from privet import recipes

    command = ("privet", *sys.argv[1:]) if sys.argv[1:2] == ["demo"] else ("privet", "demo")
    recipe = recipes.load(RECIPES[dataset.name])
    with recipes.staged(out) as folder:
        record = train_by(recipe, dataset, folder, epsilon=epsilon, delta=delta, seed=seed, note=note, command=command)
    say(record, out, as_json)


def _check_folder(out: Path) -> None:
    from privet.report import RunRecord
    from privet.report.record import FILE

    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give a folder with --out.")
    if (out / FILE).exists() and RunRecord.read(out).command[:2] != ("privet", "demo"):
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
