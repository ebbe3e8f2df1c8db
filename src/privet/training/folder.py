"""The folder of a run: its lock, its ledger, its releases, its checkpoints, and for a seeded run its journal."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from privet.errors import InputError, PrivetError
from privet.io import Busy, Lock, check_inside, check_unicode, remove_torn, why_refused, write_whole
from privet.io.names import (
    CARD,
    CARD_JSON,
    IDENTITY,
    JOURNAL,
    LEDGER,
    LOCK,
    MODEL,
    MODEL_CODE,
    NEWEST_HEAD,
    PAGE,
    RECORD,
    STEPS,
    UNFINISHED,
)
from privet.privacy import Event, Ledger, LedgerError, Relation
from privet.training import releases
from privet.training.checkpoint import Stateful, digest, load_checkpoint, remove_checkpoints, save_checkpoint
from privet.training.identity import require_same
from privet.training.releases import Releases

WORKING_FILES = (
    "checkpoint-*.safetensors",
    releases.PATTERN,
    JOURNAL,
    NEWEST_HEAD,
    IDENTITY,
    f"{LEDGER}.lock",
    LOCK,
)
"""Files that a run needs to continue. They are not for release."""
_LINE = re.compile(r"event [0-9a-f]{64} .+|released [0-9a-f]{64} .+|begun \d+ .+")
"""Version 0.1 wrote `begun` and the number of the event instead of `event` and the ledger's head after it."""


def remove_working_files(folder: Path) -> None:
    """Delete the files that a finished and closed run needed to continue."""
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    for file in working_files(folder):
        file.unlink(missing_ok=True)
    _remove_torn(folder)


WRITTEN = (
    RECORD,
    MODEL,
    MODEL_CODE,
    CARD,
    CARD_JSON,
    PAGE,
    STEPS,
    UNFINISHED,
    "release",
    ".release",
    "internal",
    "samples.png",
)
"""What a run writes into its folder after its ledger, and what a synthesis does."""


def check_not_foreign(folder: Path) -> None:
    """Refuse to begin a run among files of somebody else that it would write over."""
    if os.path.lexists(folder / LEDGER):
        return
    if taken := [name for name in WRITTEN if os.path.lexists(folder / name)]:
        raise InputError(
            f"{folder} holds no run, but it has {' and '.join(taken[:3])}, which a run would write over: give a new folder "
            f"with --out."
        )


