"""The comparisons of docs/results.md, each between its marks, from benchmarks/results/compare-NAME.json.

Nothing is trained here. `privet compare` leaves compare.json in its folder; this takes it along and fills the page:

    privet compare --data mnist --epsilon 3 --seed 0 --methods all --public 5000 --minutes 10 --out runs/compare-mnist-3
    python benchmarks/compared.py mnist-3 runs/compare-mnist-3
    python benchmarks/compared.py                                # the page again, from what was taken along
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from privet.audit.result import round_down
from privet.privacy.spent import round_up

sys.path.insert(0, str(Path(__file__).parent))
from _page import DOCS, put

RESULTS = Path(__file__).parent / "results"
PREFIX = "compare-"
HEADS = (
    "method",
    "guarantee",
    "accuracy %",
    "epsilon",
    "audit: at least",
    "AUC of the attack",
    "TPR at 0.1 % FPR",
    "s",
    "MB",
)


def main(arguments: list[str]) -> None:
    if arguments:
        name, folder = arguments
        shutil.copy(Path(folder) / "compare.json", RESULTS / f"{PREFIX}{name}.json")
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    for path in sorted(RESULTS.glob(f"{PREFIX}*.json")):
        if f"<!-- {path.stem} -->" not in page:
            sys.exit(f"docs/results.md has no place for {path.stem}: put <!-- {path.stem} --> and its end there.")
        put("results.md", path.stem, shown(json.loads(path.read_text(encoding="utf-8"))))


def shown(result: dict[str, Any]) -> str:
    """The command, the table, what choosing costs, and the methods without a result."""
    rows = result["rows"]
    done = [row for row in rows if row["state"] == "done"]
    lines = ["```sh", shlex.join(result["job"]["command"]), "```", ""]
    lines += [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    lines += [f"| {' | '.join(cells(row))} |" for row in done]
    if result["together"]:
        lines += ["", f"Choosing among them costs as much as all of them together: {result['together']}."]
    without = [row for row in rows if row["state"] != "done"]
    if without:
        lines += ["", "Without a result:", ""]
        lines += [f"- {row['title']} ({row['state']}): {row['reason']}" for row in without]
    return "\n".join(lines)


def cells(row: dict[str, Any]) -> list[str]:
    spent, attack, audit = row["spent"], row.get("attack"), row.get("audit")
    guarantee = "**claimed**" if spent["guarantee"] == "claimed" else spent["guarantee"]
    if spent["epsilon"] is None:
        guarantee = "**nothing is protected**"
    ended = f" ({row['stopped']})" if row["stopped"] else ""
    bound = ""
    if audit:
        claimed = audit["claimed_epsilon"]
        bound = f"{_down(audit['lower_bound'])} of {'inf' if claimed is None else round_up(claimed)}"
        bound += ", **refuted**" if audit["refuted"] else ""
    return [
        row["title"],
        guarantee,
        f"{100 * row['accuracy']:.2f}",
        f"{'inf' if spent['epsilon'] is None else round_up(spent['epsilon'])}{ended}",
        bound,
        f"{attack['auc']:.3f} ({attack['low']:.3f} to {attack['high']:.3f})" if attack else "",
        f"{100 * next(iter(attack['tpr_at'].values())):.2g} %" if attack else "",
        f"{row['seconds']:.0f}",
        f"{row['peak_megabytes']:.0f}" if row["peak_megabytes"] else "",
    ]


def _down(bound: float | None) -> str:
    return "inf" if bound is None else round_down(bound)


if __name__ == "__main__":
    main(sys.argv[1:])
