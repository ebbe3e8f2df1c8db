"""`privet compare`."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privet.cli import options
from privet.cli.board import board, table
from privet.cli.data import NAMES
from privet.cli.program import AsJson, app
from privet.cli.progress import computing, fetching
from privet.cli.records import (
    HoldOut,
    NoHeader,
    PublicSize,
    UnprotectedTest,
    Users,
    choose_delta,
    say_who_is_unprotected,
)
from privet.cli.train import Delta, Epsilon, Seed, check_budget, recipe_names
from privet.errors import InputError, PrivetError

if TYPE_CHECKING:
    from privet.compare import Entrant, Job
    from privet.compare.result import Result
    from privet.data import Dataset


EVERY = "all"


def method_keys() -> list[str]:
    from privet.compare import ENTRANTS

    return [EVERY, *ENTRANTS]


@app.command("compare", epilog="Example:  privet compare --data mnist --epsilon 3 --minutes 5 --out runs/compare")
def compare(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Option(
            help="A data set by name (mnist, fashion-mnist, cifar10, digits) or FORMAT:PATH, as privet data reads it.",
            autocompletion=lambda: list(NAMES),
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder of the comparison; one that was stopped goes on.")] = Path(
        "runs/compare"
    ),
    schema: Annotated[
        Path | None, typer.Option(help="For csv: and parquet: the file with the public bounds and categories.")
    ] = None,
    no_header: NoHeader = False,
    users: Users = "",
    epsilon: Epsilon = 3.0,
    delta: Delta = None,
    public_size: PublicSize = None,
    hold_out: HoldOut = None,
    unprotected_test: UnprotectedTest = False,
    minutes: Annotated[float, typer.Option(help="How long each may train; 0: as long as it takes.", min=0)] = 0.0,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "--methods",
            help="One method, or several with commas between, or all; without it, those that fit and do not train for long.",
            autocompletion=method_keys,
        ),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="The recipe of methods that train a classifier.", autocompletion=recipe_names)
    ] = None,
    public: Annotated[
        str,
        typer.Option(
            help="Public records without labels, for pate: how many of the test records, or another data set by name."
        ),
    ] = "",
    at_once: Annotated[
        int | None, typer.Option("--jobs", help="How many at once; without it, one for each core.", min=1)
    ] = None,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Run every method that fits the data at one budget, attack and audit each, and lay them side by side on one page.

    Each method runs in a process of its own. Stopped and called again with the same options, it goes on. Looking at all of
    them to choose one costs what all of them cost together: the page says how much.
    """
    check_budget(epsilon, delta)
    from privet.compare import Job

    command = ("privet", *sys.argv[1:])
    job = Job(
        data,
        epsilon,
        delta or 0.0,
        (),
        minutes,
        seed,
        recipe or "",
        str(schema) if schema else "",
        public,
        command,
        public_size=public_size,
        hold_out=hold_out,
        unprotected_test=unprotected_test,
        header=not no_header,
        user=users,
    )
    with fetching() as progress:
        dataset = job.records(progress)
    say_who_is_unprotected(dataset)
    job = replace(job, delta=choose_delta(delta, dataset))
    entrants, left_out = _entrants(methods, dataset, public)
    _check_used(context, entrants)
    job = replace(job, methods=tuple(entrant.key for entrant in entrants))
    job.keep(out)
    result = run(job, dataset, out, entrants, left_out, at_once=at_once, quiet=as_json)
    say(result, out, as_json)


def run(
    job: Job,
    dataset: Dataset,
    out: Path,
    entrants: list[Entrant],
    left_out: dict[str, str],
    *,
    at_once: int | None = None,
    quiet: bool = False,
) -> Result:
    """Run the methods of the job that `out` keeps, showing where each stands; leaves the page and `compare.json` there."""
    from privet.compare import finish, race
    from privet.compare.page import write_comparison

    _prepare(job, dataset)
    with board(job.delta, quiet=quiet) as show:
        rows = race(entrants, out, at_once=at_once, on_change=show)
    result = finish(job, out, rows, left_out, (dataset.origin, dataset.fingerprint))
    write_comparison(result, out)
    return result


def say(result: Result, out: Path, as_json: bool) -> None:
    """What came out, for a terminal or for a program; an error where nothing did."""
    from privet.compare.page import FILE

    page = out / FILE
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
        raise PrivetError(f"No method came to its end: the reasons are in {page} and in the .log files beside it.")


def _check_used(context: typer.Context, entrants: list[Entrant]) -> None:
    """An option that none of the methods uses is refused."""
    from privet.compare import ENTRANTS

    ways = {key: options.entrant_way(key, entrant.uses) for key, entrant in ENTRANTS.items()}
    chosen = [ways[entrant.key] for entrant in entrants]
    together = options.Way(
        f"any of these methods: {', '.join(entrant.key for entrant in entrants)}",
        frozenset().union(*(way.uses for way in chosen)),
    )
    options.check(context, together, ways.values())


def _entrants(methods: list[str] | None, dataset: Dataset, public: str) -> tuple[list[Entrant], dict[str, str]]:
    """The methods that take part, and why others do not."""
    from privet.compare import ENTRANTS, entrants_for

    asked = list(dict.fromkeys(key.strip() for text in methods or () for key in text.split(",") if key.strip()))
    fitting, left_out = entrants_for(dataset, public=public, every=bool(asked))
    if asked in ([], [EVERY]):
        return list(fitting.values()), left_out
    for key in asked:
        if key not in ENTRANTS:
            raise InputError(
                f"There is no method {key!r} to compare: there are {', '.join(ENTRANTS)}, or all of them: all."
            )
    if not any(key in fitting for key in asked):
        raise InputError(f"None of these methods fits {dataset.name}: {left_out[asked[0]]}.")
    return [fitting[key] for key in asked if key in fitting], {key: left_out[key] for key in asked if key in left_out}


def _prepare(job: Job, dataset: Dataset) -> None:
    """Compute the features that several methods share once, with all cores, before the methods start."""
    from privet.data import compute_features
    from privet.models.features import OnFeatures
    from privet.recipes.prepare import build_model

    model = build_model(job.recipe_for(dataset), dataset, seed=0)
    if isinstance(model, OnFeatures):
        with computing() as progress:
            compute_features(dataset, model.features, model.key, progress=progress)
