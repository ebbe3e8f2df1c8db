"""docs/reproduced.md, and every table of docs/results.md and docs/synthesis.md that has the name of a paper's table.

Nothing is trained here: measurements are put into benchmarks/results by `privet reproduce --all --results benchmarks/results`, or
table by table by `privet reproduce NAME --results benchmarks/results`.

    python benchmarks/reproduced.py
"""

from __future__ import annotations

import sys
from pathlib import Path

from privet.papers import gather, load, markdown, names, read, section
from privet.papers.measure import draw_rocs

sys.path.insert(0, str(Path(__file__).parent))
from _page import DOCS, put

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    put("reproduced.md", "reproduced", markdown(gather(RESULTS)))
    for page in ("results.md", "synthesis.md"):
        text = (DOCS / page).read_text(encoding="utf-8")
        for name in names():
            if f"<!-- {name} -->" in text:
                fill(page, name)


def fill(page: str, name: str) -> None:
    """Put a table between its marks, with its commands, and draw its ROC curves."""
    table, found = load(name), read(RESULTS / f"{name}.json")
    shown = section(table, found)
    said = [f"- {row.what}: {row.statement}" for row in shown.rows if row.statement]
    ledger = ["", "The ledger's statement for each:", "", *said] if said else []
    put(page, name, "\n".join(["```sh", *shown.commands, "```", "", shown.markdown(), *ledger]))
    attacked = [one for one in found if one.attack is not None and one.seed == 0]
    if attacked:
        draw_rocs(DOCS / "images" / f"{name}-roc.svg", table, attacked)


if __name__ == "__main__":
    main()
