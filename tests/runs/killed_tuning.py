"""Kills a tuning at random moments, for `test_tune.py`: prints what came out as JSON.

A program of its own, so that it has one thread and its children can be forked without waiting for torch to load.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, os.getcwd())

import torch

from privet.methods import DataSpec, Task
from privet.privacy import Event, Ledger, Trials
from privet.privacy.events import tally
from privet.report import RunRecord
from privet.runs import tune as tuning
from privet.runs.tune import WORKING, Drawn, TuningPlan, grid, tune
from privet.training.folder import working_files
from tests.runs.small import MAY_STAY, Moments, counted, digits

ORDER = (0, 1, 0)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(plan: TuningPlan, out: Path, moments: Moments, used: Path) -> bool:
    """Tune in a process of its own; gives whether it was killed."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            note_uses(used)
            with moments.watched():
                tune(plan, out, resume=True, on_tick=lambda: moments.report({}))
            status = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or status == 0, f"the tuning failed when it went on ({out.name}, moment {moments.at})"
    return os.WIFSIGNALED(status)


def note_uses(path: Path) -> None:
    """Note each event of a trial once it is on the disk, where a kill leaves it."""
    real = Ledger.record

    def recorded(self: Ledger, event: Event, count: int = 1) -> None:
        real(self, event, count)
        if self.path is not None and WORKING in self.path.parts:
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{sum(times for _, times in tally(event * count))}\n")

    Ledger.record = recorded  # type: ignore[method-assign]


def main(root: Path) -> None:
    torch.set_num_threads(1)
    task = Task.of(DataSpec("digits"), digits(), 3.0, 1e-4)
    plan = TuningPlan.of(
        grid(["dpsgd"], task, {"learning_rate": ["0.5", "2"], "epochs": ["0.5"]}), task, Trials(5.0, 1.0)
    )
    Drawn.of = classmethod(lambda cls, *_: Drawn(ORDER, (0.3, 0.6, 0.9)))  # type: ignore[assignment]
    moments = Moments()
    with moments.watched():
        tune(plan, root / "whole", on_tick=lambda: moments.report({}))
    planned = sum(count for place in ORDER for _, count in tally(plan.events[place]))
    (chosen, _), *_ = tally(plan.event)
    chance, found = random.Random(3), []
    for number in range(6):
        out, used, kills, heads = root / str(number), root / f"{number}.txt", 0, []
        # The last tuning is killed in its last seconds only.
        begin = moments.count - 40 if number == 5 else 0
        for _ in range(3):
            if (out / "record.json").exists() and not working_files(out):
                break
            kills += in_child(plan, out, Moments(chance.randrange(begin, moments.count), kill), used)
            if (out / "ledger.jsonl").exists() and b"\n" in (out / "ledger.jsonl").read_bytes():
                heads.append(Ledger.open(out / "ledger.jsonl", read_only=True).head)
        if not (out / "record.json").exists() or working_files(out):
            assert not in_child(plan, out, Moments(), used)
        ledger = RunRecord.read(out).open_ledger(out)
        held = counted(ledger)
        facts: dict[str, Any] = {
            "kills": kills,
            "charged": held.pop(chosen),
            "apart": sum(held.values()),
            "used": sum(map(int, used.read_text().split())),
            "planned": planned,
            "lost": sorted(set(heads) - ledger.holds(heads)),
            "left over": sorted(path.name for path in out.iterdir() if path.name not in MAY_STAY),
            "chosen": RunRecord.read(out).tuning is not None,
        }
        found.append(facts)
    assert tuning.WORKING == WORKING
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
