"""Whatever is cut or put back, a run that goes on holds at least as many events as steps whose noise was used, or is refused.

A short run is watched at every write: what the folder holds then is what a kill would leave. Then the files of different
moments are mixed, and the run is continued.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import privet
from privet.errors import PrivetError
from privet.privacy import Ledger
from privet.training import Performance, RunFolder
from tests.training.conftest import KNOWN, data, run

STEPS, SAVE_EVERY = 5, 2
Files = dict[str, bytes]


class Watched:
    """A run in `folder`, with what the folder held around every write, and how many steps were used by then."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None) -> None:
        self.folder, self.seed, self.used = folder, seed, 0
        self.moments: list[tuple[Files, int]] = []
        with monkeypatch.context() as patched:
            for name in ("fsync", "replace", "unlink"):
                patched.setattr(os, name, self._around(getattr(os, name)))
            self.result = continued(folder, seed, self)
        self._look()

    def _around(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*given: Any, **named: Any) -> Any:
            self._look()
            try:
                return write(*given, **named)
            finally:
                self._look()

        return watched

    def _look(self) -> None:
        if not self.folder.exists():
            return
        held = {file.name: file.read_bytes() for file in self.folder.iterdir() if not file.name.startswith(".")}
        if not self.moments or self.moments[-1] != (held, self.used):
            self.moments.append((held, self.used))


def continued(folder: Path, seed: int | None, watched: Watched | None = None) -> tuple[torch.Tensor, int, int]:
    """Go on to the end; gives the weights, the events in the ledger, and how many steps this process used."""
    torch.manual_seed(1)
    model = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    used = 0
    real = RunFolder.record

    def counted(self: RunFolder, *given: Any) -> None:
        nonlocal used
        real(self, *given)
        used += 1  # from here on the step's noise is used
        if watched is not None:
            watched.used = used

    settings: dict[str, Any] = {
        **KNOWN,
        "steps": STEPS,
        "performance": Performance(save_every=SAVE_EVERY),
        "seed": seed,
        "self_check": False,
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RunFolder, "record", counted)
        private = privet.make_private(model, optimizer, data(), folder=folder, resume=True, **settings)
        try:
            if private.steps_done < STEPS:
                run(model, optimizer, private)
        finally:
            private.close()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), len(private.ledger), used


def checkpoints(files: Files) -> Files:
    return {name: content for name, content in files.items() if name.startswith("checkpoint-")}


def only(files: Files, name: str) -> Files:
    return {name: files[name]} if name in files else {}


def distinct(parts: Iterator[Files]) -> list[Files]:
    found: list[Files] = []
    for part in parts:
        if part not in found:
            found.append(part)
    return found


