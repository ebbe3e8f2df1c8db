"""`privet reproduce` of a table of students: those of artificial data, at every budget, beside the source's."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from privet.cli.progress import fetching, training
from privet.errors import InputError

if TYPE_CHECKING:
    from privet.recipes.table import Row
    from privet.synthesis.table import Comparison, Line, Result


def names() -> tuple[str, ...]:
    from privet.synthesis.table import names

    return names()


def compare(
    name: str,
    seeds: int,
    lines: Sequence[int],
    epsilons: Sequence[float],
    delta: float,
    *,
    out: Path | None,
    results: Path | None,
    as_json: bool,
) -> None:
    """The students of artificial data, for every line of a comparison."""
    from privet import data
    from privet.recipes import table
    from privet.synthesis import table as students

    chosen = students.load(name)
    for number in lines:
        if not 1 <= number <= len(chosen.lines):
            raise InputError(f"{name} has the lines 1 to {len(chosen.lines)}, and not {number}.")
    budgets = [line.epsilon for line in chosen.lines]
    for epsilon in epsilons:
        if epsilon not in budgets:
            raise InputError(f"{name} has no line at epsilon {epsilon:g}: give its number with --line.")
    keys = [chosen.lines[number - 1].key for number in lines]
    with fetching() as progress:
        dataset = data.load(chosen.data, progress=progress)

    def say(line: Line, result: Result) -> None:
        if not as_json:
            said = ", ".join(f"{student} {100 * value:.2f} %" for student, value in result.accuracy.items())
            typer.echo(f"{line.key}, seed {result.seed}: {said}, {result.seconds:.0f} s of CPU", err=True)

    with training(delta) as show:
        found = students.reproduce(
            chosen,
            dataset,
            out or Path("runs") / "reproduce" / name,
            seeds=seeds,
            delta=delta,
            epsilons=epsilons,
            keys=keys,
            on_result=say,
            on_step=show if sys.stderr.isatty() else None,
        )
    rows = students.rows(chosen, found, delta, _command(name, seeds, lines, epsilons, delta))
    if results is not None:
        table.merge(results, rows)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    else:
        typer.echo(shown_students(chosen, rows))


def shown_students(comparison: Comparison, rows: list[Row]) -> str:
    """The comparison for a terminal, which is also a table for a page."""
    from privet.synthesis.table import CLAIMED

    claimed = any(CLAIMED in line.title for line in comparison.lines)
    standing = "proved, but where the title says that it is only claimed" if claimed else "proved"
    heads = "".join(f" {student} % | the source % |" for student in comparison.students)
    lines = [
        f"{comparison.title} ({comparison.data}, delta {rows[0].delta:g}, add/remove one record; PLD; {standing})",
        "",
        f"| artificial data by | epsilon |{heads} seeds | CPU seconds |",
        f"|---|---|{'---|---|' * len(comparison.students)}---|---|",
    ]
    by = {row.method: row for row in rows}
    for line in comparison.lines:
        mine = [by.get(f"{line.key}/{student}") for student in comparison.students]
        if mine[0] is None:
            continue
        cells = ""
        for student, row in zip(comparison.students, mine, strict=True):
            assert row is not None
            spread = f" ± {100 * row.std:.2f}" if row.std is not None else ""
            published = f"{line.published[student]:.2f}" if student in line.published else ""
            cells += f" {100 * row.accuracy:.2f}{spread} | {published} |"
        epsilon = f"{line.epsilon:g}" if line.epsilon else ""
        lines.append(f"| {line.title} | {epsilon} |{cells} {mine[0].seeds} | {mine[0].seconds:.0f} |")
    return "\n".join(lines)


def _command(name: str, seeds: int, lines: Sequence[int], epsilons: Sequence[float], delta: float) -> str:
    words = ["privet", "reproduce", name, "--seeds", str(seeds)]
    for number in lines:
        words += ["--line", str(number)]
    for epsilon in epsilons:
        words += ["--epsilon", f"{epsilon:g}"]
    if delta != 1e-5:
        words += ["--delta", f"{delta:g}"]
    return shlex.join(words)
