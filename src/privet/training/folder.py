"""The folder of a run: its lock, its ledger, its checkpoints, and of a seeded run its journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from privet.errors import InputError, PrivetError
from privet.io import Busy, Lock
from privet.privacy import Event, Ledger, Relation
from privet.training.checkpoint import load_checkpoint, save_checkpoint
from privet.training.identity import require_same
from privet.training.journal import FILE as JOURNAL
from privet.training.journal import Journal
from privet.training.newest_head import FILE as NEWEST_HEAD
from privet.training.newest_head import NewestHead

LEDGER = "ledger.jsonl"
LOCK = "lock"
WORKING_FILES = ("checkpoint-*.safetensors", JOURNAL, NEWEST_HEAD, LOCK, f"{LEDGER}.lock")
"""What a run needs to go on, and is not for release."""


def remove_working_files(folder: Path) -> None:
    """Of a run that is finished and closed: what it needed to go on."""
    for pattern in WORKING_FILES:
        for file in folder.glob(pattern):
            file.unlink()


class RunFolder:
    """A run that can be killed at any moment and continued.

        run = RunFolder("runs/a", resume=True)      # resume: continue what is there, or start where there is nothing
        private = make_private(..., folder=run)     # or folder="runs/a", resume=True

    Formal guarantees: one process at a time (a lock). The ledger holds every step before its result is used. A checkpoint is
    there whole or not at all, and holds the ledger's head; the folder holds the newest head besides. A ledger that lost lines,
    or that was put back to an older copy, is refused. A folder that was put back as a whole is not noticed: for that keep the
    head elsewhere. The secret keys of a release are never written. Checkpoints are working files of whoever holds the data,
    and not for release.
    """

    def __init__(
        self, path: str | Path, *, resume: bool = False, relation: Relation = Relation.ADD_REMOVE, unit: str = "record"
    ) -> None:
        """
        Args:
            path: the folder; it is made where it is missing.
            resume: continue the run that is there, or start one; without it a folder that holds one is refused.
            relation, unit: of a new ledger.
        """
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file: give a folder.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PrivetError(f"The folder {self.path} cannot be made: {error.strerror}.") from None
        self._lock = _locked(self.path)
        self._journal: Journal | None = None
        try:
            self.state = load_checkpoint(self.path)
            """What the newest checkpoint holds; None before there is one."""
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
        """What the run that is to be continued was made with; empty for a new one."""
        return self.state["identity"] if self.state is not None else {}

    def begin(self, identity: Mapping[str, Any], *, seeded: bool) -> None:
        """State what the run is. A run that is continued has to be the same."""
        if self.state is not None:
            require_same(self.path, self.identity, identity)
        if seeded:
            self._journal = Journal(self.path, self.ledger)

    def record(self, name: str, event: Event, released: Mapping[str, Tensor]) -> None:
        """Write down an event and what it released: in the ledger, once for each distinct release."""
        if self._journal is not None:
            self._journal.record(name, event, released)
        else:
            self.ledger.record(event)

    def in_ledger(self, name: Callable[[int], str], step: int, steps: int) -> int:
        """The first step from `step` on whose event is not in the ledger, of a seeded run that repeats steps."""
        while step < steps and self.holds(name(step)):
            step += 1
        return step

    def holds(self, name: str) -> bool:
        """Whether the ledger holds the event of that name already: of a seeded run that repeats it."""
        return self._journal is not None and self._journal.holds(name)

    def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write a checkpoint; see `save_checkpoint`."""
        save_checkpoint(self.path, step, {**state, "step": step, "ledger_head": self.ledger.head})

    def close(self) -> None:
        """Let go of the folder."""
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
                f"{path} is missing: a run is not continued without the ledger of what it used. Put it back, "
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


def _locked(folder: Path) -> Lock:
    try:
        return Lock(folder / LOCK)
    except Busy:
        raise PrivetError(
            f"The run in {folder} is being continued by another process, or by an earlier run of this one: wait for it, "
            f"or end it with private.close()."
        ) from None
    except OSError as error:
        raise PrivetError(f"The folder {folder} cannot be locked: {error.strerror}.") from None
