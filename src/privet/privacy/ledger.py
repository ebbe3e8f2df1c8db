"""The append-only record of what was done to the data; every epsilon is computed from it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from privet.errors import InputError, PrivetError
from privet.privacy.accountants import Accountant, accountant_named
from privet.privacy.events import Event, Nothing, composed
from privet.privacy.guarantees import Guarantee
from privet.privacy.relations import Relation
from privet.privacy.spent import Spent

_FORMAT = 1


class LedgerError(PrivetError):
    """A ledger file cannot be trusted or cannot be written."""


class Ledger:
    """The events of one run, in memory or in a file of JSON lines.

    Formal guarantees: when `record` returns, the event is on the disk (fsync), so a run that records a step before it
    uses the step's noise never shows less than was used, whenever it is killed. Each line carries a running hash:
    an edited, reordered or removed line in the middle is refused. A last line that was being written when the
    process died is recognised and dropped: `record` had not returned, so its noise was never used.
    The hash holds no secret: it shows accidents and careless edits; against a forger, and against lines cut off at the
    end, keep `head` somewhere else (a checkpoint, a privacy card) and give it to `open`.
    """

    def __init__(
        self, path: str | Path | None = None, *, relation: Relation | str = Relation.ADD_REMOVE, unit: str = "record"
    ) -> None:
        """Start an empty ledger; with `path`, in a new file (an existing one is never overwritten: use `open`)."""
        self.relation = Relation.of(relation)
        self.unit = unit
        self.path = Path(path) if path is not None else None
        self.torn = False
        self.conditions: tuple[str, ...] = ()
        """What the statement takes as public; see `condition`."""
        self._runs: list[tuple[Event, int]] = []
        self._lines = 0
        self._first_line: dict[Event, int] = {}
        self._named: dict[int, Event] = {}
        self._event: Event | None = Nothing()
        self._file: IO[bytes] | None = None
        self._head = ""
        header = {"ledger": _FORMAT, "relation": self.relation.value, "unit": unit}
        if self.path is not None:
            try:
                self._file = self.path.open("xb")
            except FileExistsError:
                raise InputError(f"{self.path} exists already; continue it with Ledger.open.") from None
            except OSError as error:
                raise LedgerError(f"The ledger {self.path} cannot be written: {error.strerror}.") from None
            _lock(self._file, self.path)
        self._write(header)
        if self.path is not None:
            _sync_folder(self.path.parent)

    @classmethod
    def open(cls, path: str | Path, *, head: str | None = None, read_only: bool = False) -> Ledger:
        """Read a ledger file, check its running hash, and go on appending to it (unless `read_only`).

        Args:
            path: the file.
            head: the head that is expected to be in it: refuses a file from which lines were cut.
            read_only: `record` raises, and the file is left as it is.
        """
        ledger = cls()
        ledger.path = Path(path)
        try:
            content = ledger.path.read_bytes()
        except OSError as error:
            raise InputError(f"The ledger {path} cannot be read: {error.strerror}.") from None
        good = ledger._replay(content, head)
        if read_only:
            ledger._lines = -1
            return ledger
        ledger._file = ledger.path.open("r+b")
        _lock(ledger._file, ledger.path)
        if good < len(content):
            ledger._file.truncate(good)
        ledger._file.seek(good)
        if good and content[good - 1 : good] != b"\n":
            ledger._append(b"\n")
        return ledger

    def record(self, event: Event, count: int = 1) -> None:
        """Append `event`, `count` times; returns when it is on the disk."""
        if not isinstance(event, Event):
            raise InputError(f"A ledger holds events, and this is a {type(event).__name__}.")
        if self._lines < 0:
            raise LedgerError(f"The ledger {self.path} was opened for reading only.")
        event = event * count
        if isinstance(event, Nothing):
            return
        known = self._first_line.get(event)
        self._write({"event": event.to_dict()} if known is None else {"as": known})
        self._note(event)

    def require_unit(self, unit: str) -> None:
        """Raise unless the ledger counts what is done to a `unit`: what a record costs bounds nothing of a user who holds
        several, and only what knows of users may be charged to them."""
        counts_users = self.unit != "record" and not self.unit.startswith("record ")
        if counts_users != (unit == "user"):
            way = "say whose each example is" if counts_users else "start it with unit='user'"
            raise InputError(f"The ledger counts what is done to a {self.unit}, and this protects a {unit}: {way}.")

    def condition(self, fact: str) -> None:
        """Write down, once, a fact that the statement takes as public; every `spent` names it."""
        if fact in self.conditions:
            return
        if self._lines < 0:
            raise LedgerError(f"The ledger {self.path} was opened for reading only.")
        self._write({"condition": fact})
        self.conditions += (fact,)

    def size_is_public(self) -> None:
        """Write down that steps, rate or divisor follow from the true number of records.

        Between neighbors that replace one record that number is no secret: then there is nothing to write.
        """
        if self.relation is Relation.ADD_REMOVE:
            self.condition(f"the number of {self.unit}s is public")

    @property
    def event(self) -> Event:
        """Everything that was recorded, as one event."""
        if self._event is None:
            self._event = composed(*(event * count for event, count in self._runs))
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
        """What the recorded events cost at `delta`, with everything that must travel with it."""
        interpreter = accountant_named(accountant)
        found = interpreter.spent(self.event, delta, self.relation, unit=self.unit)
        return replace(found, conditions=self.conditions)

    def __iter__(self) -> Iterator[tuple[Event, int]]:
        """The recorded events in order, runs of equal ones counted."""
        return iter(self._runs)

    def __len__(self) -> int:
        """How many events were recorded."""
        return sum(count for _, count in self._runs)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._lines = -1

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _note(self, event: Event) -> None:
        # A repeated event is named by the line on which it first stood: a run of 10^5 steps stays a small file.
        line = self._first_line.setdefault(event, self._lines - 1)
        self._named.setdefault(line, event)
        if self._runs and self._runs[-1][0] == event:
            self._runs[-1] = (event, self._runs[-1][1] + 1)
        else:
            self._runs.append((event, 1))
        self._event = None

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
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            # What reached the disk is unknown now: nothing may be appended behind a possibly torn line.
            self.close()
            raise LedgerError(f"The ledger {self.path} cannot be written: {error.strerror}.") from None

    def _replay(self, content: bytes, head: str | None) -> int:
        """Take in the lines of a file; returns the length of its good part."""
        self._head, self._lines = "", 0
        good, heads = 0, set()
        lines = content.splitlines(keepends=True)
        if b"\n" not in content:
            raise LedgerError(
                f"Nothing was recorded in {self.path}: its first line is not whole. Delete it and start anew."
            )
        for number, line in enumerate(lines):
            try:
                entry = json.loads(line)
                claimed = entry.pop("hash")
            except (ValueError, KeyError, AttributeError, TypeError):
                if number == len(lines) - 1 and number > 0 and not line.endswith(b"\n"):
                    self.torn = True
                    break
                raise LedgerError(f"Line {number + 1} of the ledger {self.path} is not an entry of a ledger.") from None
            if claimed != _chain(self._head, entry):
                raise LedgerError(f"The ledger {self.path} was edited: the running hash breaks at line {number + 1}.")
            self._head = claimed
            try:
                self._take(entry, number)
            except (KeyError, TypeError):
                raise LedgerError(f"Line {number + 1} of the ledger {self.path} is not an entry of a ledger.") from None
            heads.add(claimed)
            good += len(line)
        if head is not None and head not in heads:
            raise LedgerError(f"Lines were removed from the ledger {self.path}: the expected head is not in it.")
        return good

    def _take(self, entry: dict[str, Any], number: int) -> None:
        if number == 0:
            if entry.get("ledger") != _FORMAT:
                raise LedgerError(f"{self.path} is not a ledger of format {_FORMAT}.")
            self.relation, self.unit = Relation.of(entry["relation"]), entry["unit"]
            self._lines = 1
            return
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


def _lock(file: IO[bytes], path: Path) -> None:
    """Two processes that append to one ledger would break its chain."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise LedgerError(f"The ledger {path} is being written by another process.") from None


def _sync_folder(folder: Path) -> None:
    """A new file survives a crash only once its folder's entry is on the disk too."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)