def working_files(folder: Path) -> list[Path]:
    """The files that a run needs to continue, as far as they are there."""
    return [file for pattern in WORKING_FILES for file in folder.glob(pattern)]


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock the folder of a finished run, a comparison or a reproduction for this process."""
    lock = _locked(folder)
    try:
        _remove_torn(folder)
        yield
    finally:
        with suppress(OSError):  # Windows deletes no file that is open: it stays, and means nothing
            (folder / LOCK).unlink(missing_ok=True)  # it is still held, so nobody else has it
        lock.release()


def _remove_torn(folder: Path) -> None:
    """Delete files that a killed process left half written, also in the folder that is released."""
    for place in (folder, folder / "release"):
        remove_torn(place)


def require_there(folder: Path) -> None:
    """Raise if a folder in use was deleted: the next write would create it again, without its ledger."""
    if not (folder / LOCK).exists():
        raise PrivetError(
            f"The folder {folder} was deleted or moved while it was in use, so the run stops. Start again in another folder; "
            f"what was used so far still counts."
        )


class RunFolder:
    """A run that can be killed at any moment and continued.

        run = RunFolder("runs/a", resume=True)      # resume: continue the run in the folder, or start one
        private = make_private(..., folder=run)     # or folder="runs/a", resume=True

    Formal guarantees: a lock admits one process at a time. The ledger holds every step before its result is used. A checkpoint is
    complete or absent, and holds the ledger's head; the folder also holds the newest head. A ledger that lost lines, or that was
    replaced by an older copy, is refused. The replacement of a whole folder is not detected, unless the head is also kept
    elsewhere. The secret keys of a release are never written. Checkpoints are working files of the owner of the data, and not for
    release.

    Attributes:
        ledger: every use of the records.
        releases: what the run makes once.
        state: the content of the newest checkpoint; None if there is none.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        resume: bool = False,
        at: int | None = None,
        relation: Relation = Relation.ADD_REMOVE,
        unit: str = "record",
    ) -> None:
        """
        Args:
            path: the folder; it is created if it is missing.
            resume: continue the run in the folder, or start one; without it, a folder that holds a run is refused.
            at: continue it after that step, of which the folder must hold a checkpoint, instead of after the newest one.
            relation, unit: the neighboring relation and the unit of privacy of a new ledger.
        """
        self.path = Path(path)
        check_unicode(self.path.absolute())
        try:
            if self.path.exists() and not self.path.is_dir():
                raise InputError(f"{self.path} is a file: give a folder.")
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PrivetError(f"The folder {self.path} cannot be created {why_refused(error)}.") from None
        check_inside(self.path)
        self._lock = _locked(self.path)
        self._journal: Journal | None = None
        self._stages: dict[str, dict[str, Any] | None] = {}
        try:
            remove_torn(self.path)
            self.state = self._stages[""] = load_checkpoint(self.path, at=at)
            ledger = self.path / LEDGER
            if not resume and (self.state is not None or ledger.exists()):
                raise InputError(
                    f"{self.path} holds a run already: resume it (--resume, or resume=True), or give another folder."
                )
            found = self._open_ledger(ledger)
            self.ledger = Ledger(ledger, relation=relation, unit=unit) if found is None else found
            self._newest = self._newest_head()
            try:
                self.releases = Releases(self.ledger, self.path)
            except BaseException:
                self.close()
                raise
        except BaseException:
            self._lock.release()
            raise

    @property
    def identity(self) -> dict[str, Any]:
        """The settings of the run that is continued; empty for a new run."""
        return self.state["identity"] if self.state is not None else {}

    @property
    def has_kept(self) -> bool:
        """Whether there is something to go on from: a checkpoint, or a release that was made once."""
        return any(self.path.glob("checkpoint-*.safetensors")) or any(self.path.glob(releases.PATTERN))

    def state_what(self, identity: Mapping[str, Any]) -> None:
        """State what the run does, before it uses a record. A run that is continued must state the same."""
        path = self.path / IDENTITY
        if path.exists():
            try:
                stored = json.loads(path.read_bytes())
            except (OSError, ValueError) as error:
                raise PrivetError(f"{path} is damaged ({error}): start again in another folder.") from None
            require_same(self.path, stored, identity)
        elif len(self.ledger) or self.state is not None:
            raise InputError(
                f"The run in {self.path} was started in another way, so its settings cannot be compared with these: give another "
                f"folder."
            )
        else:
            try:
                write_whole(path, json.dumps(dict(identity), indent=1).encode())
            except OSError as error:
                raise PrivetError(f"{path} cannot be written: {error.strerror}. Make room and resume.") from None

    def begin(self, identity: Mapping[str, Any], *, seeded: bool, stage: str = "") -> dict[str, Any] | None:
        """Set the identity of a stage of the run; returns its saved state, or None.

        A resumed stage must have the same identity. The stage of a run with a single stage has no name.
        """
        if stage not in self._stages:
            self._stages[stage] = load_checkpoint(self.path, stage)
        found = self._stages[stage]
        if found is not None:
            require_same(self.path, found["identity"], identity)
            if not self.ledger.holds({found["ledger_head"]}):
                raise LedgerError(
                    f"Lines were removed from the ledger {self.ledger.path}: it is older than a checkpoint."
                )
        if seeded and self._journal is None:
            self._journal = Journal(self.path, self.ledger)
        return found

    def announce(self, name: str, event: Event) -> None:
        """Record an event before its release exists; `record` then notes the release."""
        if self._journal is not None:
            self._journal.announce(name, event)
        else:
            self.ledger.record(event)

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

    def save(self, step: int, state: Mapping[str, Any], stage: str = "") -> None:
        """Write a checkpoint; see `save_checkpoint`."""
        require_there(self.path)
        save_checkpoint(self.path, step, {**state, "step": step, "ledger_head": self.ledger.head}, stage)

    def forget(self, stage: str) -> None:
        """Delete the checkpoints of a stage that nothing needs any more."""
        remove_checkpoints(self.path, stage)
        self._stages[stage] = None

    def close(self) -> None:
        """Release the folder."""
        self.ledger.close()
        self._newest.close()
        if self._journal is not None:
            self._journal.close()
        self._lock.release()

    def _open_ledger(self, path: Path) -> Ledger | None:
        if self.state is None and path.exists() and b"\n" not in path.read_bytes():
            path.unlink()  # it was killed while its first line was written: nothing was recorded
        if path.exists():
            return Ledger.open(path, head=self.state["ledger_head"] if self.state is not None else None)
        if self.state is not None or (self.path / NEWEST_HEAD).exists() or any(self.path.glob(releases.PATTERN)):
            raise PrivetError(
                f"{path} is missing: a run cannot continue without the ledger of its releases. Put it back, "
                f"or start again in another folder."
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
        run: the folder; None in a process that leaves it to process 0.
        path: where it is.
        identity: settings that must be the same when the run is resumed.
        every: steps from one checkpoint to the next; None for an epoch.
        stateful: more parts to save and to continue, by name.
        own_loop: whether the folder belongs to a loop of the user's own, which leaves its description there.
        state: the checkpoint from which the run goes on; None for a new run.
    """

    run: RunFolder | None
    path: str
    identity: Mapping[str, Any]
    every: int | None = None
    stateful: Mapping[str, Stateful] = field(default_factory=dict)
    own_loop: bool = False
    state: dict[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class Continued:
    """What all processes of a training must know of the folder and the ledger that process 0 has opened.

    Attributes:
        path: of the folder; empty where there is none.
        state: the newest checkpoint; None for a new run.
        relation, unit, events, conditions: what the ledger holds.
    """

    path: str
    state: dict[str, Any] | None
    relation: Relation
    unit: str
    events: list[tuple[Event, int]]
    conditions: tuple[str, ...]

    @classmethod
    def of(cls, run: RunFolder | None, ledger: Ledger) -> Continued:
        path, state = ("", None) if run is None else (str(run.path), run.state)
        return cls(path, state, ledger.relation, ledger.unit, list(ledger), ledger.conditions)

    def copied(self, ledger: Ledger | None) -> Ledger:
        """A ledger in memory with what process 0 has recorded: the given one, or a new one."""
        copy = ledger if ledger is not None else Ledger(relation=self.relation, unit=self.unit)
        copy.take_over(self.events, self.conditions)
        return copy

    @property
    def identity(self) -> dict[str, Any]:
        """The settings of the run that is continued; empty for a new run."""
        return self.state["identity"] if self.state is not None else {}


def opened(
    folder: RunFolder | str | Path | None,
    *,
    resume: bool | int = False,
    ledger: Ledger | None = None,
    relation: Relation = Relation.ADD_REMOVE,
    unit: str = "record",
) -> RunFolder | None:
    """The folder that a function was given, opened if it is a path; None if there is none. `ledger` may only be its own.

    `resume` is whether to continue the run, or the step after which to continue it.
    """
    at = None if isinstance(resume, bool) else resume
    if folder is None:
        if resume is not False:
            raise InputError("resume continues the run in a folder: give folder=...")
        return None
    if ledger is not None and not (isinstance(folder, RunFolder) and ledger is folder.ledger):
        raise InputError(
            "A run in a folder has its ledger there: leave out ledger, or record in RunFolder(...).ledger."
        )
    if isinstance(folder, RunFolder):
        return folder
    return RunFolder(folder, resume=resume is not False, at=at, relation=relation, unit=unit)


@contextmanager
def open_for(folder: RunFolder | str | Path | None, **how: Any) -> Iterator[RunFolder | None]:
    """`opened`, and closed at the end if it was opened here."""
    run = opened(folder, **how)
    try:
        yield run
    finally:
        if run is not None and run is not folder:
            run.close()


def _locked(folder: Path) -> Lock:
    try:
        return Lock(folder / LOCK)
    except Busy:
        raise PrivetError(
            f"The run in {folder} is being continued by another process: wait until it ends, or give another folder. (In Python "
            f"also by a run that was not closed: call its close().)"
        ) from None
    except OSError as error:
        raise PrivetError(f"The folder {folder} cannot be locked {why_refused(error)}.") from None


class Journal:
    """Records the releases of a seeded run in its ledger, each once.

    After a kill, a seeded run repeats the steps after its last checkpoint with the same noise. The same release twice is one
    release, because the second reveals nothing new. So a step whose digest is in the journal is not recorded again, but a step
    that differs in a single bit (another version of a library, another number of threads) is.

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

    def announce(self, name: str, event: Event) -> None:
        """Record the event of a release that is still to come, unless the ledger holds it."""
        if not self.holds(name):
            self._write(f"event {self._ledger.head_after(event)} {name}")
            self._ledger.record(event)
            self._unused.add(name)

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
                    f"an older copy was put back. Put back the newest ledger, or start again in another folder."
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
        raise PrivetError(f"{path} is damaged: it says {line!r}. Start again in another folder.")
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
        raise PrivetError(f"{path} is damaged. Start again in another folder.")
    if not ledger.holds({found[1].decode()}):
        raise LedgerError(
            f"Lines were removed from the ledger {ledger.path}, or an older copy was put back: the head in {path} is not in it. "
            f"Put back the newest ledger, or start again in another folder."
        )
