"""The ledger: the append-only record of the events of a run, from which epsilon is computed."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

from privet.errors import InputError, PrivetError
from privet.io import kind_of, sync_folder, user_path, why_refused
from privet.io.chained import Appender, BrokenChain, NotAnEntry, chained, entry_of, line_of
from privet.privacy.accountants import Accountant, accountant_named
from privet.privacy.events import Event, Nothing, composed
from privet.privacy.guarantees import Guarantee, Relation
from privet.privacy.spent import Spent

_FORMAT = 1
_HASH = re.compile(rb'"hash": *"([0-9a-f]{64})"}\s*$')
_BEFORE_HASH, _AFTER_HASH = -67, -3
"""The place of the 64 digits of the running hash, counted from the end of a line."""
_LONGEST = 16 << 20
"""Bytes of a line; a longer one is not an entry."""


_LOST = (
    ", so the run stops: its privacy cost can no longer be recorded. Start again in another folder; the steps until now still "
    "count"
)


class LedgerError(PrivetError):
    """A ledger file cannot be trusted or cannot be written."""


class Payer(Protocol):
    """Who pays for the events of a ledger: the account of the data set (`privet.privacy.data_account`)."""

    def reserve(self, event: Event) -> None:
        """Set aside what `event` will cost; raises if there is not enough left."""

    def pay(self, event: Event) -> None:
        """Pay for `event` before it is recorded; raises if there is not enough left."""


class Ledger:
    """The events of one run, in memory or in a file of JSON lines.

    Formal guarantees: when `record` returns, the event is on the disk (fsync). A run that records each step before it uses
    the step's noise therefore never shows less than was used, even if it is killed. Only one process at a time appends: the
    lock is taken before the file is read, and nothing is appended to a file that somebody else changed or deleted.

    Each line carries a running hash, which reveals that a line was changed, swapped, repeated or inserted, or removed from
    the middle. It does not reveal that lines were cut off at the end, nor that the whole file was rewritten, because the
    hash has no secret. Against both, keep `head` elsewhere (a checkpoint, a privacy card) and pass it to `open`. A last line
    that was being written when the process died is recognized and dropped: `record` had not returned, so its noise was never
    used. The first line of a file holds a random number, so that the heads of two runs differ even if their events are equal.
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
        self.payer: Payer | None = None
        """Pays for each event before it is recorded; None without an account."""
        self._events: list[Event] = []
        self._counts: list[int] = []
        """How often each of `_events` was recorded in a row."""
        self._total = 0
        self._lines = 0
        self._first_line: dict[Event, int] = {}
        self._named: dict[int, Event] = {}
        self._event: Event | None = Nothing()
        self._file: Appender | None = None
        self._head = ""
        if self.path is not None:
            self._create(self.path)
        # A number that no other file has: without it two runs with the same events would have the same running hash.
        own = {"run": secrets.token_hex(16)} if self.path is not None else {}
        self._write({"ledger": _FORMAT, "relation": self.relation.value, "unit": unit, **own})
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
        ledger.path = user_path(path)
        try:
            if ledger.path.exists():
                kind_of(ledger.path)  # a pipe or a device would never end
            if read_only:
                with ledger.path.open("rb") as file:
                    ledger._replay(file, head)
                ledger._lines = -1
            else:
                ledger._continue(ledger.path, head)
        except OSError as error:
            ledger.close()
            raise InputError(f"The ledger {path} cannot be read {why_refused(error)}.") from None
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
            if self.payer is not None:
                self.payer.pay(event)
            self._write(entry)
            self._note(event)
            if self.on_record is not None:
                self.on_record(self._head)

    def reserve(self, event: Event) -> None:
        """Announce events that will be recorded. An account sets their cost aside, and raises if there is not enough left."""
        if self.payer is not None:
            self.payer.reserve(event)

    def head_after(self, event: Event, count: int = 1) -> str:
        """The head that the ledger will have once `event` is recorded next."""
        entry, _ = self._entry(event, count)
        return self._head if entry is None else chained(self._head, entry)

    def draft(self) -> Draft:
        """A copy in memory that continues this ledger; `extend` appends what was recorded in it."""
        if self._lines < 0:
            raise LedgerError(f"The ledger {self.path} was opened for reading only, or is closed.")
        return Draft(self)

    def extend(self, entries: Sequence[dict[str, Any]], before: str) -> None:
        """Append the entries of a draft after the head `before`, except those that an interrupted call already appended.

        Formal guarantees: afterward the ledger holds each entry once. A ledger that is neither at `before`, nor between
        two of the entries, nor past all of them is refused: lines were removed, or an older copy was put back.
        """
        heads = [before]
        for entry in entries:
            heads.append(chained(heads[-1], entry))
        if self._head == heads[-1] or (self.path is not None and self.holds({heads[-1]})):
            return
        if self._head not in heads:
            raise LedgerError(
                f"The ledger {self.path} does not hold the events of a release that was made: lines were removed from it, or an "
                f"older copy was put back. Put back the newest ledger, or start again in another folder."
            )
        for entry in entries[heads.index(self._head) :]:
            if "condition" in entry:
                self.condition(str(entry["condition"]))
            else:
                self.record(self._named[entry["as"]] if "as" in entry else Event.from_dict(entry["event"]))

    def take_over(self, events: Iterable[tuple[Event, int]], conditions: Iterable[str]) -> None:
        """Record what another ledger holds beyond the events of this one: its events in order, and how often each in a row."""
        held, passed = self._total, 0
        for event, count in events:
            for _ in range(max(0, min(count, passed + count - held))):
                self.record(event)
            passed += count
        for fact in conditions:
            self.condition(fact)

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

    @property
    def used(self) -> bool:
        """Whether any recorded event uses the records: an assumption alone does not."""
        return any(True for _ in self.event.leaves())

    def __len__(self) -> int:
        """The number of recorded events."""
        return self._total

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._lines = -1

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
            self._file = Appender(path, "ledger", LedgerError, new=True, lost=_LOST)
        except FileExistsError:
            raise exists from None
        except OSError as error:
            raise LedgerError(f"The ledger {path} cannot be written {why_refused(error)}.") from None

    def _continue(self, path: Path, head: str | None) -> None:
        # The lock is taken before reading: otherwise lines that another process writes meanwhile would be overwritten.
        self._file = Appender(path, "ledger", LedgerError, lost=_LOST)
        assert self._file.file is not None
        self._file.continue_at(self._replay(self._file.file, head))

    def _write(self, entry: dict[str, Any]) -> None:
        head = chained(self._head, entry)
        if self._file is not None:
            try:
                self._file.append(line_of(entry, head))
            except LedgerError:
                # Nobody knows what reached the disk, so nothing may be appended after a possibly torn line.
                self.close()
                raise
        elif self.path is not None:
            raise LedgerError(f"The ledger {self.path} is closed.")
        self._head = head
        self._lines += 1

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

    def _replay(self, file: IO[bytes], expected: str | None) -> int:
        """Read the lines of a file; returns the length of its valid part."""
        self._head, self._lines = "", 0
        good, head, met = 0, b"", expected is None
        wanted = expected.encode() if expected is not None else b""
        repeats: dict[bytes, tuple[Event, bytes]] = {}
        for line in iter(partial(file.readline, _LONGEST), b""):
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
            entry, self._head = entry_of(line, head)
        except NotAnEntry:
            if number > 0 and not line.endswith(b"\n"):
                return False
            raise damaged from None
        except BrokenChain:
            raise self._edited() from None
        try:
            self._take(entry, number)
        except (LedgerError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise error if isinstance(error, LedgerError) else damaged from None
        except ValueError as error:
            raise LedgerError(f"Line {number + 1} of the ledger {self.path} is not valid: {error}") from None
        return True

    def _edited(self) -> LedgerError:
        return LedgerError(f"The ledger {self.path} was edited: the running hash breaks at line {self._lines + 1}.")

    def _take(self, entry: dict[str, Any], number: int) -> None:
        if number == 0:
            if entry.get("ledger") != _FORMAT:
                raise LedgerError(f"{self.path} is not a ledger of format {_FORMAT}.")
            self.relation, self.unit = Relation.of(entry["relation"]), entry["unit"]
            if not isinstance(self.unit, str) or not 0 < len(self.unit) < 200:
                raise KeyError
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


class Draft(Ledger):
    """A ledger in memory that continues another one without changing it; made by `Ledger.draft`.

    Attributes:
        before: the head of the other ledger.
        entries: what was recorded since, as plain data.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.before = ledger.head
        self.entries: list[dict[str, Any]] = []
        super().__init__(relation=ledger.relation, unit=ledger.unit)
        self.entries.clear()  # the first line, which the other ledger has
        self.conditions = ledger.conditions
        self._events, self._counts = list(ledger._events), list(ledger._counts)
        self._first_line, self._named = dict(ledger._first_line), dict(ledger._named)
        self._total, self._lines, self._event = ledger._total, ledger._lines, ledger._event
        self._head = ledger.head

    def _write(self, entry: dict[str, Any]) -> None:
        super()._write(entry)
        self.entries.append(entry)
