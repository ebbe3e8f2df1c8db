"""The account of a data set: the spending of all runs on it, in one append-only file outside the run folders.

`check_account` compares it with a line kept elsewhere and with the run folders that are still there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from privet.errors import InputError, PrivetError, PrivetWarning
from privet.io import Lock, from_json, kind_of, read_text, user_path, why_refused, write_whole
from privet.io.chained import Appender, BrokenChain, NotAnEntry, chained, entry_of, line_of
from privet.io.names import ACCOUNT, LEDGER, accounts_folder, seen_folder
from privet.privacy.account_books import FORMAT, AccountStanding, Books, RunOnAccount, one_line, percent
from privet.privacy.events import Event
from privet.privacy.guarantees import (
    Assumed,
    Guarantee,
    Proved,
    Relation,
    guarantee_to_dict,
)
from privet.privacy.ledger import Ledger
from privet.privacy.price import Price, Total

STUB = "account.json"
"""The file in a run folder that says on which account the run is."""
BINDING = ".privet-account"
"""The file in a folder of data that says on which account runs on these data are."""
BY_HAND = "what was charged by hand was as stated"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HEAD = re.compile(r"privet-account ([A-Za-z0-9._-]+) ([0-9a-f]{32}) line (\d{1,9}) ([0-9a-f]{64})( .*)?")
_CHUNK = 0.01
"""The share of its plan or its use that a run draws in advance, so that not every step is a line of the account."""

Writer = Callable[[dict[str, Any]], None]
"""Appends an entry to an account; returns when it is on the disk."""


class AccountError(PrivetError):
    """An account cannot be trusted or cannot be written."""


class OlderCopyError(AccountError):
    """The account's file is not the newest: an older copy was put back, or two copies went on separately."""


class AccountExhausted(PrivetError):  # noqa: N818 - a name that reads as what happened
    """The account of the data set has too little left. Nothing was done."""


# --- where accounts are -----------------------------------------------------------------------------------------------


def account_path(named: str | Path) -> Path:
    """The file of an account that is given by name or by path."""
    text = str(named)
    if isinstance(named, Path) or "/" in text or os.sep in text or text.endswith(ACCOUNT):
        return user_path(text)
    if not _NAME.fullmatch(text):
        raise InputError(
            f"{one_line(text)!r} is no name for an account: use at most 64 letters, digits, dots, hyphens and underscores, or "
            f"give the path of a file that ends with {ACCOUNT}."
        )
    return accounts_folder() / f"{text}{ACCOUNT}"


def bound_account(data: Path) -> str | None:
    """The account to which a data file or a folder of data is bound; or None.

    The file `.privet-account` in its folder names it, or the one in the nearest folder above. A link is bound as what it points
    to is. Two that differ are refused.
    """
    named: dict[Path, tuple[Path, str]] = {}
    for place in dict.fromkeys((data.absolute(), data.resolve())):
        folder = place if place.is_dir() else place.parent
        holder = next((each for each in (folder, *folder.parents) if os.path.lexists(each / BINDING)), None)
        if holder is not None:
            found = _read_binding(holder)
            named.setdefault(account_path(found).resolve(), (holder, found))
    if len(named) > 1:
        said = " and ".join(f"{found} ({holder / BINDING})" for holder, found in named.values())
        raise InputError(f"{data} is on two accounts, {said}: give the file itself instead of a link.")
    return next((found for _, found in named.values()), None)


def _read_binding(folder: Path) -> str:
    path = folder / BINDING
    try:
        found = read_text(path, _TAIL).strip()
    except InputError as error:
        raise InputError(f"The file that names the account of these data cannot be read: {error}") from None
    if not found or "\n" in found or found != one_line(found, 1000):
        raise InputError(f"{path} must hold one line, the name or the path of an account.")
    return str(folder / found) if "/" in found and not Path(found).expanduser().is_absolute() else found


def bind(data: Path, account: DataAccount, named: str) -> Path:
    """Bind the data in a folder to an account: runs on them then use it by default."""
    folder = data if data.is_dir() else data.parent
    held = bound_account(data)
    if held is not None and account_path(held).resolve() != account.path.resolve():
        raise InputError(f"The data in {folder} are bound to the account {held} already: see {folder / BINDING}.")
    text = named if named == account_path(named).stem else str(account.path.resolve())
    return write_whole(folder / BINDING, f"{text}\n".encode(), mode=0o644)


# --- the account ------------------------------------------------------------------------------------------------------