def refused_or_counted(folder: Path, files: Files, watched: Watched, used_before: int) -> bool:
    """Continue from `files`; True where it went on, after checking that nothing is missing in the ledger."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    try:
        weights, events, used = continued(folder, watched.seed)
    except PrivetError:
        return False
    # A seeded run repeats the same releases: they count once. Those of a release without a seed are all different.
    wanted = STEPS if watched.seed is not None else used_before + used
    assert events >= wanted, f"{events} events for {wanted} steps, of {sorted(files)}"
    assert watched.seed is None or torch.equal(weights, watched.result[0])
    assert len(Ledger.open(folder / "ledger.jsonl", read_only=True)) == events
    return True


SEEDS = pytest.mark.parametrize("seed", [3, None], ids=["seeded", "release"])


@SEEDS
def test_killed_at_every_write_it_goes_on_with_every_step_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    watched = Watched(tmp_path / "whole", monkeypatch, seed)
    assert len(watched.moments) > 3 * STEPS and watched.result[1] == STEPS
    for files, used in watched.moments:
        assert refused_or_counted(tmp_path / "again", files, watched, used), sorted(files)
        if seed is not None:
            assert len(Ledger.open(tmp_path / "again" / "ledger.jsonl", read_only=True)) == STEPS


@SEEDS
def test_every_pair_of_a_ledger_and_checkpoints_is_refused_or_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    """Also one that is older than the files beside it, also every number of cut lines."""
    watched = Watched(tmp_path / "whole", monkeypatch, seed)
    held = [files for files, _ in watched.moments]
    last, used = next((files, used) for files, used in reversed(watched.moments) if used == STEPS - 1)
    ledgers, saved = distinct(only(files, "ledger.jsonl") for files in held), distinct(map(checkpoints, held))
    assert len(ledgers) > STEPS and len(saved) >= 3
    rest = {name: content for name, content in last.items() if not name.startswith(("ledger.jsonl", "checkpoint-"))}
    went_on = [
        refused_or_counted(tmp_path / "again", {**rest, **ledger, **some}, watched, used)
        for ledger, some in itertools.product(ledgers, saved)
    ]
    assert True in went_on and False in went_on


@pytest.mark.slow
@SEEDS
def test_every_mixture_of_all_four_files_is_refused_or_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    """Without a seed, the file with the newest head is the one of the last moment: put back as a whole, nothing is noticed."""
    watched = Watched(tmp_path / "whole", monkeypatch, seed)
    held = [files for files, _ in watched.moments]
    parts = {
        "ledger": distinct(only(files, "ledger.jsonl") for files in held),
        "checkpoints": distinct(map(checkpoints, held)),
        "journal": distinct(only(files, "released.txt") for files in held),
        "head": distinct(only(files, "newest-head") for files in held)
        if seed is not None
        else [only(held[-1], "newest-head")],
    }
    mixtures = list(itertools.product(*parts.values()))
    random.Random(0).shuffle(mixtures)
    begun = time.monotonic()
    for number, mixture in enumerate(mixtures):
        if time.monotonic() > begun + 600:
            assert number > 500
            break
        files = {name: content for part in mixture for name, content in part.items()}
        refused_or_counted(tmp_path / "again", files, watched, STEPS)


def test_thirty_steps_are_thirty_events_when_three_lines_are_cut(tmp_path: Path) -> None:
    """What was found in version 0.1: 27 events for 30 steps."""
    settings: dict[str, Any] = {
        **KNOWN,
        "steps": 30,
        "performance": Performance(save_every=20),
        "self_check": False,
        "folder": tmp_path,
        "resume": True,
    }

    def start() -> tuple[nn.Module, Any, Any]:
        torch.manual_seed(1)
        model = nn.Linear(5, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, privet.make_private(model, optimizer, data(), **settings)

    model, optimizer, private = start()
    run(model, optimizer, private, steps=25)
    private.close()
    ledger = tmp_path / "ledger.jsonl"
    whole = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(whole[:-3]))
    with pytest.raises(PrivetError, match="Lines were removed from the ledger"):
        start()
    (tmp_path / "newest-head").unlink()
    with pytest.raises(PrivetError, match="whose event is not in the ledger"):
        start()
    ledger.write_bytes(b"".join(whole))
    model, optimizer, private = start()
    run(model, optimizer, private)
    private.close()
    assert len(private.ledger) == 30


def test_a_journal_of_version_0_1_is_continued_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(tmp_path / "whole", monkeypatch, 3)
    files = dict(next(files for files, used in reversed(watched.moments) if used == STEPS - 1))
    lines = files["released.txt"].decode().splitlines()
    steps = itertools.count(1)
    old = [f"begun {next(steps)} {line.split(' ', 2)[2]}" if line.startswith("event") else line for line in lines]
    files["released.txt"] = ("\n".join(old) + "\n").encode()
    del files["newest-head"]
    assert refused_or_counted(tmp_path / "again", files, watched, 0)
    files["ledger.jsonl"] = b"".join(files["ledger.jsonl"].splitlines(keepends=True)[:-1])
    assert not refused_or_counted(tmp_path / "again", {**files, **checkpoints(watched.moments[4][0])}, watched, 0)


def test_a_head_that_two_steps_expect_belongs_to_the_later_one(tmp_path: Path) -> None:
    """Step 2 is announced and killed; step 1 comes out differently and takes its place in the ledger; killed again."""
    from privet.privacy import Gaussian
    from privet.training.folder import Journal

    ledger = Ledger(tmp_path / "ledger.jsonl")
    journal = Journal(tmp_path, ledger)
    journal.record("step 1", Gaussian(1.0), {"": torch.zeros(1)})
    journal._write(f"event {ledger.head_after(Gaussian(1.0))} step 2")
    journal.record("step 1", Gaussian(1.0), {"": torch.ones(1)})
    journal.close()
    again = Journal(tmp_path, ledger)
    assert not again.holds("step 2")
    again.record("step 2", Gaussian(1.0), {"": torch.ones(1)})
    assert len(ledger) == 3
    again.close()
    ledger.close()


def test_a_ledger_that_is_deleted_while_a_run_writes_it_ends_the_run(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = privet.make_private(model, optimizer, data(), folder=tmp_path / "run", **KNOWN)
    run(model, optimizer, private, steps=2)
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(PrivetError, match="was deleted while it was being written"):
        run(model, optimizer, private)
    assert torch.equal(torch.cat([p.detach().flatten() for p in model.parameters()]), before)
    private.close()
