"""`privet account`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privet.cli.program import AsJson, echo, verb
from privet.cli.records import Plugins, check_budget, completing, load_plugins, say_of_run, with_plugins
from privet.errors import InputError

if TYPE_CHECKING:
    from privet.privacy import Spent
    from privet.privacy.budget import Account


class RelationName(StrEnum):
    """The neighboring relation, by its name."""

    add_remove = "add-remove"
    replace_one = "replace-one"


# For tab completion only: the accountants themselves take a second to import, too long for a key press.
ACCOUNTANTS = ("pld", "rdp", "moments", "strong", "strong-published", "optimal", "basic", "gdp", "pld-reference")
EPSILONS, TRADEOFF = "epsilons", "tradeoff"


def accountant_names() -> list[str]:
    """For tab completion."""
    return with_plugins(ACCOUNTANTS, "privet.accountants", "privet.privacy", "ACCOUNTANTS")


@dataclass
class Planned:
    """The options of a plan; the one that is left out is computed."""

    examples: Annotated[int | None, typer.Option(help="How many records there are.")] = None
    batch_size: Annotated[int | None, typer.Option(help="How many records a step samples on average.")] = None
    noise: Annotated[float | None, typer.Option(help="The noise multiplier: noise over clipping norm.")] = None
    steps: Annotated[int | None, typer.Option(help="Steps; or give --epochs.")] = None
    epochs: Annotated[float | None, typer.Option(help="Passes over the data; or give --steps.")] = None
    epsilon: Annotated[
        float | None, typer.Option(help="The budget, if the noise, steps or batch size is asked for.")
    ] = None
    relation: Annotated[RelationName | None, typer.Option(help="Which data sets are neighbors.")] = None


@verb("account", "privet account --examples 60000 --batch-size 600 --noise 1.1 --epochs 15 --delta 1e-5 --explain")
def account(
    planned: Planned,
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="A run folder or a ledger file, instead of a plan.", show_default=False),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="The delta of the statement; a run folder has its own.")] = None,
    accountant: Annotated[
        str | None,
        typer.Option(help=f"Whose theorem: {', '.join(ACCOUNTANTS)}.", autocompletion=completing(accountant_names)),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say in plain words what the statement means.")] = False,
    plot: Annotated[
        str | None,
        typer.Option(
            metavar="[FIGURE=]FILE",
            help="Draw into this file (.svg, .png or .pdf). FIGURE is epsilons (against steps, under every accountant) or "
            "tradeoff (what the best attack can reach).",
        ),
    ] = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Compute the cost of a run of Poisson-sampled Gaussian steps, and explain it.

    Leave out one of --batch-size, --noise, --steps (or --epochs) and --epsilon: it is computed from the others. Without
    --epsilon this is the cost of the run; with it, the least noise, the most steps or the largest batch that the budget allows.
    For a finished run, give its folder or its ledger instead.
    """
    load_plugins(plugins)
    figure, file = _figure(plot)
    if run is not None:
        if any(value is not None for value in vars(planned).values()):
            raise InputError(
                f"{run} states the plan: give only --delta, --accountant, --explain, --plot or --json with it."
            )
        if figure == EPSILONS:
            raise InputError(f"For a finished run only the trade-off can be drawn: --plot {TRADEOFF}={file}.")
        spent = _recorded(run, delta, accountant)
        sentence, facts = str(spent), spent.to_dict()
        if as_json:
            facts["meaning"] = spent.meaning.to_dict()
    else:
        found = _answer(planned, delta, accountant)
        if figure == EPSILONS:
            from privet.privacy.figure import save_epsilons

            save_epsilons(
                file, found.rate, found.noise_multiplier, found.spent.delta, found.steps, relation=_kind(planned)
            )
        spent, sentence = found.spent, str(found)
        facts = found.to_dict() if as_json else {}
    if figure == TRADEOFF:
        from privet.privacy.figure import save_tradeoff

        save_tradeoff(file, spent)
    _say(spent, sentence, facts, explained=explain, as_json=as_json)
    if figure and not as_json:
        echo(f"The figure: {file}")


def _kind(planned: Planned) -> str:
    return (planned.relation or RelationName.add_remove).value


def _answer(planned: Planned, delta: float | None, accountant: str | None) -> Account:
    """The cost of the plan, or the value that was left out."""
    from privet.privacy.budget import account as answer

    if planned.examples is None or delta is None:
        raise InputError("Give --examples and --delta; or the folder of a run: privet account runs/a.")
    if planned.epsilon is not None:
        check_budget(planned.epsilon, delta)
    found = answer(
        examples=planned.examples,
        batch_size=planned.batch_size,
        delta=delta,
        noise_multiplier=planned.noise,
        epsilon=planned.epsilon,
        steps=planned.steps,
        epochs=planned.epochs,
        accountant=accountant or "pld",
        relation=_kind(planned),
    )
    for warning in found.warnings:
        echo(f"privet: {warning}", err=True)
    return found


def _say(spent: Spent, sentence: str, facts: dict[str, object], *, explained: bool, as_json: bool) -> None:
    from privet.privacy.meaning import explain

    if as_json:
        echo(json.dumps(facts | ({"explanation": explain(spent)} if explained else {}), indent=1))
        return
    echo(sentence)
    if explained:
        echo(f"\n{explain(spent)}")


def _figure(plot: str | None) -> tuple[str, Path]:
    """The figure and its file; without a file, one with the figure's name in the current folder."""
    if plot is None:
        return "", Path()
    if plot in (EPSILONS, TRADEOFF):
        return plot, Path(f"{plot}.png")
    name, equals, file = plot.partition("=")
    return (name, Path(file)) if equals and name in (EPSILONS, TRADEOFF) else (EPSILONS, Path(plot))


def _recorded(run: Path, delta: float | None, accountant: str | None) -> Spent:
    """The statement of a run folder, or of a ledger file alone."""
    from privet.privacy import Ledger, delta_warning

    if run.is_dir():
        from privet.runs.own import read_run

        record = read_run(run)
        ledger = record.open_ledger(run)
        say_of_run(record)
        if said := delta_warning(delta or record.delta, record.data.protected_records, ledger.unit):
            echo(f"privet: {said}", err=True)
        if accountant is None and delta in (None, record.delta):
            return record.spent(ledger)
        return ledger.spent(delta or record.delta, accountant or "pld")
    if not run.exists():
        raise InputError(f"{run} does not exist: give the folder of a run, or its ledger.")
    if delta is None:
        raise InputError(f"{run} is a ledger, which has no delta of its own: give --delta.")
    return Ledger.open(run, read_only=True).spent(delta, accountant or "pld")
