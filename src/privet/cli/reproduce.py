"""`privet reproduce`."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privet.cli import comparisons, student_tables
from privet.cli.options import check_used
from privet.cli.program import AsJson, app
from privet.cli.progress import fetching, training
from privet.cli.reproduce_all import reproduce_all
from privet.cli.train import check_budget, recipe_names
from privet.errors import InputError

if TYPE_CHECKING:
    from privet.recipes import Recipe
    from privet.recipes.table import Result, Row


def _names() -> list[str]:
    from privet.recipes import comparison

    return [*recipe_names(), *comparison.names(), *student_tables.names(), comparisons.REVERSAL]


def method_names() -> list[str]:
    from privet.recipes.methods import METHODS

    return list(METHODS)


@app.command("reproduce", epilog="Example:  privet reproduce abadi-mnist --seeds 3")
def reproduce(
    context: typer.Context,
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="A recipe or a comparison by name, or a .yaml file.", autocompletion=_names, metavar="[RECIPE]"
        ),
    ] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Every table and figure of the sources, on one page. It takes hours, and goes on."),
    ] = False,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="With --all: make the page from the results that exist.")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(help="How many seeds: 0, 1, ...; without it, 3 of a recipe and 1 of a comparison.", min=1),
    ] = None,
    epsilon: Annotated[
        list[float] | None, typer.Option(help="A budget, and more with more of it; without it, those of the recipe.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A method, and more with more of it; without it, those of the recipe.", autocompletion=method_names
        ),
    ] = None,
    delta: Annotated[float, typer.Option(help="The delta of the statement.")] = 1e-5,
    out: Annotated[
        Path | None,
        typer.Option(help="Where each training's figures are kept; what is there is not computed again."),
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(help="A JSON file of results to put the rows into; with --all, a folder of such files."),
    ] = None,
    records: Annotated[
        str | None, typer.Option("--data", help="For a comparison: other records, for example folder:PATH.")
    ] = None,
    line: Annotated[
        list[int] | None, typer.Option(help="For a comparison: only this line of its table, and more with more of it.")
    ] = None,
    image: Annotated[Path | None, typer.Option(help="For wang-reversal: the picture to recover.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a recipe at every budget over several seeds, and print the published figures beside ours.

    A comparison trains a network in several ways, attacks each, and draws the ROC curves; wang-reversal draws what can be
    recovered from a network's features; triastcyn-mnist and triastcyn-fashion compare students of artificial data. --all does
    everything that belongs to the four sources, and says for each number why it differs.
    """
    if every or no_run:
        if recipe is not None or not every:
            raise InputError("--no-run belongs to --all, and --all takes no RECIPE.")
        check_used(context, "no-run" if no_run else "all")
        check_budget(1.0, delta)
        reproduce_all(out=out, results=results, seeds=seeds, delta=delta, run=not no_run, as_json=as_json)
        return
    if recipe is None:
        raise InputError(f"Name what to reproduce, or take --all: there are {', '.join(_names())}.")
    if recipe == comparisons.REVERSAL:
        check_used(context, "reversal", named=recipe)
        comparisons.reversal(out, image, as_json)
        return
    from privet.recipes import comparison

    if comparison.is_comparison(recipe):
        check_used(context, "comparison", named=recipe)
        comparisons.compare(
            recipe, data=records, seeds=seeds or 1, lines=line or (), out=out, results=results, as_json=as_json
        )
        return
    if recipe in student_tables.names():
        check_used(context, "students", named=recipe)
        student_tables.compare(
            recipe,
            seeds or 3,
            tuple(line or ()),
            tuple(epsilon or ()),
            delta,
            out=out,
            results=results,
            as_json=as_json,
        )
        return
    check_used(context, "recipe", named=f"the recipe {recipe}")
    seeds = seeds or 3
    from privet import data, recipes
    from privet.recipes import table
    from privet.recipes.methods import method_named

    chosen = recipes.load(recipe)
    budgets = tuple(epsilon or chosen.epsilons)
    for budget in budgets:
        check_budget(budget, delta)
    for key in method or ():
        method_named(key)
    with fetching() as progress:
        dataset = data.load(chosen.data, progress=progress)
    with training(delta) as show:
        rows = table.reproduce(
            chosen,
            dataset,
            out or Path("runs") / "reproduce" / chosen.name,
            epsilons=budgets,
            methods=tuple(method or chosen.methods),
            seeds=seeds,
            delta=delta,
            command=_command(recipe, seeds, epsilon, method, delta),
            on_result=None if as_json else _say,
            # The epsilon of every step costs time that a log does not need: it gets a line for each training.
            on_step=show if sys.stderr.isatty() else None,
            progress=lambda what, done, total: show({"what": what, "step": done, "steps": total}),
        )
    if results is not None:
        table.merge(results, rows)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    else:
        typer.echo(shown(chosen, rows))


def shown(recipe: Recipe, rows: list[Row]) -> str:
    """The table for a terminal, which is also one for a page."""
    from privet.recipes.methods import CLAIMED, method_named

    averaged = any(row.last is not None for row in rows)
    several = len({row.method for row in rows}) > 1
    claimed = any(CLAIMED in method_named(row.method).title for row in rows)
    standing = "proved, but where the method says that it is only claimed" if claimed else "proved"
    by_whom = "PLD, but where the method says otherwise" if several else "PLD"
    lines = [
        f"{recipe.title} ({recipe.data}, delta {rows[0].delta:g}, add/remove one record; Poisson sampling; "
        f"{by_whom}; {standing})",
        "",
        f"|{' method |' * several} epsilon | accuracy % |{' last parameters % |' * averaged} seeds | published % | difference "
        "| CPU seconds |",
        f"|{'---|' * several}---|---|{'---|' * averaged}---|---|---|---|",
    ]
    for row in rows:
        beside, difference = "", ""
        if paper := row.published(recipe):
            at = "" if paper.epsilon == row.epsilon else f" at {paper.epsilon:g}"
            beside = f"{paper.accuracy:g}{at} ({paper.by})"
            difference = f"{round(100 * row.accuracy - paper.accuracy, 2) + 0.0:+.2f}"
        ours = _percent(row.accuracy, row.std) + f" | {_percent(row.last, row.last_std)}" * averaged
        by = f" {method_named(row.method).title} |" if several else ""
        lines.append(f"|{by} {row.epsilon:g} | {ours} | {row.seeds} | {beside} | {difference} | {row.seconds:.0f} |")
    return "\n".join(lines)


def _percent(mean: float | None, std: float | None) -> str:
    return "" if mean is None else f"{100 * mean:.2f}" + (f" ± {100 * std:.2f}" if std is not None else "")


def _say(result: Result) -> None:
    from privet.recipes.methods import method_named

    typer.echo(
        f"{method_named(result.method).title}: epsilon {result.epsilon:g}, seed {result.seed}: {100 * result.accuracy:.2f} % "
        f"after {result.steps:,} steps, {result.seconds:.0f} s of CPU",
        err=True,
    )


def _command(recipe: str, seeds: int, epsilons: list[float] | None, methods: list[str] | None, delta: float) -> str:
    words = ["privet", "reproduce", recipe, "--seeds", str(seeds)]
    for epsilon in epsilons or ():
        words += ["--epsilon", f"{epsilon:g}"]
    for method in methods or ():
        words += ["--method", method]
    if delta != 1e-5:
        words += ["--delta", f"{delta:g}"]
    return shlex.join(words)
