"""The way of a record through the code: which functions, files and rooms a run goes through, for one tree or several.

    python benchmarks/walk.py [NAME=FOLDER ...]        # for example  before=old/src now=src
    python benchmarks/walk.py before=old/src now=src --page        # into the page of the decision

FOLDER holds the package `privet`; without any, the tree beside this file is measured. Each run is a process of its own on the
digits of scikit-learn: `privet train` with one step, a loop with `make_private` of one step, `privet synthesize` by class
moments, and `privet compare` of one method with its worker process. A profiler (`sys.setprofile`, in every thread and in
every child process) notes each call of a function of the package. Counted are:

- functions, files, rooms: those that were called, each once; a room is a folder of the package. Code that runs on import
  is left out.
- changes of room: pairs of a function and one that it calls in another room, each pair once.
- to the noise: the functions that wait for each other when noise is added to a sum for the first time, from the command (or
  the user's call) to the noise; their files; and how often the room changes on the way.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from _page import put

RESULTS = Path(__file__).parent / "results"
PAGE = "decisions/1800-one-method-one-runner-one-table.md"

PROFILER = """
import atexit, json, os, sys, threading

ROOT = os.environ["WALK_ROOT"] + os.sep
known, calls, way = {}, set(), []

def place(code):
    # Of a function of the package: its file and name. Code on import (modules, classes) has no local variables of its own.
    if code not in known:
        inside = code.co_filename.startswith(ROOT) and code.co_flags & 1 and not code.co_name.startswith("<")
        known[code] = (code.co_filename[len(ROOT):], code.co_qualname) if inside else None
    return known[code]

def above(frame):
    while frame is not None:
        if found := place(frame.f_code):
            return frame, found
        frame = frame.f_back
    return None, None

def profile(frame, event, argument):
    if event != "call" or not (called := place(frame.f_code)):
        return
    frame, caller = above(frame.f_back)
    calls.add((caller, called))
    if not way and called[0].startswith("noise" + os.sep) and called[1].endswith(".add"):
        way.append(called)
        while caller is not None:
            way.append(caller)
            frame, caller = above(frame.f_back)

def write():
    sys.setprofile(None)
    with open(os.path.join(os.environ["WALK_OUT"], f"{os.getpid()}.json"), "w") as file:
        json.dump({"calls": list(calls), "way": way[::-1]}, file)

atexit.register(write)
threading.setprofile(profile)
sys.setprofile(profile)
"""

LOOP = """
import torch
import privet

data = privet.data.load("digits")
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
private = privet.make_private(model, optimizer, data.train, batch_size=144, steps=1, epsilon=3.0, delta=1e-5, max_grad_norm=1.0)
for x, y in private.batches():
    private.step(torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
print(private.spent())
"""

RUNS = {
    "`privet train`": "-m privet train --data digits --recipe one.yaml --seed 0 --out run",
    "`make_private`": "loop.py",
    "`privet synthesize`": "-m privet synthesize --data digits --method moments --student logistic --epochs 1 --seed 0 --out run",
    "`privet compare`": "-m privet compare --data digits --recipe one.yaml --methods dpsgd --seed 0 --out run",
}


def measure(folder: Path, run: str) -> dict[str, int]:
    """Run it once in an empty folder, with a profiler in every process, and count."""
    with tempfile.TemporaryDirectory() as text:
        home = Path(text)
        for name in ("site", "found", "cache"):
            (home / name).mkdir()
        (home / "site" / "sitecustomize.py").write_text(PROFILER)
        (home / "loop.py").write_text(LOOP)
        recipe = next((folder / "privet").rglob("digits-linear.yaml")).read_text(encoding="utf-8")
        recipe = recipe.replace("name: digits-linear", "name: one").replace("epochs: 10", "steps: 1")
        (home / "one.yaml").write_text(recipe.replace("  epochs: {", "  steps: {"))
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(home / "site"), str(folder)]),
            "WALK_ROOT": str(folder / "privet"),
            "WALK_OUT": str(home / "found"),
            "PRIVET_DATA": str(home / "cache"),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, *run.split()]
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} in {folder}:\n{done.stderr}")
        found = [json.loads(file.read_text()) for file in sorted((home / "found").iterdir())]
    calls = {(_pair(one), _pair(other)) for each in found for one, other in each["calls"]}
    way = max((each["way"] for each in found), key=len)
    return _counts({called for _, called in calls}) | {
        "changes of room": sum(_room(one) != _room(other) for one, other in calls if one is not None),
        "functions to the noise": len(way),
        "files to the noise": len({file for file, _ in way}),
        "changes of room to the noise": sum(_room(a) != _room(b) for a, b in pairwise(way)),
    }


def _pair(place: list[str] | None) -> tuple[str, str] | None:
    return (place[0], place[1]) if place is not None else None


def _room(place: tuple[str, str]) -> str:
    folder, slash, _ = place[0].partition(os.sep)
    return folder if slash else ""


def _counts(functions: set[tuple[str, str]]) -> dict[str, int]:
    return {
        "functions": len(functions),
        "files": len({file for file, _ in functions}),
        "rooms": len({_room(place) for place in functions}),
    }


def table(found: dict[str, dict[str, dict[str, int]]]) -> str:
    """A line for each run; in each cell the numbers of all trees in the order they were given."""
    trees = list(found)
    names = list(next(iter(found[trees[0]].values())))
    lines = [f"| {' to '.join(trees)} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for run in RUNS:
        cells = (" to ".join(str(found[tree][run][name]) for tree in trees) for name in names)
        lines.append(f"| {run} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    here = Path(__file__).parent.parent / "src"
    parser.add_argument("trees", nargs="*", default=[f"now={here}"], metavar="NAME=FOLDER")
    parser.add_argument("--page", action="store_true", help="put the table into the page of the decision")
    parser.add_argument("--only", action="append", choices=[name.strip("`").split()[-1] for name in RUNS])
    asked = parser.parse_args()
    if asked.only:
        for name in [name for name in RUNS if name.strip("`").split()[-1] not in asked.only]:
            del RUNS[name]
    trees = {name: Path(folder).resolve() for name, _, folder in (text.partition("=") for text in asked.trees)}
    text = table(
        {name: {run: measure(folder, command) for run, command in RUNS.items()} for name, folder in trees.items()}
    )
    print(text)
    if asked.page:
        (RESULTS / "walk.md").write_text(f"{text}\n", encoding="utf-8")
        put(PAGE, "walk", text)


if __name__ == "__main__":
    main()
