"""`privet report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from privet.cli.program import AsJson, app

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, for example runs/demo.")]


@app.command("report", epilog="Example:  privet report runs/demo")
def report(run: RunFolder, as_json: AsJson = False) -> None:
    """Make the page of a run again, from its record and its ledger alone."""
    from privet.report import RunRecord, write_page

    page = write_page(run)
    record = RunRecord.read(run)
    spent = record.open_ledger(run).spent(record.delta)
    if as_json:
        typer.echo(
            json.dumps({"page": str(page), "spent": spent.to_dict(), "accuracy": record.test_accuracy}, indent=1)
        )
        return
    typer.echo(f"{spent}")
    typer.echo(f"The page: {page}")
