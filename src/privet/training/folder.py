"""The folder of a run: its lock, its ledger, its checkpoints, and for a seeded run its journal."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from privet.errors import InputError, PrivetError
from privet.io import Busy, Lock
from privet.privacy import Event, Ledger, LedgerError, Relation
from privet.training.checkpoint import Stateful, digest, load_checkpoint, save_checkpoint
from privet.training.identity import require_same

LEDGER = "ledger.jsonl"
LOCK = "lock"
JOURNAL = "released.txt"
NEWEST_HEAD = "newest-head"
WORKING_FILES = ("checkpoint-*.safetensors", JOURNAL, NEWEST_HEAD, LOCK, f"{LEDGER}.lock")
"""Files that a run needs to continue. They are not for release."""
_LINE = re.compile(r"event [0-9a-f]{64} .+|released [0-9a-f]{64} .+|begun \d+ .+")
"""Version 0.1 wrote `begun` and the number of the event instead of `event` and the ledger's head after it."""


def remove_working_files(folder: Path) -> None:
    """Delete the files that a finished and closed run needed to continue."""
    for pattern in WORKING_FILES:
        for file in folder.glob(pattern):
            file.unlink()


class RunFolder:
    """A run that can be killed at any moment and continued.

        run = RunFolder("runs/a", resume=True)      # resume: continue the run in the folder, or start one
        private = make_private(..., folder=run)     # or folder="runs/a", resume=True

    Formal guarantees: a lock admits one process at a time. The ledger holds every step before its result is used. A checkpoint
    is complete or absent, and holds the ledger's head; the folder also holds the newest head. A ledger that lost lines,
    or that was replaced by an older copy, is refused. A folder that was replaced as a whole is not noticed: to notice that, keep
    the head elsewhere. The secret keys of a release are never written. Checkpoints are working files of the owner of the data,
    and not for release.
    """

    def __init__(
        self, path: str | Path, *, resume: bool = False, relation: Relation = Relation.ADD_REMOVE, unit: str = "record"
    ) -> None:
        """
        Args:
            path: the folder; it is created if it is missing.
            resume: continue the run in the folder, or start one; without it, a folder that holds a run is refused.
            relation, unit: the neighboring relation and the unit of privacy of a new ledger.
        """
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file: give a folder.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PrivetError(f"The folder {self.path} cannot be created: {error.strerror}.") from None
        self._lock = _locked(self.path)
        self._journal: Journal | None = None
        try:
            self.state = load_checkpoint(self.path)
            """The content of the newest checkpoint; None if there is none."""
            ledger = self.path / LEDGER
            if not resume and (self.state is not None or ledger.exists()):
                raise InputError(
                    f"{self.path} holds a run already: resume it (--resume, or resume=True), or give another folder."
                )
            found = self._open_ledger(ledger)
            self.ledger = Ledger(ledger, relation=relation, unit=unit) if found is None else found
            self._newest = self._newest_head()
        except BaseException:
            self._lock.release()
            raise

    @property
    def identity(self) -> dict[str, Any]:
        """The settings of the run that is continued; empty for a new run."""
        return self.state["identity"] if self.state is not None else {}

    def begin(self, identity: Mapping[str, Any], *, seeded: bool) -> None:
        """Set the identity of the run. A run that is continued must have the same identity."""
        if self.state is not None:
            require_same(self.path, self.identity, identity)
        if seeded:
            self._journal = Journal(self.path, self.ledger)

    def record(self, name: str, event: Event, released: Mapping[str, Tensor]) -> None:
        """Record an event and its release: in the ledger, once for each distinct release."""
        if self._journal is not None:
            self._journal.record(name, event, released)
        else:
            self.ledger.record(event)

    def in_ledger(self, name: Callable[[int], str], step: int, steps: int) -> int:
        """The first step from `step` on whose event is not in the ledger yet: a seeded run may repeat steps."""
        while step < steps and self.holds(name(step)):
            step += 1
        return step

    def holds(self, name: str) -> bool:
        """Whether the ledger holds the event of that name already, because a seeded run repeats it."""
        return self._journal is not None and self._journal.holds(name)

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write a checkpoint; see `save_checkpoint`."""
        save_checkpoint(self.path, step, {**state, "step": step, "ledger_head": self.ledger.head})

    def close(self) -> None:
        """Release the folder."""
        self.ledger.close()
        self._newest.close()
        if self._journal is not None:
            self._journal.close()
        self._lock.release()

    def _open_ledger(self, path: Path) -> Ledger | None:
        if self.state is None and path.exists() and b"\n" not in path.read_bytes():
            path.unlink()  # killed while its first line was written: nothing was recorded
        if path.exists():
            return Ledger.open(path, head=self.state["ledger_head"] if self.state is not None else None)
        if self.state is not None or (self.path / NEWEST_HEAD).exists():
            raise PrivetError(
                f"{path} is missing: a run cannot continue without the ledger of its releases. Put it back, "
                f"or start anew in another folder."
            )
        return None

    def _newest_head(self) -> NewestHead:
        try:
            newest = NewestHead(self.path, self.ledger)
        except BaseException:
            self.ledger.close()
            raise
        self.ledger.on_record = newest.note
        return newest


@dataclass(frozen=True, eq=False)
class Saving:
    """Where and how often a run is saved.

    Attributes:
        run: the folder.
        identity: settings that must be the same when the run is resumed.
        every: steps from one checkpoint to the next; None for an epoch.
        stateful: more parts to save and to continue, by name.
        own_loop: whether the folder belongs to a loop of the user's own, which leaves its description there.
    """

    run: RunFolder
    identity: Mapping[str, Any]
    every: int | None = None
    stateful: Mapping[str, Stateful] = field(default_factory=dict)
    own_loop: bool = False


def _locked(folder: Path) -> Lock:
    try:
        return Lock(folder / LOCK)
    except Busy:
        raise PrivetError(
            f"The run in {folder} is being continued by another process, or was not closed in this process: wait for it, "
            f"or end it with private.close()."
        ) from None
    except OSError as error:
        raise PrivetError(f"The folder {folder} cannot be locked: {error.strerror}.") from None


class Journal:
    """Records the releases of a seeded run in its ledger, each once.

    A seeded run that is killed repeats the steps after its last checkpoint with the same noise. The same release twice is
    one release: the second tells nothing new. So a step whose digest is in the journal is not recorded
    again, and a step that differs in a single bit (another version of a library, another number of threads) is.

    Formal guarantees: the ledger holds one event for each distinct release that was used; both are on the disk before it is
    used. For each event the journal holds the ledger's head after it. A journal with a release whose event is not in
    the ledger is refused, whichever file was cut or replaced. If the process was killed after an event was recorded and before
    its release was noted, the release was never used: the event then counts for the first release that is noted.
    """

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[str, set[str]] = {}
        self._unused: set[str] = set()
        """Steps whose event is in the ledger and whose release was never used."""
        path = folder / JOURNAL
        if path.exists():
            self._read(path)
        self._file = path.open("a", encoding="ascii")

    def record(self, name: str, event: Event, released: Mapping[str, Tensor]) -> None:
        found = digest(released)
        if found in self._known.get(name, ()):
            return
        if name not in self._unused:
            self._write(f"event {self._ledger.head_after(event)} {name}")
            self._ledger.record(event)
        self._write(f"released {found} {name}", durable=True)
        self._unused.discard(name)
        self._known.setdefault(name, set()).add(found)

    def holds(self, name: str) -> bool:
        """Whether the ledger holds an event for that step already."""
        return name in self._known or name in self._unused

    def close(self) -> None:
        self._file.close()

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with path.open("r+b") as file:
                file.truncate(len(whole))  # a line that was being written when the process died
        entries = [_split(path, line) for line in whole.decode("ascii", "replace").splitlines()]
        heads = self._ledger.holds(fact for kind, fact, _ in entries if kind == "event")
        # If two steps expect the same head, the first did not reach the ledger: otherwise the second would expect another head.
        owner = {fact: place for place, (kind, fact, _) in enumerate(entries) if kind != "released"}
        paid: dict[str, bool] = {}
        """For each step whose newest event has no release yet, whether that event is in the ledger."""
        for place, (kind, fact, name) in enumerate(entries):
            if kind != "released":
                there = fact in heads if kind == "event" else int(fact) <= len(self._ledger)
                paid[name] = paid.get(name, False) or (there and owner[fact] == place)
            elif paid.pop(name, False):
                self._known.setdefault(name, set()).add(fact)
            else:
                raise PrivetError(
                    f"{path} has a release of {name} whose event is not in the ledger: lines were removed from the ledger, or "
                    f"an older copy was put back. Put back the newest ledger, or start anew in another folder."
                )
        self._unused = {name for name, there in paid.items() if there}

    def _write(self, line: str, *, durable: bool = False) -> None:
        try:
            self._file.write(line + "\n")
            self._file.flush()
            if durable:
                os.fsync(self._file.fileno())
        except OSError as error:
            # The last line may be torn: nothing may be appended to it.
            with suppress(OSError):
                self._file.close()
            raise PrivetError(f"{self._file.name} cannot be written: {error.strerror}. Make room and resume.") from None


def _split(path: Path, line: str) -> tuple[str, str, str]:
    if not _LINE.fullmatch(line):
        raise PrivetError(f"{path} is damaged: it says {line!r}. Start anew in another folder.")
    kind, fact, name = line.split(" ", 2)
    return kind, fact, name


class NewestHead:
    """Keeps the head of the ledger after each step, in a file beside it.

    Formal guarantees: a ledger that lost a line of a step that was used, or was replaced by an older copy, is
    refused, unless this file was replaced or deleted, too. If the process is killed at any moment, the ledger is at least as
    new as this file, because it is written to the disk first.
    """

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        path = folder / NEWEST_HEAD
        if path.exists():
            _check_head(path, ledger)
        try:
            self._file = path.open("r+b" if path.exists() else "x+b", buffering=0)
            self.note(ledger.head)
            os.fsync(self._file.fileno())
        except OSError as error:
            raise PrivetError(f"{path} cannot be written: {error.strerror}. Make room and resume.") from None

    def note(self, head: str) -> None:
        """Write the head, without waiting for the disk: after a power failure, an older head still proves the lines up to it."""
        try:
            self._file.seek(0)
            self._file.write(head.encode() + b"\n")
        except OSError as error:
            raise PrivetError(f"{self._file.name} cannot be written: {error.strerror}. Make room and resume.") from None

    def close(self) -> None:
        self._file.close()


def _check_head(path: Path, ledger: Ledger) -> None:
    found = re.fullmatch(rb"([0-9a-f]{64})\n", path.read_bytes())
    if found is None:
        if not path.read_bytes():
            return  # killed when it was created
        raise PrivetError(f"{path} is damaged. Start anew in another folder.")
    if not ledger.holds({found[1].decode()}):
        raise LedgerError(
            f"Lines were removed from the ledger {ledger.path}, or an older copy was put back: the head in {path} is not in it. "
            f"Put back the newest ledger, or start anew in another folder."
        )
