"""Kills every verb with SIGKILL at random moments until it is done, and compares what comes out with a run that was not killed.

    PYTHONPATH=. python benchmarks/kills.py [--only compare,demo] [--verbs 20]

The programs are those of the slow tests (tests/training/killed.py, tests/runs/killed_methods.py, killed_tuning.py and
killed_verbs.py), on a few hundred digits with small settings. Moments are before and after each write, and at each report of
progress. Lost: what was paid for or finished is gone. Under-counted: the ledger holds fewer events than were used. Left over:
a finished run leaves a working file. Seeded runs must end with the same bits. Writes results/kills.json and results/kills.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from engine import RESULTS, machine

from tests.runs.small import SETTINGS

TESTS = Path(__file__).parents[1] / "tests"
VERBS = ("attack", "audit", "compare", "demo", "reproduce")
Row = dict[str, Any]


def told(program: str, *arguments: str) -> Any:
    """What a program prints last; it raises, with what it said, if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, str(TESTS / program), *(folder if each == "FOLDER" else each for each in arguments)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=TESTS.parent)
    if done.returncode:
        raise RuntimeError(f"{program} {' '.join(arguments)}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def row(what: str, kills: int, *, same: bool | None, short: bool, lost: bool, left: bool) -> Row:
    return {"what": what, "kills": kills, "same bits": same, "under-counted": short, "lost": lost, "left over": left}


def own_loop() -> list[Row]:
    found = told("training/killed.py", "FOLDER")
    seeded, release = found["seeded"], found["release"]
    return [
        row(
            "make_private, seeded",
            seeded["kills"],
            same=seeded["equal"],
            short=not seeded["covered"] or seeded["ledger"] < seeded["steps"],
            lost=seeded["steps"] != 100,
            left=False,
        ),
        row(
            "make_private, a release",
            release["kills"],
            same=None,
            short=not release["covered"],
            lost=release["steps"] != 100,
            left=False,
        ),
    ]


def method(name: str) -> list[Row]:
    found = told("runs/killed_methods.py", name, "FOLDER")
    return [
        row(
            f"train or synthesize: {name}",
            found["kills"],
            same=found["seeded"] == "the same bits",
            short=found["used"] > found["in the ledger"],
            lost=bool(found["lost"]),
            left=bool(found["left over"]),
        )
    ]


def tuning() -> list[Row]:
    found = told("runs/killed_tuning.py", "FOLDER")
    return [
        row(
            "tune",
            sum(each["kills"] for each in found),
            same=None,
            short=any(each["used"] > each["planned"] + each["apart"] or each["charged"] != 1 for each in found),
            lost=any(each["lost"] or not each["chosen"] for each in found),
            left=any(each["left over"] for each in found),
        )
    ]


def verb(name: str, kills: int) -> list[Row]:
    found = told("runs/killed_verbs.py", name, "FOLDER", str(kills))
    return [
        row(
            name,
            found["kills"],
            same=found["same"],
            short=bool(found["under-counted"]),
            lost=not found["same"],
            left=bool(found["left over"]),
        )
    ]


def as_markdown(rows: list[Row]) -> str:
    lines = [
        "| what is killed | kills | seeded runs have the same bits | lost | under-counted | left over |",
        "|---|---|---|---|---|---|",
    ]
    for one in rows:
        same = "" if one["same bits"] is None else "yes" if one["same bits"] else "NO"
        marks = ["YES" if one[name] else "none" for name in ("lost", "under-counted", "left over")]
        lines.append(f"| {one['what']} | {one['kills']} | {same} | {' | '.join(marks)} |")
    lines.append(f"| all | {sum(one['kills'] for one in rows)} | | | | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="verbs with commas between: loop, methods, tune, attack, ...")
    parser.add_argument("--verbs", type=int, default=20, help="kills of each verb")
    given = parser.parse_args()
    work: dict[str, list[Callable[[], list[Row]]]] = {"loop": [own_loop], "tune": [tuning]}
    work["methods"] = [lambda name=name: method(name) for name in SETTINGS]
    work |= {name: [lambda name=name: verb(name, given.verbs)] for name in VERBS}
    wanted = given.only.split(",") if given.only else list(work)
    path = RESULTS / "kills.json"
    kept = json.loads(path.read_text())["rows"] if given.only and path.exists() else {}
    for name in wanted:
        rows = []
        for part in work[name]:
            began = time.monotonic()
            rows += part()
            print(f"{rows[-1]} {time.monotonic() - began:.0f} s", flush=True)
        kept[name] = rows
        path.write_text(json.dumps({"machine": machine(), "rows": kept}, indent=1) + "\n")
    every = [one for name in work for one in kept.get(name, [])]
    (RESULTS / "kills.md").write_text(as_markdown(every) + "\n")
    print(as_markdown(every))


if __name__ == "__main__":
    main()
