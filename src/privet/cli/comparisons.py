"""What `privet reproduce` does for a comparison, and for the reversal of a network's features."""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from privet.cli.progress import training
from privet.cli.records import load_records
from privet.errors import InputError

if TYPE_CHECKING:
    from privet.data import Dataset
    from privet.recipes.comparison import Comparison, Measured

REVERSAL = "wang-reversal"
CURVES = "roc.svg"


def compare(
    name: str,
    *,
    data: str | None,
    seeds: int,
    lines: Sequence[int],
    out: Path | None,
    results: Path | None,
    as_json: bool,
) -> None:
    """Train and attack every line of a comparison, and print the table; the ROC curves are drawn beside what is kept."""
    from privet.recipes import comparison
    from privet.recipes.comparison_figure import draw_rocs

    chosen = comparison.load(name)
    if not (data or chosen.data):
        raise InputError(f"{name} is for records that you bring: give them with --data folder:PATH.")
    wanted = [number - 1 for number in lines] or range(len(chosen.lines))
    if any(not 0 <= number < len(chosen.lines) for number in wanted):
        raise InputError(f"{name} has the lines 1 to {len(chosen.lines)}.")
    dataset = chosen.divided(_records(data or chosen.data, bool(chosen.training_classes)))
    folder = out or Path("runs") / "reproduce" / chosen.name
    folder.mkdir(parents=True, exist_ok=True)
    found: list[list[Measured]] = []
    with training(chosen.delta) as show:
        for number in wanted:
            line = chosen.lines[number]
            by_seed = []
            for seed in range(seeds):
                made = comparison.measure(chosen, dataset, line, seed, folder, show if sys.stderr.isatty() else None)
                by_seed.append(made)
                if not as_json:
                    typer.echo(f"{number + 1}. {said(made)}", err=True)
            found.append(by_seed)
    if results is not None:
        keep(chosen, found, results)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(m) for group in found for m in group], indent=1))
        return
    figure = draw_rocs(folder / CURVES, [group[0] for group in found])
    typer.echo(shown(chosen, dataset.name, found))
    typer.echo(f"The ROC curves: {figure}")


def keep(chosen: Comparison, found: Sequence[Sequence[Measured]], path: Path) -> None:
    """Put the rows into a file of results, in the place of those of the same line and seed."""
    order = {line.title(chosen.depth): number for number, line in enumerate(chosen.lines)}
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    by_place = {(order[row["title"]], row["seed"]): row for row in rows if row["title"] in order}
    by_place |= {(order[m.title], m.seed): dataclasses.asdict(m) for group in found for m in group}
    path.write_text(json.dumps([by_place[place] for place in sorted(by_place)]) + "\n", encoding="utf-8")


def said(made: Measured) -> str:
    return (
        f"{made.title}: AUC {made.attack.auc:.3f}, accuracy {100 * made.test_accuracy:.1f} % "
        f"(training records {100 * made.training_accuracy:.1f} %), {made.seconds:.0f} s of CPU"
    )


def shown(chosen: Comparison, data: str, found: Sequence[Sequence[Measured]]) -> str:
    """The table for a terminal, which is also one for a page."""
    quarter = found[0][0].records
    lines = [
        f"{chosen.title} ({data}; quarters of {quarter:,} records, {chosen.schedule.epochs} epochs; mean and standard "
        "deviation over seeds, DeLong's interval where there is one)",
        "",
        "| network | seeds | AUC | 95 % interval | training % | test % | gap | published AUC | published test % | CPU seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for group in found:
        aucs = [m.attack.auc for m in group]
        train, test = [100 * m.training_accuracy for m in group], [100 * m.test_accuracy for m in group]
        gap = statistics.fmean(train) - statistics.fmean(test)
        attack, paper = group[0].attack, group[0].line.published
        interval = f"{attack.low:.3f} to {attack.high:.3f}" if len(group) == 1 else ""
        beside = (f"{paper.auc:.3f}" if paper and paper.auc else "", f"{paper.accuracy:.1f}" if paper else "")
        seconds = statistics.fmean(m.seconds for m in group)
        lines.append(
            f"| {group[0].title} | {len(group)} | {_mean(aucs, 3)} | {interval} | {_mean(train, 1)} | {_mean(test, 1)} | "
            f"{gap:+.1f} | {beside[0]} | {beside[1]} | {seconds:.0f} |"
        )
    lines += ["", "What the ledger says of each:", ""]
    lines += [f"- {group[0].title}: {group[0].statement}" for group in found]
    return "\n".join(lines)


def _mean(values: Sequence[float], digits: int) -> str:
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def reversal(out: Path | None, image: Path | None, as_json: bool) -> None:
    """Run the reversal with and without noise, and write its figure."""
    from privet.reproduction.figure import make_figure

    path, errors = make_figure(out or Path("runs") / "reproduce" / REVERSAL, image)
    if as_json:
        typer.echo(json.dumps({"picture": str(path), "rmse": errors}, indent=1))
        return
    for name, error in errors.items():
        typer.echo(f"{name}: recovered with a root mean squared error of {error:.4f}")
    typer.echo(f"The picture: {path}")


def _records(source: str, whole: bool) -> Dataset:
    from privet import data

    # The comparison divides records without a test part by itself, in its own sizes.
    return data.load(source) if whole else load_records(source)