class DataAccount:
    """The account of a data set: opened once with a total, charged before a run uses a record.

        account = DataAccount.create("patients", epsilon=8, delta=1e-6)
        run = account.begin("a model", ledger=ledger)     # from here on, each event of the ledger is paid before it is recorded
        ...
        run.close(ended=True)

    The user gives the account its name and uses it for every run on these data, also after records were added or changed, and
    for every copy of them.

    Formal guarantees: what a run uses was drawn from the account before, on the disk, whether the run ends, is killed, is deleted
    or is continued in two copies of its folder; so the account never shows less than was used. All releases on the account
    are together within the total, however each was chosen after the earlier ones (`privet.privacy.price.Total`). Given back
    is only what the process that drew it did not use. Any number of processes may use the account at the same time.

    Each line carries a running hash of everything before it. It does not stop anybody from putting an older file back,
    from going on with two copies, or from writing the whole file anew. This machine therefore keeps a copy of the
    newest state that it has seen (`seen_folder`), each run folder keeps the hash that it saw, and `head_line` prints one line to
    sign or to keep elsewhere: a file that does not hold them is refused.
    """

    def __init__(self, path: Path) -> None:
        """Use `create` or `open`."""
        self.path = path
        self.books = Books()
        self._size = 0
        self._last = b""
        """The last line that was read: if it is still where it was, so is everything before it."""
        self._ended = True
        """Whether that line has its end in the file; the next writer adds it."""
        self._warned = False

    @classmethod
    def create(
        cls,
        named: str | Path,
        epsilon: float,
        delta: float,
        relation: Relation | str = Relation.ADD_REMOVE,
        unit: str = "record",
        *,
        note: str = "",
        stated_share: float | None = None,
    ) -> DataAccount:
        """Open a new account. The total can never be changed: every statement on the account depends on it.

        Args:
            named: its name, or the path of its file.
            epsilon, delta, relation, unit: the total of all runs on the data.
            note: what the data are, for those who read the account.
            stated_share: the share of delta that is kept for charges that state only epsilon and delta.
        """
        path = account_path(named)
        more = {} if stated_share is None else {"stated_share": stated_share}
        total = Total.of(epsilon, delta, relation, unit, **more)
        if path.exists():
            raise InputError(f"There is an account {path} already. An account is opened once.")
        if not _NAME.fullmatch(path.stem):
            raise InputError(
                f"{path.name} is no name for an account: use letters, digits, dots, hyphens and underscores."
            )
        if (lost := _seen_at(path)) is not None:
            raise AccountError(
                f"There was an account at {path}, which is gone; this machine still has a copy of it ({lost}). Put it back with "
                f"`privet budget recover {one_line(str(named))}`, or choose another name."
            )
        account = cls(path)
        entry = {
            "account": FORMAT,
            "id": secrets.token_hex(16),
            "name": path.stem,
            "date": _now(),
            "note": one_line(note),
            "epsilon": total.epsilon,
            "delta": total.delta,
            "relation": total.relation.value,
            "unit": total.unit,
            "orders": list(total.orders),
            "limits": list(total.limits),
            "stated": total.stated,
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Whole or not at all: a file whose first line is torn would be no account and could not be opened again.
            with _creating(path):
                write_whole(path, line_of(entry, chained("", entry)))
                refused = account._first_seen()
                if refused:  # nobody has used it yet
                    path.unlink()
                    with suppress(OSError):
                        _seen(account.books.id).unlink(missing_ok=True)
                    raise AccountError(f"The account {path} was not opened: {refused}.")
        except OSError as error:
            raise AccountError(f"The account {path} cannot be written {why_refused(error)}.") from None
        return account

    @classmethod
    def open(cls, named: str | Path, *, head: str | None = None) -> DataAccount:
        """Read an account and check its running hash.

        Args:
            named: its name, or the path of its file.
            head: a line of `head_line` that was kept elsewhere; an account that does not hold it is refused.
        """
        account = cls(account_path(named))
        account.refresh()
        if head is not None:
            account.check_head(head)
        return account

    def refresh(self) -> Books:
        """Read what others have written since. The file is only read."""
        try:
            if self.path.exists() and kind_of(self.path) == "folder":
                raise InputError(
                    f"{self.path} is a folder, and an account is a file: give its name, or the path of its file."
                )
            with self.path.open("rb") as file:
                self._catch_up(file)
        except OSError as error:
            raise self._missing(error) from None
        return self.books

    @property
    def head_line(self) -> str:
        """One line that names the account's newest state, to sign or to keep elsewhere."""
        books = self.books
        return f"privet-account {books.name} {books.id} line {books.lines} {books.head} {books.last}"

    def check_head(self, line: str) -> int:
        """Check that the account holds the state of a line of `head_line`; returns how many lines were added since."""
        found = _HEAD.fullmatch(" ".join(line.split()))
        if found is None:
            raise InputError("This is not a line of `privet budget show NAME --head`: it begins with privet-account.")
        if found[2] != self.books.id:
            raise AccountError(f"The line belongs to the account {found[1]} ({found[2]}), and not to {self.path}.")
        number = int(found[3])
        if not 0 < number <= self.books.lines or self.books.heads[number - 1] != found[4]:
            raise self._older(f"the line that was kept (line {number} of {one_line(found[5] or 'an unknown date')})")
        return self.books.lines - number

    def standing(self) -> AccountStanding:
        """Where the account stands."""
        return self.books.standing()

    # --- spending -------------------------------------------------------------------------------------------------

    def begin(
        self, what: str, *, folder: Path | None = None, ledger: Ledger | None = None, plan: Event | None = None
    ) -> AccountedRun:
        """Begin a run, or resume the one in `folder`; from now on the account pays for each event of the ledger.

        Args:
            what: a short description of the run.
            folder: the folder of the run; a resumed run is recognized by the file `account.json` in it.
            ledger: the run's ledger; unpaid events in it are charged now.
            plan: everything that the run will still do, which is reserved now.

        Raises `AccountExhausted`, and nothing is reserved, if that is more than the account has left.
        """
        return self._begin(what, folder, ledger, plan)

    def _begin(
        self, what: str, folder: Path | None, ledger: Ledger | None, plan: Event | None, *, happened: bool = False
    ) -> AccountedRun:
        total = self.books.total
        if ledger is not None and ledger.unit != total.unit:
            raise InputError(
                f"The account {self.books.name} counts what is done to a {total.unit}, but this run protects a {ledger.unit}: "
                f"use an account that was opened for that unit."
            )
        if ledger is not None and isinstance(ledger.payer, AccountedRun):
            raise InputError("The ledger is on an account already.")
        stub = read_stub(folder) if folder is not None else None
        held = total.price(ledger.event) if ledger is not None else total.free
        wanted = total.price(plan) if plan is not None else total.free
        with self._writing() as write:
            key = self._known(stub, folder) if stub is not None else secrets.token_hex(8)
            run = self.books.runs.get(key)
            # Unpaid events in a ledger have already happened, so they are charged even if they exceed the total.
            unpaid = held - run.drawn if run is not None else held
            more = wanted - run.reserved if run is not None else wanted
            fits = total.fits(self.books.used + self.books.reserved + unpaid + more)
            refused = None if fits or happened else self._exhausted("this run", wanted)
            if refused is not None and unpaid.is_free:
                raise refused
            made = AccountedRun(self, key, folder, ledger)
            # Before the line, so that a run that is killed between the two is recognized when it is resumed.
            made.write_stub(begun=run is not None)
            where = str(folder.resolve()) if folder is not None else ""
            write({"begin": key, "session": made.session, "what": one_line(what), "folder": where})
            if not unpaid.is_free:
                made.draw(write, unpaid, unpaid)
            if fits and not more.is_free:
                write({"reserve": key, "price": more.to_list()})
            made.write_stub()
        made.begun(unpaid, wanted)
        if refused is not None:
            made.close()
            raise refused
        return made

    def adopt(self, folder: Path, what: str = "") -> RunOnAccount:
        """Charge a run that was made without the account, from its ledger; it is on the account from here on."""
        stub = read_stub(folder)
        if stub is not None and stub["account"] == self.books.id:
            raise InputError(f"The run in {folder} is on the account {self.books.name} already.")
        ledger = Ledger.open(folder / LEDGER, read_only=True)
        what = what or f"the run in {folder.resolve().name}, made without the account"
        made = self._begin(what, folder, ledger, None, happened=True)
        made.close(ended=True)
        return made.run

    def charge(self, price: Price, note: str, *, happened: bool = False, guarantee: Guarantee | None = None) -> None:
        """Enter spending that was made outside Privet.

        Args:
            price: as `books.total.price` or `books.total.stated_price` gives it.
            note: who spent it, and on what.
            happened: it was already spent, so it is entered even if it exceeds the total; otherwise that raises.
            guarantee: how well the price is founded; by default the total then assumes that it was as stated.
        """
        if not one_line(note):
            raise InputError("Say in a note who spent it, and on what.")
        with self._writing() as write:
            if not happened and not self.books.total.fits(self.books.used + self.books.reserved + price):
                raise self._exhausted("this", price)
            founded = Assumed(BY_HAND) if guarantee is None else guarantee
            write({"charge": one_line(note), "price": price.to_list(), "guarantee": guarantee_to_dict(founded)})

    def notice(self) -> None:
        """Bring the newest state that this machine has seen up to date."""
        with self._writing():
            pass

    @property
    def unseen(self) -> str:
        """Why this machine would not notice that an older file was put back, as a sentence; empty if it would."""
        _, size = _last_line(_seen(self.books.id))
        if size >= self._size:
            return ""
        what = "only an older copy" if size else "no copy"
        return (
            f"This machine has {what} of the account {self.books.name} in {seen_folder()}, so that it would not notice if an "
            f"older file was put back: it makes one when it next writes to the account. Keep a line of `budget show --head`"
        )

    def settle(self, key: str, note: str = "") -> RunOnAccount:
        """Give up a stopped run: what it drew stays charged, and its reservation is released.

        A process that is still running, or a resumed copy of the run's folder, draws from the rest of the account.
        """
        with self._writing() as write:
            run = self.find(key)
            if run.how:
                raise InputError(f"The run {run.key} has {run.how}: there is nothing to settle.")
            write({"settle": run.key, "how": "abandoned", "note": one_line(note)})
        return self.books.runs[run.key]

    def find(self, key: str) -> RunOnAccount:
        """A run by its key or the beginning of it, or by its folder."""
        if not key:
            raise InputError("Name a run by its key or by its folder.")
        folder = Path(key)
        stub = read_stub(folder) if folder.is_dir() else None
        if stub is not None and self._known(stub, folder) in self.books.runs:
            return self.books.runs[str(stub["run"])]
        found = [run for run in self.books.runs.values() if run.key.startswith(key)]
        found = found or [run for run in self.books.runs.values() if run.folder == str(folder.resolve())]
        if len(found) != 1:
            why = "several runs begin with" if found else "there is no run"
            raise InputError(
                f"On the account {self.books.name} {why} {one_line(key)!r}: `privet budget show` lists them."
            )
        return found[0]

    def require_room(self, epsilon: float, delta: float, relation: Relation | str) -> None:
        """Raise if a run that spends (epsilon, delta) cannot fit, as far as that is known without its plan."""
        books = self.refresh()
        used = books.used + books.reserved
        least = books.total.at_least(0.99 * epsilon, delta) if books.total.relation is Relation.of(relation) else None
        if not books.total.fits(used) or (least is not None and not books.total.fits(used + least)):
            raise self._exhausted(f"a run of epsilon = {epsilon:g} at delta = {delta:g}", least or books.total.free)

    def _known(self, stub: Mapping[str, Any], folder: Path | None) -> str:
        """The run of a folder, after checking that this account is the one that it knows."""
        if stub["account"] != self.books.id:
            raise InputError(
                f"The run in {folder} is on another account ({one_line(stub['name'])}, {one_line(stub['file'])}): continue it "
                f"with that one."
            )
        line, head = stub["line"], stub["head"]
        there = 0 < line <= self.books.lines and self.books.heads[line - 1] == head
        if not there or (stub["begun"] and stub["run"] not in self.books.runs):
            raise self._older(f"what the run in {folder} wrote to it")
        return str(stub["run"])

    def _exhausted(self, what: str, price: Price) -> AccountExhausted:
        books = self.books
        used = books.used + books.reserved
        share, needed = books.total.share(used), books.total.share(price)
        reserved = " (a part of it only reserved, for runs that have not ended)" if not books.reserved.is_free else ""
        room = books.total.room(used)
        way = "There is no room for another run"
        if room > 0.01:
            way = f"There is room for a Gaussian release of epsilon = {room:.2g}, and for less if steps are sampled"
        needs = f"{percent(needed)} of the total" if needed else "more"
        return AccountExhausted(
            f"The account {books.name} has not enough left for {what}: {percent(share)} of its total of epsilon = "
            f"{books.total.epsilon:g} at delta = {books.total.delta:g} is used{reserved}, and this needs {needs}. {way}."
        )

    # --- the file -------------------------------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[Writer]:
        """Lock the file, read what others wrote, and give a function that appends an entry durably."""
        try:
            appender = Appender(self.path, "account", AccountError, wait=True)
        except OSError as error:
            raise self._missing(error) from None
        try:
            assert appender.file is not None
            self._catch_up(appender.file)
            appender.continue_at(self._size if self._ended else self._size - 1)
            self._ended = True
            self._note_seen(appender.file)

            def write(entry: dict[str, Any]) -> None:
                entry = {**entry, "date": _now()}
                head = chained(self.books.head, entry)
                line = line_of(entry, head)
                appender.append(line)
                self.books.take(entry, head)
                self._size, self._last = self._size + len(line), line
                assert appender.file is not None
                self._note_seen(appender.file)
                appender.file.seek(self._size)

            appender.file.seek(self._size)
            yield write
        finally:
            appender.close()

    def _catch_up(self, file: IO[bytes]) -> None:
        """Read the lines behind those that are known; a torn last line is left out."""
        if self._size:
            file.seek(self._size - len(self._last))
            found = file.read(len(self._last))
            self._ended = self._ended or found == self._last
            if found != (self._last if self._ended else self._last[:-1]):
                raise self._older("what this process wrote and read before")
        file.seek(self._size)
        for line in file:
            try:
                entry, head = entry_of(line, self.books.head)
                self.books.take(entry, head)
            except NotAnEntry:
                if self.books.lines and not line.endswith(b"\n"):
                    break  # the process died while it wrote this line, so nobody used what the line would have granted
                raise self._damaged() from None
            except BrokenChain:
                raise AccountError(
                    f"The account {self.path} was edited: the running hash breaks at line {self.books.lines + 1}. Put back a "
                    "copy with `privet budget recover`, or from a backup."
                ) from None
            except (KeyError, TypeError, ValueError, AttributeError):
                raise self._damaged() from None
            if not line.endswith(b"\n"):
                line, self._ended = line + b"\n", False
            self._size, self._last = self._size + len(line), line
        if not self.books.lines:
            raise self._damaged()
        self._check_seen(file)

    def _damaged(self) -> AccountError:
        return AccountError(
            f"Line {self.books.lines + 1} of {self.path} is not an entry of an account of format {FORMAT}."
        )

    def _missing(self, error: OSError) -> PrivetError:
        if not self.path.exists():
            return InputError(
                f"There is no account {self.path}: open one with `privet budget open`; give its path if it was moved; if it is "
                f"lost, see `privet budget recover`."
            )
        return AccountError(f"The account {self.path} cannot be used {why_refused(error)}.")

    def _older(self, what: str) -> OlderCopyError:
        return OlderCopyError(
            f"The account {self.path} does not hold {what}: an older copy was put back, or two copies of it went on separately. "
            f"Put back the newest one, or count both with `privet budget recover`."
        )

    # --- the newest state that this machine has seen ----------------------------------------------------------------

    def _check_seen(self, file: IO[bytes]) -> None:
        """Raise unless the file begins with everything that this machine has seen of the account."""
        line, size = _last_line(_seen(self.books.id))
        if not size:
            return
        file.seek(size - len(line))
        if size > self._size or file.read(len(line)).rstrip(b"\n") != line.rstrip(b"\n"):
            raise self._older("what this machine has seen of it")

    def _first_seen(self) -> str:
        """Keep this machine's copy of an account that was just written; returns why that cannot be, if it cannot."""
        try:
            with self.path.open("rb") as file:
                self._catch_up(file)
                self._copy_seen(file)
        except OSError as error:
            return _not_kept(error)
        return ""

    def _note_seen(self, file: IO[bytes]) -> None:
        """Bring this machine's copy up to date. A run goes on where that cannot be, and says so once."""
        try:
            self._copy_seen(file)
        except OSError as error:
            if not self._warned:
                self._warned = True
                said = _not_kept(error)
                warnings.warn(f"{said[0].upper()}{said[1:]}. The account itself is kept.", PrivetWarning, stacklevel=4)

    def _copy_seen(self, file: IO[bytes]) -> None:
        path = _seen(self.books.id)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = Lock(path.with_name(f"{path.name}.lock"), wait=True)
        try:
            self._check_seen(file)  # another copy of the account on this machine may have written meanwhile
            _, size = _last_line(path)
            file.seek(size)
            with path.open("r+b" if path.exists() else "xb") as copy:
                copy.truncate(size)
                copy.seek(size)
                copy.write(file.read(self._size - size))
            if not size:
                path.chmod(0o600)
                write_whole(_where(path), str(self.path.resolve()).encode())
        finally:
            lock.release()


def _not_kept(error: OSError) -> str:
    return (
        f"this machine cannot keep a copy of the account in {seen_folder()} ({error.strerror or error}), and without it nobody "
        f"notices that an older file was put back. Make room there, or name another folder with PRIVET_STATE"
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def _creating(path: Path) -> Iterator[None]:
    """Hold the account's lock while it is created, so that two processes do not both create it."""
    lock = Lock(path.resolve().with_name(f"{path.name}.lock"), wait=True)
    try:
        if path.exists():
            raise InputError(f"There is an account {path} already. An account is opened once.")
        yield
    finally:
        lock.release()


def _seen(key: str) -> Path:
    return seen_folder() / f"{key}{ACCOUNT}"


def _where(copy: Path) -> Path:
    return copy.with_suffix(".where")


def _seen_at(path: Path) -> Path | None:
    """This machine's copy of the account that was at `path`; None if there was none."""
    for where in sorted(seen_folder().glob("*.where")):
        with suppress(OSError):
            if where.read_text(encoding="utf-8", errors="replace") == str(path.resolve()):
                return where.with_suffix(ACCOUNT)
    return None


def _last_line(path: Path) -> tuple[bytes, int]:
    """The last whole line of a file, and where it ends; nothing if there is no such file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = max(0, size - _TAIL)
            file.seek(begin)
            content = file.read()
    except OSError:
        return b"", 0
    end = content.rfind(b"\n") + 1
    return content[content.rfind(b"\n", 0, max(0, end - 1)) + 1 : end], begin + end if end else 0


_TAIL = 2**16
"""The last line of an account is shorter than this."""


def recover(named: str | Path, other: Path | None = None) -> tuple[DataAccount, str]:
    """Mend an account whose file is lost or not the newest; returns it, and what was done.

    `other` is another copy of the account; by default the newest state that this machine has seen. Lines that the account
    lacks are put back. If both went on separately, everything in the other copy that the account does not hold is charged.
    """
    path = account_path(named)
    copy = other or _seen_at(path)
    if copy is None and path.is_file():
        copy = _seen(_read_id(path))
    if copy is None or not copy.is_file():
        raise InputError(
            f"This machine has no copy of the account {path}: give one with --from. If there is none, open a new account, and "
            f"enter the runs whose folders are left with `privet budget charge NAME --run FOLDER`."
        )
    lines = _whole_lines(copy.read_bytes())
    theirs = _books_of(lines, copy)
    kept = _set_aside(path) if path.is_file() else ""
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _creating(path):
                write_whole(path, b"".join(lines))
        except OSError as error:
            raise AccountError(f"The account {path} cannot be written {why_refused(error)}.") from None
        return DataAccount.open(path), f"The account was put back from {copy}, with {theirs.lines} lines.{kept}"
    appender = Appender(path, "account", AccountError, wait=True)
    try:
        assert appender.file is not None
        own = _whole_lines(appender.file.read())
        ours = _books_of(own, path)
        if ours.id != theirs.id:
            raise InputError(f"{copy} is a copy of another account ({theirs.name}), and not of {path}.")
        common = next(
            (n for n, pair in enumerate(zip(ours.heads, theirs.heads, strict=False)) if pair[0] != pair[1]), None
        )
        common = min(ours.lines, theirs.lines) if common is None else common
        appender.continue_at(sum(map(len, own)))
        if common == theirs.lines:
            said = f"The account holds everything that {copy} holds: nothing was changed."
        elif common == ours.lines:
            for line in lines[common:]:
                appender.append(line)
            said = f"{theirs.lines - common} lines that the account lacked were put back from {copy}."
        else:
            missing = _grown(_books_of(own[:common], path), theirs)
            note = f"{theirs.lines - common} lines of a copy that went on separately after line {common}"
            entry = {"charge": note, "price": missing.to_list(), "date": _now()} | _inherited(theirs)
            appender.append(line_of(entry, chained(ours.head, entry)))
            said = f"The account and {copy} went on separately after line {common}: what the copy holds was charged."
    finally:
        appender.close()
    if other is None or _seen(theirs.id).exists():
        _seen(theirs.id).unlink(missing_ok=True)  # written anew below, from the mended account
        _where(_seen(theirs.id)).unlink(missing_ok=True)
    account = DataAccount(path)
    account.notice()
    return account, said + kept


def _set_aside(path: Path) -> str:
    """Keep the sound lines at the beginning of a damaged account, and all of it in a file beside; says so, if it was damaged."""
    appender = Appender(path, "account", AccountError, wait=True)
    try:
        assert appender.file is not None
        content = appender.file.read()
        books, sound, lines = Books(), 0, _whole_lines(content)
        for line in lines:
            try:
                books.take(*entry_of(line, books.head))
            except _NOT_SOUND:
                break
            sound += len(line)
        if lines and books.lines == len(lines):
            return ""
        mark = hashlib.sha256(content).hexdigest()[:8]
        aside = write_whole(path.with_name(f"{path.name}.damaged-{mark}"), content)
        if sound:
            appender.continue_at(sound)
        else:
            path.unlink()
    except OSError as error:
        raise AccountError(f"The account {path} cannot be written {why_refused(error)}.") from None
    finally:
        appender.close()
    return f" It was damaged at line {books.lines + 1}; what it was before is in {aside}."


def _whole_lines(content: bytes) -> list[bytes]:
    """The lines of an account; a last one that is torn is left out."""
    lines = content.splitlines(keepends=True)
    return lines[:-1] if lines and not lines[-1].endswith(b"\n") else lines


def _grown(before: Books, after: Books) -> Price:
    """Everything that was used or reserved in `after` and not yet in `before`."""
    return (after.used + after.reserved) - before.used


def _inherited(books: Books) -> dict[str, Any]:
    guarantee = books.guarantee
    found = {} if isinstance(guarantee, Proved) else {"guarantee": guarantee_to_dict(guarantee)}
    return found | ({"conditions": list(books.conditions)} if books.conditions else {})


_NOT_SOUND = (NotAnEntry, BrokenChain, KeyError, TypeError, ValueError, AttributeError)
"""The errors of a line that is damaged, edited, or none of an account."""


def _books_of(lines: list[bytes], path: Path) -> Books:
    books = Books()
    for line in lines:
        try:
            books.take(*entry_of(line, books.head))
        except _NOT_SOUND:
            raise AccountError(f"Line {books.lines + 1} of {path} is damaged: give another copy with --from.") from None
    if not books.lines:
        raise AccountError(f"{path} holds no account.")
    return books


def _read_id(path: Path) -> str:
    with path.open("rb") as file:
        return _books_of([file.readline()], path).id


# --- a run on the account -----------------------------------------------------------------------------------------------


class AccountedRun:
    """One process of a run, which pays from an account for each event before it is recorded (`privet.privacy.ledger.Payer`).

    It draws from the account in advance, in small parts. If the process is killed, the rest of its last part stays charged,
    because nobody can prove that it was not used.
    """

    def __init__(self, account: DataAccount, key: str, folder: Path | None, ledger: Ledger | None) -> None:
        """Use `DataAccount.begin`."""
        self.account, self.key, self.session = account, key, secrets.token_hex(8)
        self._folder, self._ledger = folder, ledger
        self._used = self._drawn = self._plan = account.books.total.free
        self._paid: tuple[Event, Price] | None = None
        """The last event and its price: most steps of a run cost the same."""
        self._open = True

    def begun(self, used: Price, plan: Price) -> None:
        """The run has begun on the account: pay for what its ledger records from here on."""
        self._used, self._plan = used, plan
        if self._ledger is not None:
            self._ledger.payer = self

    @property
    def run(self) -> RunOnAccount:
        """The run as the account sees it."""
        return self.account.books.runs[self.key]

    def reserve(self, event: Event) -> None:
        """Reserve what `event` will cost, unless as much is reserved for the run already.

        Raises `AccountExhausted` if the account has not enough left.
        """
        self._require_open()
        price = self._price(event)
        if (self.run.reserved + (self._drawn - self._used)).covers(price):
            return
        with self.account._writing() as write:
            books = self.account.books
            more = price - (self.run.reserved + (self._drawn - self._used))
            if not more.is_free:
                if not books.total.fits(books.used + books.reserved + more):
                    raise self.account._exhausted("this run", price)
                write({"reserve": self.key, "price": more.to_list()})
        self._plan |= price

    def pay(self, event: Event) -> None:
        """Pay for an event. Raises `AccountExhausted` if the account has not enough left."""
        self._require_open()
        wanted = self._used + self._price(event)
        if not self._drawn.covers(wanted) or self._unsaid(event):
            with self.account._writing() as write:
                need = wanted - self._drawn
                self.draw(write, need, need | (self._plan | self._used).scaled(_CHUNK), event)
        self._used = wanted

    def close(self, *, ended: bool = False) -> None:
        """Return the unused part of what this process drew. If the run `ended`, nothing stays reserved for it."""
        if not self._open:
            return
        self._open = False
        if self._ledger is not None and self._ledger.payer is self:
            self._ledger.payer = _Closed()
        with self.account._writing() as write:
            rest = self._drawn - self._used
            entry = {"close": self.key, "session": self.session, "price": rest.to_list()}
            write(entry | {"how": "ended" if ended else ""} | self._unsaid(None))
        self.write_stub()

    def draw(self, write: Writer, need: Price, wanted: Price, event: Event | None = None) -> None:
        """Draw `wanted`, or only what is needed now if less is left."""
        books, run = self.account.books, self.run
        for price in (wanted, need):
            # A run may draw its own reservation as long as the total is kept, even if a later charge for earlier spending has
            # used
            # the reservations of others. Anything beyond its reservation must leave those of others untouched.
            others = books.reserved - run.reserved
            fits = books.total.fits(books.used + price) and (
                run.reserved.covers(price) or books.total.fits(books.used + price + others)
            )
            if event is None or fits:
                facts = self._unsaid(event)
                write({"draw": self.key, "session": self.session, "price": price.to_list()} | facts)
                self._drawn += price
                return
        raise self.account._exhausted("the next step of this run", need)

    def write_stub(self, *, begun: bool = True) -> None:
        """Note in the run folder which account pays, and the newest state of it."""
        if self._folder is None or not self._folder.is_dir():
            return
        books = self.account.books
        facts = {
            "account": books.id,
            "name": books.name,
            "file": str(self.account.path.resolve()),
            "run": self.key,
            "begun": begun,
            "line": books.lines,
            "head": books.head,
        }
        write_whole(self._folder / STUB, f"{json.dumps(facts, indent=1)}\n".encode())

    def _unsaid(self, event: Event | None) -> dict[str, Any]:
        """Assumptions and conditions of the run that the account does not state yet; `event` is paid for next."""
        ledger, books = self._ledger, self.account.books
        guarantee = event.guarantee if event is not None else ledger.guarantee if ledger is not None else Proved()
        found: dict[str, Any] = {}
        if not isinstance(guarantee, Proved) and guarantee not in books.guarantees:
            found["guarantee"] = guarantee_to_dict(guarantee)
        conditions = [
            fact for fact in (ledger.conditions if ledger is not None else ()) if fact not in books.conditions
        ]
        return found | ({"conditions": conditions} if conditions else {})

    def _price(self, event: Event) -> Price:
        if self._paid is None or self._paid[0] != event:
            self._paid = event, self.account.books.total.price(event)
        return self._paid[1]

    def _require_open(self) -> None:
        if not self._open:
            raise AccountError("The run has closed its account: nothing more can be recorded.")


class _Closed:
    """Pays for nothing: the run has closed its account."""

    def reserve(self, event: Event) -> None:
        self.pay(event)

    def pay(self, event: Event) -> None:
        raise AccountError("The run has closed its account: nothing more can be recorded.")


def read_stub(folder: Path) -> dict[str, Any] | None:
    """The entry of a run folder about its account; None if it has no account."""
    path = folder / STUB
    if not os.path.lexists(path):
        return None
    try:
        found = from_json(read_text(path, _TAIL), 1 << 63)
        texts = all(isinstance(found[name], str) for name in ("account", "name", "file", "run", "head"))
        if texts and type(found["line"]) is int and type(found["begun"]) is bool:
            return dict(found)
    except (ValueError, KeyError, TypeError):
        pass
    raise AccountError(
        f"{path} is damaged: it names the account of the run. Put it back, or start again in another folder."
    )


_DEEPEST = 4
"""Run folders are looked for this many levels below a folder that is named."""


@dataclass(frozen=True)
class Finding:
    """One result of a check; `wrong` if the account and the run folders do not agree."""

    wrong: bool
    text: str


def check_account(account: DataAccount, *, head: str = "", folders: Sequence[Path] = ()) -> tuple[Finding, ...]:
    """Check an account whose running hash was checked when it was opened.

    Args:
        account: the account.
        head: a line of `DataAccount.head_line` that was kept elsewhere.
        folders: folders in which to look for more run folders, to find copies and moved runs.
    """
    found = [Finding(False, f"The running hash of all {account.books.lines} lines is right.")]
    if head:
        found.append(_checked_head(account, head))
    places = dict(_run_folders(folders))
    own = account.books.id
    for run in account.books.runs.values():
        here = Path(run.folder) if run.folder else None
        if here is not None and (here / STUB).exists():
            places.setdefault(here.resolve(), None)
    seen: dict[str, list[Path]] = {}
    others = 0
    for folder in sorted(places):
        try:
            stub = read_stub(folder)
        except PrivetError as error:
            found.append(Finding(True, str(error)))
            continue
        if stub is None:
            found.append(Finding(False, f"The run in {folder} was made without an account: enter it with --run."))
        elif stub["account"] != own:
            others += 1
        else:
            found += _checked_folder(account, folder, stub, seen)
    for run in account.books.runs.values():
        found += _whereabouts(run, seen.get(run.key, []))
    if others:
        found.append(Finding(False, f"{others} run folders are on other accounts, and were not looked at."))
    return tuple(found)


def _checked_head(account: DataAccount, head: str) -> Finding:
    try:
        added = account.check_head(head)
    except AccountError as error:
        return Finding(True, str(error))
    return Finding(False, f"The account holds the line that was kept; {added} lines were added since.")


def _checked_folder(
    account: DataAccount, folder: Path, stub: dict[str, object], seen: dict[str, list[Path]]
) -> Iterator[Finding]:
    """Whether the account holds what a run folder says and what its ledger holds."""
    books, line, key = account.books, stub["line"], str(stub["run"])
    assert isinstance(line, int)
    if not 0 < line <= books.lines or books.heads[line - 1] != stub["head"]:
        yield Finding(
            True,
            f"The account does not hold what the run in {folder} wrote to it: an older copy of the account was put back, or two "
            f"copies went on separately.",
        )
        return
    run = books.runs.get(key)
    if run is None:
        return  # it was killed before it began
    seen.setdefault(key, []).append(folder)
    try:
        held = books.total.price(Ledger.open(folder / LEDGER, read_only=True).event)
    except PrivetError as error:
        yield Finding(True, f"The ledger of the run {key} in {folder} cannot be compared: {error}")
        return
    if not run.drawn.covers(held.scaled(1 - 1e-9)):
        yield Finding(
            True,
            f"The ledger in {folder} holds more than the run {key} drew from the account: it went on without the account, or the "
            f"account was changed. Go on with it on the account, and the rest is charged.",
        )


def _whereabouts(run: RunOnAccount, folders: list[Path]) -> Iterator[Finding]:
    named = f"The run {run.key} ({one_line(run.what, 60)})"
    if not folders:
        where = f"{run.folder} is gone: it was deleted or moved" if run.folder else "it was in memory"
        yield Finding(False, f"{named}: {one_line(where, 400)}. What it drew stays charged.")
    elif len(folders) > 1:
        listed = ", ".join(map(str, folders))
        yield Finding(
            False, f"{named} is in {len(folders)} copies: {listed}. Each one draws for itself from the account."
        )
    elif str(folders[0]) != run.folder:
        yield Finding(False, f"{named} was moved or copied from {one_line(run.folder, 400)} to {folders[0]}.")
    if not run.how:
        yield Finding(False, f"{named} has not ended: go on with it, or give it up with `privet budget settle`.")


def _run_folders(roots: Sequence[Path]) -> Iterator[tuple[Path, None]]:
    """The run folders in some folders and a few levels below; links are not followed."""
    for root in roots:
        base = len(root.resolve().parts)
        for folder, below, files in os.walk(root.resolve(), followlinks=False):
            if len(Path(folder).parts) - base >= _DEEPEST:
                below.clear()
            if STUB in files or LEDGER in files:
                below.clear()  # subfolders belong to the run: its release has a copy of its ledger
                yield Path(folder), None
