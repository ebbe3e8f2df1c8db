"""Kills the runs of one method at random moments, for `test_resumed.py`: prints what came out as JSON.

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

from privet.io.names import LEDGER
from privet.privacy import Ledger
from privet.training.checkpoint import digest, pack
from privet.training.releases import Releases
from tests.runs.small import BATCHES, MAY_STAY, Moments, counted, results, run_small


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_in_child(name: str, out: Path, seed: int | None, moments: Moments, used: Path | None = None) -> int:
    """Run in a process of its own; gives how it ended."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if used is not None:
                moments = Noting(name, used, moments)
            run_small(name, out, seed, moments)
            status = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        os._exit(status)
    _, status = os.waitpid(child, 0)
    return status


class Noting(Moments):
    """Also notes where a kill leaves it what the run was given: steps of a training, and values of releases."""

    def __init__(self, name: str, used: Path, other: Moments) -> None:
        super().__init__(other.at, other.happens, other.only)
        self._name, self._used = name, used
        self._note_releases()

    def report(self, step: dict[str, Any]) -> None:
        if self._uses_records(step):
            self._note("step")
        super().report(step)

    def _uses_records(self, step: dict[str, Any]) -> bool:
        """Whether a report is about a use of records that has an event of its own."""
        if step.get("what") not in (None, "Training", "Training the GAN") or self._name.startswith("rows"):
            return False
        return self._name != "residual" or step["step"] % BATCHES == 1  # an epoch is one event

    def _note(self, line: str) -> None:
        with self._used.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _note_releases(self) -> None:
        real = Releases.get

        def noted(releases: Releases, name: str, make: Any, *more: Any) -> Any:
            def noting(ledger: Ledger) -> Any:
                before = sum(counted(ledger).values())
                value = make(ledger)
                self._note(f"made {name} {_digest(value)} {sum(counted(ledger).values()) - before}")
                return value

            value = real(releases, name, noting, *more)
            self._note(f"given {name} {_digest(value)}")
            return value

        Releases.get = noted  # type: ignore[method-assign]


def _digest(value: Any) -> str:
    tensors: dict[str, torch.Tensor] = {}
    return digest(tensors, json.dumps(pack(value, tensors, "value")))


def events_used(path: Path) -> int:
    """The events of all steps and of all different values that were given."""
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    cost = {(name, value): int(events) for kind, name, value, events in (line for line in lines if line[0] == "made")}
    given = {(line[1], line[2]) for line in lines if line[0] == "given"}
    return sum(line == ["step"] for line in lines) + sum(cost[value] for value in given)


def main(name: str, root: Path) -> None:
    torch.set_num_threads(1)
    chance = random.Random(name)
    moments = Moments()
    run_small(name, root / "whole", 5, moments)
    total, kills = moments.count, 0

    def killed(out: Path, seed: int | None, at: int, used: Path | None = None) -> bool:
        nonlocal kills
        status = run_in_child(name, out, seed, Moments(at, kill), used)
        assert os.WIFSIGNALED(status) or status == 0, f"the run failed when it went on ({out.name}, moment {at})"
        kills += os.WIFSIGNALED(status)
        return os.WIFSIGNALED(status)

    seeded = root / "seeded"
    for at in (chance.randrange(total // 2), chance.randrange(total // 3), chance.randrange(total // 2)):
        killed(seeded, 5, at)
    while killed(seeded, 5, max(5, total // 2)):  # until it ends
        total = total // 2 + total
    last = root / "last second"
    killed(last, 5, moments.count - 1 - chance.randrange(12))
    assert run_in_child(name, last, 5, Moments()) == 0
    same = results(seeded) == results(last) == results(root / "whole")

    release, used, heads = root / "release", root / "used.txt", set[str]()
    for at in (chance.randrange(moments.count // 2), chance.randrange(moments.count // 2)):
        killed(release, None, at, used)
        if b"\n" in (release / LEDGER).read_bytes() if (release / LEDGER).exists() else False:
            heads.add(Ledger.open(release / LEDGER, read_only=True).head)
    assert run_in_child(name, release, None, Moments(), used) == 0
    ledger = Ledger.open(release / LEDGER, read_only=True)
    left = sorted(path.name for out in (seeded, last, release) for path in out.iterdir() if path.name not in MAY_STAY)
    found = {
        "kills": kills,
        "seeded": "the same bits" if same else "other bits",
        "left over": left,
        "lost": sorted(heads - ledger.holds(heads)),
        "used": events_used(used),
        "in the ledger": sum(counted(ledger).values()),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
