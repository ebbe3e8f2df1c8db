"""What `privet reproduce --all` does: every table and figure of the sources on one page."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import typer

from privet.cli.progress import training


def reproduce_all(
    *, out: Path | None, results: Path | None, seeds: int | None, delta: float, run: bool, as_json: bool
) -> None:
    """Run what is not kept yet, unless `run` is false, and make the page from all results that there are."""
    from privet.reproduction import gather
    from privet.reproduction.page import markdown, write_reproduction
    from privet.reproduction.results import Results
    from privet.reproduction.run import Runner

    home = out or Path("runs") / "reproduce"
    kept = Results(results or home)
    failures = {}
    if run:
        with training(delta, "Starting") as show:
            runner = Runner(
                home,
                kept,
                delta,
                seeds,
                # The epsilon of every step costs time that a log does not need: it gets a line for each line of a table.
                on_step=show if sys.stderr.isatty() else None,
                progress=lambda what, done, total: show({"what": what, "step": done, "steps": total}),
            )
            failures = runner.run(None if as_json else _line, None if as_json else _failure)
    chapters = gather(kept.folder, failures)
    page = write_reproduction(chapters, kept.folder, home)
    if as_json:
        facts = {"page": str(page), "sources": [dataclasses.asdict(chapter) for chapter in chapters]}
        typer.echo(json.dumps(facts, indent=1, allow_nan=False))
        return
    typer.echo(markdown(chapters))
    typer.echo(f"The page: {page}")


def _line(part: str, line: str, number: int, count: int) -> None:
    typer.echo(f"{number}/{count} {part}{f': {line}' if line else ''}", err=True)


def _failure(part: str, line: str, reason: str) -> None:
    typer.echo(f"{part}: {line} failed: {reason}", err=True)
