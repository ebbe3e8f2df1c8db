"""`privet account`."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from privet.cli.program import AsJson, app


class RelationName(StrEnum):
    """The neighbouring relation, by its name."""

    add_remove = "add-remove"
    replace_one = "replace-one"


# For tab completion only: the accountants themselves take a second to import, too long for a key press.
ACCOUNTANTS = ("pld", "rdp", "moments", "strong", "strong-published", "optimal", "basic", "gdp", "pld-reference")

EXAMPLE = "Example:  privet account --examples 60000 --batch-size 600 --noise 1.1 --epochs 15 --delta 1e-5"


@app.command("account", epilog=EXAMPLE)
def account(
    examples: Annotated[int, typer.Option(help="How many records there are.")],
    delta: Annotated[float, typer.Option(help="The delta of the statement.")],
    batch_size: Annotated[int | None, typer.Option(help="How many records a step samples on average.")] = None,
    noise: Annotated[float | None, typer.Option(help="The noise multiplier: noise over clipping norm.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps; or give --epochs.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data; or give --steps.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="A budget, for what is left out.")] = None,
    accountant: Annotated[
        str, typer.Option(help=f"Whose theorem: {', '.join(ACCOUNTANTS)}.", autocompletion=lambda: ACCOUNTANTS)
    ] = "pld",
    relation: Annotated[RelationName, typer.Option(help="Which data sets are neighbours.")] = RelationName.add_remove,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw epsilon against steps under every accountant into this file (.svg, .png or .pdf)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What a run of Poisson-sampled Gaussian steps costs.

    Of --batch-size, --noise, --steps (or --epochs) and --epsilon, leave out one: it is computed from the others. Without
    --epsilon that is the cost of the run; with it, the least noise, the most steps or the largest batch that it allows.
    """
    from privet.privacy.account import account as answer

    found = answer(
        examples=examples,
        batch_size=batch_size,
        delta=delta,
        noise_multiplier=noise,
        epsilon=epsilon,
        steps=steps,
        epochs=epochs,
        accountant=accountant,
        relation=relation.value,
    )
    for warning in found.warnings:
        typer.echo(f"privet: {warning}", err=True)
    if plot is not None:
        from privet.privacy.figure import save_epsilons

        save_epsilons(plot, found.rate, found.noise_multiplier, delta, found.steps, relation=relation.value)
    typer.echo(json.dumps(found.to_dict(), indent=1) if as_json else str(found))
    if plot is not None and not as_json:
        typer.echo(f"The figure: {plot}")
