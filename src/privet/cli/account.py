"""`privet account`."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from privet.cli.program import AsJson, app


class RelationName(StrEnum):
    """The neighbouring relation, by its name."""

    add_remove = "add-remove"
    replace_one = "replace-one"


EXAMPLE = "Example:  privet account --examples 60000 --batch-size 600 --noise 1.1 --epochs 15 --delta 1e-5"


@app.command("account", epilog=EXAMPLE)
def account(
    examples: Annotated[int, typer.Option(help="How many records there are.")],
    batch_size: Annotated[int, typer.Option(help="How many records a step samples on average.")],
    delta: Annotated[float, typer.Option(help="The delta of the statement.")],
    noise: Annotated[float | None, typer.Option(help="The noise over the clipping norm; or give --epsilon.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="A budget: the least noise for it is computed.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data; or give --steps.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps; or give --epochs.")] = None,
    accountant: Annotated[str, typer.Option(help="Whose theorem: pld, rdp, moments, ...")] = "pld",
    relation: Annotated[RelationName, typer.Option(help="Which data sets are neighbours.")] = RelationName.add_remove,
    as_json: AsJson = False,
) -> None:
    """What a run of Poisson-sampled Gaussian steps costs; or, from --epsilon, the noise that it needs."""
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
    typer.echo(json.dumps(found.to_dict(), indent=1) if as_json else str(found))
