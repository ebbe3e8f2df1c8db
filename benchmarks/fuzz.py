"""Command lines and run folders that nobody should write, against the whole command line.

    PYTHONPATH=. python benchmarks/fuzz.py [--lines 500] [--folders 300] [--first 0]

Each command line has one to three values that do not belong there; each folder is a finished run in which one or two files
were changed, cut, forged or replaced. What must hold (`tests/fuzzing.py`): no traceback, an exit code of 0, 1 or 2, a sentence
for each failure, no terminal escape, nothing written outside of what was named, at most 30 seconds of CPU time. What did not
hold is listed with its seed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from engine import RESULTS, machine

from tests.fuzzing import TooLong, home_in, runs_of, try_folder, try_line
from tests.objects import freeze


def tried(what: Callable[[int], tuple[list[str], int]], seeds: range) -> dict[str, Any]:
    """Try each seed: how many ended with which exit code, for which verbs, and what did not hold."""
    codes: Counter[int] = Counter()
    verbs: Counter[str] = Counter()
    wrong: list[dict[str, Any]] = []
    began = time.process_time()
    for seed in seeds:
        try:
            words, code = what(seed)
        except (Exception, TooLong, pytest.fail.Exception) as error:
            wrong.append({"seed": seed, "what": f"{type(error).__name__}: {error}"[-2000:]})
            print(wrong[-1], flush=True)
            continue
        codes[code] += 1
        verbs[" ".join(words[: 2 if words[0] in ("budget", "data") else 1])] += 1
        if seed % 25 == 24:
            freeze()
    return {
        "seeds": [seeds.start, seeds.stop - 1],
        "exit codes": {str(code): codes[code] for code in sorted(codes)},
        "verbs": dict(sorted(verbs.items())),
        "wrong": wrong,
        "cpu seconds": round(time.process_time() - began),
    }


def page(found: dict[str, Any], command: str) -> str:
    lines = ["| what | tried | exit code 0 | 1 | 2 | wrong |", "|---|---|---|---|---|---|"]
    for name, one in found.items():
        codes = [str(one["exit codes"].get(code, 0)) for code in "012"]
        number = one["seeds"][1] - one["seeds"][0] + 1
        lines.append(f"| {name} | {number} | {' | '.join(codes)} | {len(one['wrong'])} |")
    return "\n".join([*lines, "", f"`{command}`"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=500)
    parser.add_argument("--folders", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the first seed; results are written for 0 alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        home = home_in(Path(made).resolve(), patch)
        runs, folders = runs_of(home), Path(made).resolve() / "folders"
        folders.mkdir()
        if given.folders:
            seeds = range(given.first, given.first + given.folders)
            found["spoiled run folders"] = tried(lambda seed: try_folder(home, runs, folders, seed), seeds)
        if given.lines:
            seeds = range(given.first, given.first + given.lines)
            found["command lines"] = tried(lambda seed: try_line(home, seed), seeds)
        patch.chdir(Path(__file__).parents[1])
    command = " ".join(["PYTHONPATH=. python benchmarks/fuzz.py", *sys.argv[1:]])
    print(page(found, command))
    if given.first == 0 and given.lines and given.folders:
        facts = {"machine": machine(), "command": command, "tried": found}
        (RESULTS / "fuzz.json").write_text(json.dumps(facts, indent=1) + "\n")
        (RESULTS / "fuzz.md").write_text(page(found, command) + "\n")


if __name__ == "__main__":
    main()
