"""Releases that are made once: killed at every write, with every file cut or put back, none is lost and none uncounted."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from privet.errors import InputError, PrivetError
from privet.privacy import Gaussian, Ledger, LedgerError
from privet.randomness import Randomness
from privet.training import RunFolder
from privet.training.releases import Releases

EVENTS = 5
Files = dict[str, bytes]
Handed = dict[str, bytes]
"""The values that a run was given, by name."""


def made(run: RunFolder, seed: int | None, handed: Handed) -> None:
    """A run of three releases, of one, three and one events, and of what is computed from them."""
    randomness = Randomness.of(seed)

    def noisy(ledger: Ledger, events: int) -> dict[str, Any]:
        for place in range(events):
            ledger.record(Gaussian(2.0 + place % 2))
        noise = randomness.noise
        drawn = torch.randn(3, generator=noise) if isinstance(noise, torch.Generator) else noise.normal(3)
        return {"value": drawn, "about": ("x", 1)}

    for name, events in (("mean", 1), ("moments", 3), ("counts", 1)):
        handed[name] = bits(run.releases.get(name, lambda ledger, n=events: noisy(ledger, n), randomness)["value"])
    handed["sum"] = bits(run.releases.keep("sum", lambda: torch.randn(1)))


def bits(value: Tensor) -> bytes:
    return value.numpy().tobytes()


def continued(folder: Path, seed: int | None, handed: Handed) -> int:
    """Go on to the end; gives the number of events in the ledger."""
    torch.manual_seed(0)
    run = RunFolder(folder, resume=True)
    try:
        made(run, seed, handed)
    finally:
        run.close()
    return len(run.ledger)


def watched(folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None) -> list[tuple[Files, Handed]]:
    """What the folder held around every write, and what the run had been given by then."""
    moments: list[tuple[Files, Handed]] = []
    handed: Handed = {}

    def look() -> None:
        if folder.exists():
            held = {file.name: file.read_bytes() for file in folder.iterdir()}
            if not moments or moments[-1] != (held, handed):
                moments.append((held, dict(handed)))

    def around(write: Callable[..., Any]) -> Callable[..., Any]:
        def looking(*given: Any, **named: Any) -> Any:
            look()
            try:
                return write(*given, **named)
            finally:
                look()

        return looking

    with monkeypatch.context() as patched:
        for name in ("fsync", "replace", "unlink"):
            patched.setattr(os, name, around(getattr(os, name)))
        assert continued(folder, seed, handed) == EVENTS
    look()
    return moments


def put(folder: Path, files: Files) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


SEEDS = pytest.mark.parametrize("seed", [3, None], ids=["seeded", "release"])


@SEEDS
def test_killed_at_every_write_nothing_is_lost_and_nothing_counted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    moments = watched(tmp_path / "whole", monkeypatch, seed)
    assert len(moments) > 12
    for files, handed in moments:
        again: Handed = {}
        folder = put(tmp_path / "again", files)
        assert continued(folder, seed, again) == EVENTS, sorted(files)
        assert again.items() >= handed.items(), sorted(files)
        assert not [file for file in folder.iterdir() if file.name.startswith(".")]
        if seed is not None:
            assert {**moments[-1][1], "sum": b""} == {**again, "sum": b""}


@SEEDS
def test_no_value_is_handed_out_before_its_events_are_in_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    needed = {"mean": 1, "moments": 4, "counts": 5}
    for files, handed in watched(tmp_path / "whole", monkeypatch, seed):
        lines = files.get("ledger.jsonl", b"").count(b"\n") - 1
        assert all(lines >= needed[name] for name in handed if name in needed)


@pytest.mark.parametrize("seed", [None])
def test_every_mixture_of_files_is_refused_or_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    """The newest head is the last one, or gone: put back with all others, nothing is noticed."""
    moments = watched(tmp_path / "whole", monkeypatch, seed)
    whole, last = moments[-1]

    def kinds(begin: str) -> list[Files]:
        found: list[Files] = []
        for files, _ in moments:
            part = {name: content for name, content in files.items() if name.startswith(begin)}
            if part not in found:
                found.append(part)
        return found

    parts = (kinds("ledger.jsonl"), kinds("release-"), [{}, {"newest-head": whole["newest-head"]}])
    went_on = refused = 0
    for mixture in itertools.product(*parts):
        files = {name: content for part in mixture for name, content in part.items()}
        again: Handed = {}
        try:
            events = continued(put(tmp_path / "again", files), seed, again)
        except PrivetError:
            refused += 1
            continue
        went_on += 1
        new = [name for name, value in again.items() if last[name] != value and name != "sum"]
        # Where the newest head is there, the ledger is the last one, and every value that is made anew is counted anew.
        cost = sum({"mean": 1, "moments": 3, "counts": 1}[name] for name in new)
        assert events >= (EVENTS + cost if "newest-head" in files else EVENTS)
    assert went_on > 10 and refused > 10


@SEEDS
def test_a_full_disk_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int | None) -> None:
    """Whichever write fails: the run says so, and goes on when there is room."""
    whole: Handed = {}
    continued(tmp_path / "whole", seed, whole)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for number in range(4, 40):
        count = itertools.count()
        real = os.fsync
        handed: Handed = {}
        with monkeypatch.context() as patched:
            patched.setattr(
                os, "fsync", lambda file, real=real, n=number, c=count: real(file) if next(c) < n else full()
            )
            said = ""
            try:
                continued(tmp_path / f"{number}", seed, handed)
                break
            except PrivetError as error:
                said = str(error)
        assert "No space left" in said
        again: Handed = {}
        assert continued(tmp_path / f"{number}", seed, again) == EVENTS
        assert again.items() >= handed.items()
        assert seed is None or again["counts"] == whole["counts"]
    assert number > 10


def test_an_error_that_can_tell_of_a_release_is_counted_and_a_stop_is_not(tmp_path: Path) -> None:
    def raising(ledger: Ledger, error: BaseException) -> None:
        ledger.record(Gaussian(2.0))
        raise error

    run = RunFolder(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run.releases.get("a", lambda ledger: raising(ledger, KeyboardInterrupt()))
    assert len(run.ledger) == 0
    with pytest.raises(PrivetError, match="no class reached"):
        run.releases.get("a", lambda ledger: raising(ledger, PrivetError("no class reached 5 votes")))
    assert len(run.ledger) == 1
    run.close()


def test_a_release_whose_events_were_cut_off_is_refused(tmp_path: Path) -> None:
    continued(tmp_path, None, {})
    ledger = tmp_path / "ledger.jsonl"
    whole = ledger.read_bytes().splitlines(keepends=True)
    (tmp_path / "newest-head").unlink()
    for kept in range(1, len(whole) - 1):
        ledger.write_bytes(b"".join(whole[:kept]))
        with pytest.raises(LedgerError, match="whose events are not in the ledger"):
            RunFolder(tmp_path, resume=True)
    ledger.unlink()
    with pytest.raises(PrivetError, match="is missing"):
        RunFolder(tmp_path, resume=True)


def test_a_changed_or_damaged_release_is_refused(tmp_path: Path) -> None:
    continued(tmp_path, None, {})
    path = tmp_path / "release-mean.safetensors"
    content = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    run = RunFolder(tmp_path, resume=True)
    with pytest.raises(PrivetError, match="is damaged"):
        run.releases.get("mean", lambda _: None)
    run.close()
    path.write_bytes(content[:20])
    with pytest.raises(PrivetError, match="is damaged"):
        RunFolder(tmp_path, resume=True)


def test_a_run_is_continued_with_what_it_stated(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.state_what({"method": "a", "settings": {"bins": 3}})
    run.ledger.record(Gaussian(1.0))
    run.close()
    for stated, said in (({"method": "a", "settings": {"bins": 4}}, "settings.bins 3, and 4"), ({}, "method 'a'")):
        run = RunFolder(tmp_path, resume=True)
        with pytest.raises(InputError, match=said):
            run.state_what(stated)
        run.close()
    (tmp_path / "identity.json").unlink()
    run = RunFolder(tmp_path, resume=True)
    with pytest.raises(InputError, match="started in another way"):
        run.state_what({"method": "a", "settings": {"bins": 3}})
    run.close()


def test_in_memory_a_release_is_made_each_time() -> None:
    ledger, numbers = Ledger(), iter(range(3))

    def release(draft: Ledger) -> int:
        draft.record(Gaussian(1.0))
        return next(numbers)

    releases = Releases(ledger)
    assert [releases.get("a", release), releases.get("a", release)] == [0, 1] and len(ledger) == 2
    with pytest.raises(InputError, match="small letters"):
        releases.get("../a", release)


@pytest.mark.parametrize("kind", ["get", "keep"])
def test_a_value_that_is_read_again_lies_in_memory_as_the_one_that_was_made(tmp_path: Path, kind: str) -> None:
    """The last bits of a product depend on strides and alignment: a seeded run that goes on would end with other ones."""

    def value() -> tuple[Tensor, Tensor]:
        run = RunFolder(tmp_path / "run", resume=True)
        try:
            tall, channels = torch.rand(7, 4), torch.rand(5, 1, 3, 3)
            pair = {"tall": tall.T, "image": torch.as_strided(channels, (5, 1, 3, 3), (9, 1, 3, 1)), "odd": "x" * 13}
            found = (
                run.releases.keep("pair", lambda: pair) if kind == "keep" else run.releases.get("pair", lambda _: pair)
            )
        finally:
            run.close()
        return found["tall"], found["image"]

    for made, read in zip(value(), value(), strict=True):
        assert torch.equal(made, read) and made.stride() == read.stride()
        assert read.data_ptr() % 64 == made.data_ptr() % 64 == 0, "not as the allocator places it"
