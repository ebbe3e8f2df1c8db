"""Values that a run computes once from the records: charged once, kept as soon as they exist, used once they are recorded."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError

from privet.errors import InputError, PrivetError
from privet.io.chained import chained
from privet.io.farm import Farm
from privet.privacy import Ledger, LedgerError
from privet.randomness import Randomness
from privet.training.checkpoint import as_read, load_checkpoint, read_note, read_state, save_checkpoint, write_state

T = TypeVar("T")

PATTERN = "release-*.safetensors"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


SECONDS = 20.0
"""The least time in seconds between two checkpoints of a loop that uses no budget."""


class Kept:
    """Results of long work that uses no budget (attacks, audits), kept in a folder until the work is over.

        with Kept(folder).in_use():             # the functions inside find it with `kept_here`
            scores = kept.keep("scores", compute)

    If the work is stopped and started again, it finds its finished parts in the same order and goes on from the last state of its
    loop. The folder must belong to this work alone, so its name is a hash of everything that the results depend on. The files are
    computed from records without noise, so only the owner of the folder can read them.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._parts = 0
        self._saved = time.monotonic()

    def keep(self, name: str, make: Callable[[], T]) -> T:
        """The value that was kept under this name, or a new one: plain data with tensors."""
        path = self._path(name)
        if path is not None and path.exists():
            found: T = self._read(path)["value"]
            return found
        value = make()
        if path is not None:
            self._write(path, {"value": value, "streams": {}}, self._note())
            value = as_read(value)
        return value

    def part(self, make: Callable[[], T]) -> T:
        """The next part of the work, kept as soon as it is done; parts come in the same order each time.

        Inside, `kept_here` is the place of this part alone, and is removed when the part is kept.
        """
        self._parts += 1
        name = f"part-{self._parts}"
        inner = Kept(None if self._folder is None else self._folder / name)

        def made() -> T:
            with inner.in_use():
                return make()

        found = self.keep(name, made)
        inner.remove()
        return found

    def saved(self, loop: str) -> dict[str, Any] | None:
        """The last state of a loop; None if it was not saved."""
        return load_checkpoint(self._folder, loop) if self._folder is not None else None

    def save(self, loop: str, step: int, state: Callable[[], Mapping[str, Any]]) -> None:
        """Save the state of a loop, unless that was done a moment ago."""
        if self._folder is not None and time.monotonic() - self._saved >= SECONDS:
            save_checkpoint(self._folder, step, state(), loop)
            self._saved = time.monotonic()

    @contextmanager
    def in_use(self) -> Iterator[Kept]:
        """Inside, `kept_here` gives this one."""
        token = _HERE.set(self)
        try:
            yield self
        finally:
            _HERE.reset(token)

    def remove(self) -> None:
        """Delete everything: the work is over."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def active(self) -> bool:
        """Whether there is a folder to keep anything in."""
        return self._folder is not None

    def _note(self) -> str:
        return ""

    def _path(self, name: str) -> Path | None:
        if not _NAME.fullmatch(name):
            raise InputError(f"A release is named by small letters, digits and hyphens, and not {name!r}.")
        return self._folder / PATTERN.replace("*", name) if self._folder is not None else None

    def _write(self, path: Path, state: dict[str, Any], note: str) -> None:
        try:
            write_state(path, state, note)
        except OSError as error:
            raise PrivetError(
                f"{path} cannot be written: {error.strerror}. Nothing was released; make room and resume."
            ) from None

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            found: dict[str, Any] = read_state(path)
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise self._damaged(path, error) from None
        return found

    def _damaged(self, path: Path, error: Exception) -> PrivetError:
        return PrivetError(f"{path} is damaged ({error}): delete it, and run the command again.")


_HERE: ContextVar[Kept | None] = ContextVar("kept", default=None)


def kept_here() -> Kept:
    """The place where the current work keeps its results; inactive outside of `Kept.in_use`.

    It is not an argument, because audits and attacks are called through plug-in methods, whose signatures do not have it.
    """
    return _HERE.get() or Kept(None)


def spread(farm: Farm, name: str, function: Callable[..., T], items: Sequence[tuple[Any, ...]], told: Told) -> list[T]:
    """The result of `function(*item)` for each item, computed in a farm, each kept here as soon as it is there.

    Args:
        farm: where they are computed.
        name: of the pieces; the results are plain data with tensors.
        function, items: the work.
        told: called with the number of pieces that are done, and of all.
    """
    here, found = kept_here(), dict[int, T]()
    for number in range(len(items)):
        with suppress(_MissingError):
            found[number] = here.keep(f"{name}-{number}", _missing)
    left = [number for number in range(len(items)) if number not in found]
    for place, result in farm.each(function, [items[number] for number in left]):
        if isinstance(result, Exception):
            raise result
        found[left[place]] = here.keep(f"{name}-{left[place]}", partial(_given, result))
        told(len(found), len(items))
    return [found[number] for number in range(len(items))]


Told = Callable[[int, int], None]


class _MissingError(Exception):
    """There is no kept value."""


def _missing() -> Any:
    raise _MissingError


def _given(value: T) -> T:
    return value


class Releases(Kept):
    """The releases of one run by name, in the folder of the run where it has one.

        mean = releases.get("mean", lambda ledger: private_mean(records, ..., ledger=ledger, randomness=r), r)

    Formal guarantees: `get` makes a value against a draft of the ledger. The value and its events are on the disk before
    the events are recorded in the ledger, and they are in the ledger before the value is handed out. A run that is killed
    in between records them when it is resumed, and uses the value. So nothing that was paid for is lost, nothing is charged
    twice, and nothing is used before it is recorded. A value whose events are missing in the ledger is refused, unless the
    ledger is still in the state in which they were to be recorded.

    The files are working files of the owner of the data: a value in them may not be in the ledger yet.
    """

    def __init__(self, ledger: Ledger, folder: Path | None = None) -> None:
        super().__init__(folder)
        self._ledger = ledger
        self._settle()

    def get(self, name: str, make: Callable[[Ledger], T], randomness: Randomness | None = None) -> T:
        """The value that was kept under this name, or a new one.

        Args:
            name: of the release, unique in the run: small letters, digits and hyphens.
            make: computes the value from the records, and records its events in the given ledger. The value is plain data with
                tensors, as in a checkpoint.
            randomness: the streams that `make` draws from. If a seeded run finds the value, they continue after it.
        """
        path = self._path(name)
        if path is not None and path.exists():
            kept = self._read(path)
            if randomness is not None:
                randomness.restore(kept["streams"])
            found: T = kept["value"]
            return found
        draft = self._ledger.draft()
        try:
            value = make(draft)
        except Exception:
            # An error can reveal something about the draws, so the events of the draft count as used. Ctrl-C reveals nothing.
            self._ledger.extend(draft.entries, draft.before)
            raise
        if path is not None:
            streams = randomness.state() if randomness is not None else {}
            self._write(path, {"value": value, "streams": streams}, _told_of(draft.before, draft.entries))
        self._ledger.extend(draft.entries, draft.before)
        return value if path is None else as_read(value)

    def _write(self, path: Path, state: dict[str, Any], note: str) -> None:
        if not path.parent.is_dir():
            raise PrivetError(f"The folder {path.parent} was deleted, so the run stops: start again in another folder.")
        super()._write(path, state, note)

    def _note(self) -> str:
        """Keep a value without an event of its own: it must be post-processing of releases in the ledger."""
        return _told_of(self._ledger.head, [])

    def _damaged(self, path: Path, error: Exception) -> PrivetError:
        return _damaged(path, error)

    def _settle(self) -> None:
        """Record the events of a release that a killed run had made but not recorded."""
        if self._folder is None:
            return
        made = {path: _told(path) for path in sorted(self._folder.glob(PATTERN))}
        after = {path: reduce(chained, entries, before) for path, (before, entries) in made.items()}
        held = self._ledger.holds(after.values())
        for path in (path for path in made if after[path] not in held):
            self._read(path)  # refused if it is damaged
            before, entries = made[path]
            try:
                self._ledger.extend(entries, before)
            except LedgerError as error:
                raise LedgerError(f"{path} holds a release whose events are not in the ledger. {error}") from None


def heads_after(folder: Path) -> set[str]:
    """The head of the ledger after each release that was kept in a folder."""
    told = (_told(path) for path in folder.glob(PATTERN))
    return {reduce(chained, entries, before) for before, entries in told}


def _told_of(before: str, entries: list[dict[str, Any]]) -> str:
    """The head of the ledger before a release, and what the release has to record, as the file of the release holds it."""
    return json.dumps({"before": before, "entries": entries}, allow_nan=False)


def _told(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """The head of the ledger before a release, and what the release has to record."""
    try:
        told = json.loads(read_note(path))
        return str(told["before"]), list(told["entries"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> PrivetError:
    return PrivetError(f"{path} is damaged ({error}): start again in another folder.")
