"""Kills one verb at random moments until it is done, for `test_verbs_resumed.py`: prints what came out as JSON.

A program of its own, so that it has one thread and its children can be forked without waiting for torch to load.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, os.getcwd())

import torch
from typer.testing import CliRunner

from privet.attacks.membership import Rmia, Shadow
from privet.cli import app
from privet.cli import demo as demo_verb
from privet.io.names import LEDGER, LOCK
from privet.methods import DataSpec, Power, method_named
from privet.papers import Reproduction, load
from privet.privacy import Ledger
from privet.report import RunRecord
from privet.runs import Measuring, attack_run, audit_run, race
from privet.runs.comparison import finish, write_comparison
from privet.runs.job import Job, Row
from privet.training import releases
from tests.runs.small import MAY_STAY, Moments, digits, results, run_small

COMMAND = ("privet", "verb")
ATTACKS = [Shadow(records=100, epochs=1), Rmia(records=100, epochs=2, shadows=2)]
POWER = Power(draws=100, canaries=40)


def of_progress(moments: Moments) -> Callable[[str, int, int | None], None]:
    return lambda what, done, total: moments.report({})


def prepared(out: Path) -> None:
    """A finished run to attack or to audit: a copy of one that all of them share."""
    if not (out.parent / "run" / "record.json").exists():
        run_small("dpsgd", out.parent / "run", 3)
    if not (out / "record.json").exists():
        shutil.copytree(out.parent / "run", out)


def attack(out: Path, moments: Moments) -> None:
    prepared(out)
    with moments.watched():
        attack_run(out, ATTACKS, digits(), resume=True, command=COMMAND, progress=of_progress(moments))


def audit(out: Path, moments: Moments) -> None:
    prepared(out)
    with moments.watched():
        audit_run(out, POWER, resume=True, command=COMMAND, progress=of_progress(moments))


def one_after_the_other(methods: Any, out: Path, **_: Any) -> list[Row]:
    """The methods in this process, so that a kill hits all of it."""
    rows = []
    for key in methods:
        if (row := Row.read(out / key)) is None:
            race.compete(Job.read(out), key, out / key, lambda _: None)
            row = Row(key, method_named(key).title, "done", seconds=1.0)
            row.write(out / key)
        rows.append(row)
    return rows


def compare(out: Path, moments: Moments) -> None:
    settings = {"epochs": 0.5, "size": 40, "components": 6}
    measuring = Measuring(students=("GaussianNB",))
    job = Job(DataSpec("digits"), 3.0, 1e-4, ("dpsgd", "moments"), seed=3, settings=settings, measuring=measuring)
    with moments.watched(), job.kept_in(out):
        rows = one_after_the_other(job.methods, out)
        write_comparison(finish(job, out, rows, {}, (digits().origin,)), out)


def demo(out: Path, moments: Moments) -> None:
    with moments.watched():
        done = CliRunner().invoke(app, ["demo", "--data", "digits", "--seed", "3", "--out", str(out), "--resume"])
    assert done.exit_code == 0, done.output


def reproduce(out: Path, moments: Moments) -> None:
    table = dataclasses.replace(load("digits-linear"), seeds=2)
    table = dataclasses.replace(table, lines=tuple(dataclasses.replace(line) for line in table.lines))
    with moments.watched():
        work = Reproduction(out, 1e-4, 2, on_step=moments.report, progress=of_progress(moments))
        work.run(table, table.cases[:1], digits())


VERBS = {"attack": attack, "audit": audit, "compare": compare, "demo": demo, "reproduce": reproduce}


def told(verb: str, out: Path) -> Any:
    """What a verb must have in common with one that was not killed."""
    if verb == "attack":
        return [(one.key, one.auc, one.rates, one.settings) for one in RunRecord.read(out).attacks]
    if verb == "audit":
        return [{**one.to_dict(), "date": ""} for one in RunRecord.read(out).audits]
    if verb == "reproduce":
        names = sorted(path.name for path in out.glob("*.json"))
        found = [json.loads((out / name).read_bytes()) for name in names]
        return [{**one, "seconds": 0} for one in found]
    runs = sorted(path.parent for path in out.glob("*/record.json"))
    return [(run.name, sorted(results(run).items()), len(RunRecord.read(run).attacks)) for run in runs]


def left_over(verb: str, out: Path) -> list[str]:
    """Files that a finished verb should have removed."""
    if verb in ("attack", "audit"):
        return sorted(path.name for path in out.iterdir() if path.name not in MAY_STAY)
    if verb == "reproduce":
        return sorted(path.name for path in out.iterdir() if path.suffix != ".json")
    beside = [path.name for path in out.parent.iterdir() if path.name.startswith(f".{out.name}.")]
    inside = [path for path in out.rglob("*") if path.name in (LOCK, "unfinished") or "checkpoint" in path.name]
    torn = [
        path.name for run in out.glob("*/record.json") for path in run.parent.iterdir() if path.name not in MAY_STAY
    ]
    return sorted([*beside, *(path.name for path in inside), *(name for name in torn if name != "row.json")])


def in_child(verb: str, out: Path, moments: Moments) -> bool:
    """Run in a process of its own; whether it was killed."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            VERBS[verb](out, moments)
            status = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or status == 0, f"{verb} failed when it went on, after moment {moments.at}"
    return os.WIFSIGNALED(status)


def events(out: Path) -> dict[str, int]:
    """The number of events in each ledger."""
    found = {}
    for path in sorted(out.rglob(LEDGER)):
        if b"\n" in path.read_bytes():
            found[str(path.relative_to(out))] = len(Ledger.open(path, read_only=True))
    return found


def main(verb: str, root: Path, wanted: int) -> None:
    torch.set_num_threads(1)
    releases.SECONDS = 0.0  # the state of a loop is saved after each step
    race.POWER = POWER
    race.race = one_after_the_other  # type: ignore[assignment]
    demo_verb.METHODS, demo_verb.STUDENT_EPOCHS = ("dpsgd", "moments"), 1
    demo_verb._sizes = lambda _: {"moments": {"size": 40, "components": 6}, "dpsgd": {"epochs": 0.5}}  # type: ignore
    chance, kills, found, left = random.Random(verb), 0, [], []
    counter = Moments()
    VERBS[verb](root / "whole", counter)
    whole, held = told(verb, root / "whole"), events(root / "whole")
    short, number = [], 0
    while kills < wanted:
        out, number = root / str(number), number + 1
        while True:
            # One in four in the last moments, where it puts things into their places and cleans up; the others early, so
            # that many hit one run.
            late = chance.random() < 0.25
            at = counter.count - 1 - chance.randrange(12) if late else chance.randrange(max(2, counter.count // 3))
            moments = Moments(max(0, at), lambda: os.kill(os.getpid(), signal.SIGKILL))
            if kills >= wanted or not in_child(verb, out, moments):
                break
            kills += 1
        assert not in_child(verb, out, Moments())
        found.append(told(verb, out) == whole)
        short += [name for name, count in held.items() if events(out).get(name, 0) < count]
        left += left_over(verb, out)
    print(json.dumps({"kills": kills, "runs": number, "same": all(found), "under-counted": short, "left over": left}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
