"""The ledger: the append-only record of the events of a run, from which epsilon is computed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from privet.errors import InputError, PrivetError
from privet.io import Busy, Lock, sync_folder
from privet.privacy.accountants import Accountant, accountant_named
from privet.privacy.events import Event, Nothing, composed
from privet.privacy.guarantees import Guarantee, Relation
from privet.privacy.spent import Spent

_FORMAT = 1
_HASH = re.compile(rb'"hash": *"([0-9a-f]{64})"}\s*$')
_BEFORE_HASH, _AFTER_HASH = -67, -3
"""The place of the 64 digits of the running hash, counted from the end of a line."""


class LedgerError(PrivetError):
    """A ledger file cannot be trusted or cannot be written."""


class Ledger:
    """The events of one run, in memory or in a file of JSON lines.

    Formal guarantees: when `record` returns, the event is on the disk (fsync). A run that records each step before it uses
    the step's noise therefore never shows less than was used, even if it is killed. Only one process at a time appends: the
    lock is taken before the file is read, and nothing is appended to a file that somebody else changed or deleted.

    Each line carries a running hash, which reveals that a line was changed, swapped, repeated or inserted, or removed from
    the middle. It does not reveal that lines were cut off at the end, nor that the whole file was rewritten, because the
    hash has no secret. Against both, keep `head` elsewhere (a checkpoint, a privacy card) and pass it to `open`. A last line
    that was being written when the process died is recognized and dropped: `record` had not returned, so its noise was never
    used.
    """

    def __init__(
        self, path: str | Path | None = None, *, relation: Relation | str = Relation.ADD_REMOVE, unit: str = "record"
    ) -> None:
        """Start an empty ledger, with `path` in a new file. Existing files are never overwritten: continue them with `open`."""
        self.relation = Relation.of(relation)
        self.unit = unit
        self.path = Path(path) if path is not None else None
        self.torn = False
        self.conditions: tuple[str, ...] = ()
        """Facts that the statement takes as public; see `condition`."""
        self.on_record: Callable[[str], None] | None = None
        """Called with the new head once an event is on the disk, before `record` returns."""
        self._events: list[Event] = []
        self._counts: list[int] = []
        """How often each of `_events` was recorded in a row."""
        self._total = 0
        self._lines = 0
        self._first_line: dict[Event, int] = {}
        self._named: dict[int, Event] = {}
        self._event: Event | None = Nothing()
        self._file: IO[bytes] | None = None
        self._size = 0
        self._lock: Lock | None = None
        self._head = ""
        if self.path is not None:
            self._create(self.path)
        self._write({"ledger": _FORMAT, "relation": self.relation.value, "unit": unit})
        if self.path is not None:
            sync_folder(self.path.parent)

    @classmethod
    def open(cls, path: str | Path, *, head: str | None = None, read_only: bool = False) -> Ledger:
        """Read a ledger file, check its running hash, and allow more events to be appended (unless `read_only`).

        Args:
            path: the file.
            head: a head that the file must contain; a file from which lines were cut off is refused.
            read_only: do not change the file; `record` raises. Another process may be writing the file.
        """
        ledger = cls()
        ledger.path = Path(path)
        try:
            if read_only:
                with ledger.path.open("rb") as file:
                    ledger._replay(file, head)
                ledger._lines = -1
            else:
                ledger._continue(ledger.path, head)
        except OSError as error:
            ledger.close()
            raise InputError(f"The ledger {path} cannot be read: {error.strerror}.") from None
        except BaseException:
            ledger.close()
            raise
        return ledger

    def record(self, event: Event, count: int = 1) -> None:
        """Append `event`, `count` times. Returns when it is on the disk."""
        if self._lines < 0:
            raise LedgerError(f"The ledger {self.path} was opened for reading only.")
        entry, event = self._entry(event, count)
        if entry is not None:
            self._write(entry)
            self._note(event)
            if self.on_record is not None:
                self.on_record(self._head)

    def head_after(self, event: Event, count: int = 1) -> str:
        """The head that the ledger will have once `event` is recorded next."""
        entry, _ = self._entry(event, count)
        return self._head if entry is None else _chain(self._head, entry)

    def holds(self, heads: Iterable[str]) -> set[str]:
        """Those of `heads` that the file had after one of its lines. A head proves all lines before it."""
        if self.path is None:
            raise InputError("Only a ledger in a file keeps its earlier heads.")
        wanted = {head.encode() for head in heads}
        with self.path.open("rb") as file:
            return {found[1].decode() for line in file if (found := _HASH.search(line)) and found[1] in wanted}

    def require_unit(self, unit: str) -> None:
        """Raise unless the ledger counts the cost for a `unit`.

        The cost for a record bounds nothing for a user with several records, so only mechanisms that know users may be
        charged to a ledger of users.
        """
        counts_users = self.unit != "record" and not self.unit.startswith("record ")
        if counts_users != (unit == "user"):
            way = "say whose each example is" if counts_users else "start it with unit='user'"
            raise InputError(f"The ledger counts what is done to a {self.unit}, but this protects a {unit}: {way}.")

    def condition(self, fact: str) -> None:
        """Record, once, a fact that the statement takes as public; every `spent` lists it."""
        if fact in self.conditions:
            return
        if self._lines < 0:
            raise LedgerError(f"The ledger {self.path} was opened for reading only.")
        self._write({"condition": fact})
        self.conditions += (fact,)

    def size_is_public(self) -> None:
        """Record that steps, rate or divisor were computed from the true number of records.

        If neighbors replace one record, that number is no secret, and nothing is recorded.
        """
        if self.relation is Relation.ADD_REMOVE:
            self.condition(f"the number of {self.unit}s is public")

    @property
    def event(self) -> Event:
        """All recorded events as one event."""
        if self._event is None:
            self._event = composed(*(event * count for event, count in self))
        return self._event

    @property
    def guarantee(self) -> Guarantee:
        """The weakest guarantee of the recorded events."""
        return self.event.guarantee

    @property
    def head(self) -> str:
        """The running hash of everything up to the last event."""
        return self._head

    def spent(self, delta: float, accountant: str | Accountant = "pld") -> Spent:
        """The full statement for the recorded events at `delta`."""
        interpreter = accountant_named(accountant)
        found = interpreter.spent(self.event, delta, self.relation, unit=self.unit)
        return replace(found, conditions=self.conditions)

    def __iter__(self) -> Iterator[tuple[Event, int]]:
        """The recorded events in order; equal events in a row are counted."""
        return zip(self._events, self._counts, strict=True)

    def __len__(self) -> int:
        """The number of recorded events."""
        return self._total

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._lines = -1
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the file ---------------------------------------------------------------------------------------------------

    def _create(self, path: Path) -> None:
        exists = InputError(f"{path} exists already: continue it with Ledger.open.")
        if path.exists():
            raise exists
        try:
            self._lock = _locked(path)
            self._file = path.open("xb")
        except FileExistsError:
            self.close()
            raise exists from None
        except OSError as error:
            self.close()
            raise LedgerError(f"The ledger {path} cannot be written: {error.strerror}.") from None

    def _continue(self, path: Path, head: str | None) -> None:
        # Take the lock before reading: otherwise lines that another process writes meanwhile would be overwritten.
        if not path.is_file():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._lock = _locked(path)
        self._file = path.open("r+b")
        self._size = self._replay(self._file, head)
        self._file.seek(self._size - 1)
        ended = self._file.read(1) == b"\n"
        self._file.truncate(self._size)
        self._file.seek(self._size)
        if not ended:
            self._append(b"\n")

    def _write(self, entry: dict[str, Any]) -> None:
        head = _chain(self._head, entry)
        if self._file is not None:
            self._append(json.dumps({**entry, "hash": head}, allow_nan=False).encode() + b"\n")
        elif self.path is not None:
            raise LedgerError(f"The ledger {self.path} is closed.")
        self._head = head
        self._lines += 1

    def _append(self, line: bytes) -> None:
        assert self._file is not None
        try:
            self._check_untouched(self._file.fileno())
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._size += len(line)
        except OSError as error:
            # Nobody knows what reached the disk, so nothing may be appended after a possibly torn line.
            self._abandon()
            raise LedgerError(f"The ledger {self.path} cannot be written: {error.strerror}.") from None

    def _check_untouched(self, descriptor: int) -> None:
        """Check that nobody else changed the file, since locks are not reliable everywhere (network disks, other programs)."""
        found = os.fstat(descriptor)
        if found.st_nlink == 0:
            self._abandon()
            raise LedgerError(
                f"The ledger {self.path} was deleted while it was being written, so the run stops: its privacy cost can no "
                "longer be recorded. Start again in another folder; the steps until now still count."
            )
        if found.st_size != self._size:
            self._abandon()
            raise LedgerError(f"The ledger {self.path} was changed by somebody else while it was being written.")

    def _abandon(self) -> None:
        with suppress(OSError):
            self.close()
        self._file, self._lines = None, -1

    # --- the lines --------------------------------------------------------------------------------------------------

    def _entry(self, event: Event, count: int) -> tuple[dict[str, Any] | None, Event]:
        """The entry to write for `event`, and the event itself; None if there is nothing to write."""
        if not isinstance(event, Event):
            raise InputError(f"A ledger records events, not a {type(event).__name__}.")
        event = event * count
        if isinstance(event, Nothing):
            return None, event
        # A repeated event refers to the line of its first occurrence, so that the file of 10^5 steps stays small.
        known = self._first_line.get(event)
        return ({"event": event.to_dict()}, event) if known is None else ({"as": known}, self._named[known])

    def _note(self, event: Event) -> None:
        line = self._first_line.setdefault(event, self._lines - 1)
        self._named.setdefault(line, event)
        self._count(self._named[line])

    def _count(self, event: Event) -> None:
        if self._events and self._events[-1] is event:
            self._counts[-1] += 1
        else:
            self._events.append(event)
            self._counts.append(1)
        self._total += 1
        self._event = None

    def _replay(self, file: Iterable[bytes], expected: str | None) -> int:
        """Read the lines of a file; returns the length of its valid part."""
        self._head, self._lines = "", 0
        good, head, met = 0, b"", expected is None
        wanted = expected.encode() if expected is not None else b""
        repeats: dict[bytes, tuple[Event, bytes]] = {}
        for line in file:
            known = repeats.get(line[:_BEFORE_HASH])
            if known is not None and line[_AFTER_HASH:] == b'"}\n':
                # A common line, exactly as `_write` writes it, is hashed without being parsed; others are parsed.
                head = hashlib.sha256(head + known[1]).hexdigest().encode()
                if line[_BEFORE_HASH:_AFTER_HASH] != head:
                    raise self._edited()
                self._lines += 1
                self._count(known[0])
            else:
                if self._lines == 0 and not line.endswith(b"\n"):
                    break
                if not self._parse(line, head.decode()):
                    self.torn = True
                    break
                head = self._head.encode()
                number = self._first_line[self._events[-1]] if self._events else 0
                if number:
                    before, hashed = b'{"as": %d, "hash": "' % number, b'{"as":%d}' % number
                    repeats.setdefault(before, (self._events[-1], hashed))
            met = met or head == wanted
            good += len(line)
        if self._lines == 0:
            raise LedgerError(
                f"Nothing was recorded in {self.path}: its first line is incomplete. Delete it and start again."
            )
        if not met:
            raise LedgerError(f"Lines were removed from the ledger {self.path}: the expected head is not in it.")
        self._head = head.decode()
        return good

    def _parse(self, line: bytes, head: str) -> bool:
        """Check and read a line of any kind; False if it was not written completely."""
        number = self._lines
        damaged = LedgerError(f"Line {number + 1} of the ledger {self.path} is not an entry of a ledger.")
        try:
            entry: dict[str, Any] = json.loads(line)
            claimed = entry.pop("hash")
            head = _chain(head, entry)
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            if number > 0 and not line.endswith(b"\n"):
                return False
            raise damaged from None
        if claimed != head:
            raise self._edited()
        self._head = claimed
        try:
            self._take(entry, number)
        except (KeyError, TypeError):
            raise damaged from None
        return True

    def _edited(self) -> LedgerError:
        return LedgerError(f"The ledger {self.path} was edited: the running hash breaks at line {self._lines + 1}.")

    def _take(self, entry: dict[str, Any], number: int) -> None:
        if number == 0:
            if entry.get("ledger") != _FORMAT:
                raise LedgerError(f"{self.path} is not a ledger of format {_FORMAT}.")
            self.relation, self.unit = Relation.of(entry["relation"]), entry["unit"]
            self._lines = 1
            return
        if len(entry) != 1:
            raise KeyError  # of two facts in one line, only one would be read
        self._lines += 1
        if "condition" in entry:
            self.conditions += (str(entry["condition"]),)
        elif "as" in entry:
            self._note(self._named[entry["as"]])
        else:
            self._note(Event.from_dict(entry["event"]))


def _chain(head: str, entry: dict[str, Any]) -> str:
    text = head + json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _locked(path: Path) -> Lock:
    """Take the lock of a ledger, a file beside it, so that only one process appends and all can read."""
    path = path.resolve()  # the same lock for every path to the file
    lock = path.with_name(f"{path.name}.lock")
    try:
        return Lock(lock)
    except Busy:
        raise LedgerError(f"The ledger {path} is being written by another process.") from None
    except OSError as error:
        raise LedgerError(
            f"The ledger {path} cannot be written: its lock {lock} cannot be taken ({error.strerror})."
        ) from None
