"""The tables of docs/synthesis.md, from benchmarks/results/accuracy.json.

Nothing is trained here: rows are put into the file by
`privet reproduce triastcyn-mnist --results benchmarks/results/accuracy.json`.

    python benchmarks/synthesis.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from privet.cli.student_tables import shown_students
from privet.io import build
from privet.recipes.table import Row
from privet.synthesis import table

from privet.io import build

sys.path.insert(0, str(Path(__file__).parent))
from _page import put

RESULTS = Path(__file__).parent / "results" / "accuracy.json"


def main() -> None:
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))
    for name in table.names():
        rows = [build(Row, row) for row in kept if row.get("recipe") == name]
        if rows:
            commands = "\n".join(dict.fromkeys(row.command for row in rows))
            lines = "\n".join(shown_students(table.load(name), rows).splitlines()[2:])
            put("synthesis.md", name, f"```sh\n{commands}\n```\n\n{lines}")


if __name__ == "__main__":
    main()
