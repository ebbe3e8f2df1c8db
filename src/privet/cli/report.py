"""`privet report`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from privet.cli.attack import RunFolder
from privet.cli.options import check_used
from privet.cli.program import AsJson, echo, verb
from privet.cli.records import Plugins, load_plugins, say_of_run

JOB = "job.json"
"""A file that only the folder of a comparison has, not that of a run."""


@verb("report", "privet report runs/a --license apache-2.0")
def report(
    context: typer.Context,
    run: RunFolder,
    intended_use: Annotated[str | None, typer.Option(help="For the card: what the release is for.")] = None,
    licence: Annotated[
        str | None, typer.Option("--license", "--licence", help="For the card: a license by its identifier.")
    ] = None,
    contact: Annotated[str | None, typer.Option(help="For the card: whom to ask.")] = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Make the page and the privacy card of a run again, from its record and ledger alone; or the page of a comparison.

    Statements for the card are kept in the record. The card may be published with the release; the page is only for people
    who may see the data.
    """
    load_plugins(plugins)
    check_used(context, "comparison" if (run / JOB).exists() else "run")
    if (run / JOB).exists():
        _comparison(run, as_json)
        return
    from privet.report import renew
    from privet.report.card import MARKDOWN
    from privet.report.statement import not_for_release
    from privet.runs.after import alone_with
    from privet.runs.own import read_run

    given = {"intended_use": intended_use, "licence": licence, "contact": contact}
    with alone_with(run):
        record = read_run(run)
        stated = replace(record.stated, **{name: text for name, text in given.items() if text is not None})
        if stated != record.stated:
            record = replace(record, stated=stated)
            record.write(run)
        page = renew(run)
    say_of_run(record)
    ledger = record.open_ledger(run)
    spent, calibrated = record.spent(ledger), record.calibrated(ledger)
    if as_json:
        other = {"calibrated": calibrated.to_dict()} if calibrated else {}
        facts = {"page": str(page), "card": str(run / MARKDOWN), "spent": spent.to_dict()}
        facts |= {"not_protected": record.data.who_is_unprotected, "not_for_release": not_for_release(record)}
        echo(
            json.dumps(
                facts | {"accuracy": record.released_utility and record.released_utility.accuracy} | other, indent=1
            )
        )
        return
    echo(f"{spent}")
    if calibrated is not None:
        echo(f"The noise was calibrated by {calibrated.accountant}: {calibrated}")
    echo(f"The card: {run / MARKDOWN}")
    echo(f"The page{'' if record.data.public else ', which is internal'}: {page}")


def _comparison(out: Path, as_json: bool) -> None:
    from privet.cli.compare import say
    from privet.runs.comparison import read_result, write_comparison
    from privet.training.folder import alone_in

    read_result(out)  # refused if it is damaged, before anything is written
    with alone_in(out):
        result = read_result(out)
        write_comparison(result, out)
    say(result, out, as_json)
