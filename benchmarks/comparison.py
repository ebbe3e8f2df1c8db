"""Fill the table and draw the ROC curves of docs/results.md from what ``privet reproduce wang-cifar10 --results`` wrote."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

from _page import DOCS, put

from privet.cli.comparisons import shown
from privet.io import build
from privet.recipes import comparison
from privet.recipes.comparison import Comparison, Measured
from privet.recipes.comparison_figure import draw_rocs

NAME = "wang-cifar10"
RESULTS = Path(__file__).parent / "results" / f"{NAME}.json"


def commands(chosen: Comparison, groups: list[list[Measured]]) -> list[str]:
    """What was typed: a command for every number of seeds, with the lines that have so many."""
    titles = [line.title(chosen.depth) for line in chosen.lines]
    typed = []
    for seeds in sorted({len(group) for group in groups}):
        numbers = [titles.index(group[0].title) + 1 for group in groups if len(group) >= seeds]
        lines = "" if len(numbers) == len(titles) else "".join(f" --line {number}" for number in numbers)
        several = f" --seeds {seeds}" if seeds > 1 else ""
        typed.append(f"privet reproduce {NAME}{several}{lines} --results benchmarks/results/{NAME}.json")
    return [*typed, "python benchmarks/comparison.py"]


def main() -> None:
    chosen = comparison.load(NAME)
    found = [build(Measured, row) for row in json.loads(RESULTS.read_text(encoding="utf-8"))]
    groups = [list(group) for _, group in groupby(found, key=lambda measured: measured.title)]
    table = shown(chosen, chosen.data, groups)
    put("results.md", NAME, "\n".join(["```sh", *commands(chosen, groups), "```", "", table]))
    draw_rocs(DOCS / "images" / f"{NAME}-roc.svg", [group[0] for group in groups])


if __name__ == "__main__":
    main()
