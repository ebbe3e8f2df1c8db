"""Other runs on the same records: found beside a run, and counted together with it."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from privet.errors import PrivetError
from privet.io import read_text
from privet.io.names import LEDGER
from privet.privacy import Event, Ledger, Part, Relation, Together, UnsupportedEventError, spent_together
from privet.report.record import FILE, OtherRun, RunRecord


def find_others(out: Path, fingerprint: str, named: Sequence[Path] = ()) -> tuple[OtherRun, ...]:
    """The runs beside `out` on records with this fingerprint, and the `named` runs.

    The runs that they had found are included. A run that cannot be read is skipped, unless it was named.
    """
    found: list[OtherRun] = []
    for folder in named:
        found += of_folder(folder)
    for folder in _beside(out):
        try:
            if fits(RunRecord.read(folder).data.fingerprint, fingerprint, folder):
                found += of_folder(folder)
        except PrivetError:
            continue
    return distinct(found)


def of_folder(folder: Path) -> tuple[OtherRun, ...]:
    """The run in a folder, and the runs that it counts itself. A run that was stopped counts as well."""
    if not (folder / FILE).exists() and (folder / LEDGER).exists():
        return (stopped(folder),)
    record = RunRecord.read(folder)
    name = folder.resolve().name
    own = of_ledger(record.open_ledger(folder), name=name, created=record.created, method=record.method)
    return (own, *(record.others or ()))


def stopped(folder: Path) -> OtherRun:
    """A run that was stopped: it has a ledger but no record, and everything in the ledger counts."""
    ledger = Ledger.open(folder / LEDGER, read_only=True)
    return of_ledger(ledger, name=folder.resolve().name, created="", method="stopped before its end")


def of_ledger(ledger: Ledger, *, name: str, created: str, method: str) -> OtherRun:
    """The run of a ledger, with all its events."""
    relation, event = ledger.relation.value, ledger.event.to_dict()
    return OtherRun(name, created, method, ledger.head, relation, ledger.unit, event, ledger.conditions)


def together(record: RunRecord, ledger: Ledger) -> Together | None:
    """The total cost of this run and the others; None if there are no others. Runs that no theorem can add are named."""
    counted = record.others or ()
    if not counted:
        return None
    own = Part(ledger.event, ledger.relation, ledger.unit, "this run")
    parts = [Part(Event.from_dict(one.event), Relation.of(one.relation), one.unit, one.name) for one in counted]
    try:
        found = spent_together([own, *parts], record.delta)
    except UnsupportedEventError:
        # Not even this run has a bound under a relation that the others could share.
        return None
    conditions = dict.fromkeys((*ledger.conditions, *(fact for other in counted for fact in other.conditions)))
    return replace(found, spent=replace(found.spent, conditions=tuple(conditions)))


def _beside(out: Path) -> Iterable[Path]:
    """The run folders beside `out`, and those one level deeper: the runs of a comparison."""
    home, own = out.resolve().parent, out.resolve()
    found = sorted(path.parent for pattern in (f"*/{FILE}", f"*/*/{FILE}") for path in home.glob(pattern))
    return [folder for folder in found if own not in (folder, folder.parent) and not _hidden(folder, home)]


def _hidden(folder: Path, home: Path) -> bool:
    return any(part.startswith(".") for part in folder.relative_to(home).parts)


def distinct(runs: Sequence[OtherRun]) -> tuple[OtherRun, ...]:
    """Each run once, even if it was both named and found beside. A copy under another name is another run."""
    return tuple(sorted({run.identity: run for run in runs}.values(), key=lambda run: run.identity))


KEY_FILE = "data.key"


def mark_of(fingerprint: str, folder: Path, *, public: bool) -> str:
    """The fingerprint of public records, or for other records its HMAC under a new key that is written to the folder."""
    if public:
        return fingerprint
    key = secrets.token_bytes(32)
    handle = os.open(folder / KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(key.hex() + "\n")
    return _keyed(key, fingerprint)


def fits(mark: str, fingerprint: str, folder: Path) -> bool:
    """Whether a mark belongs to these records. False if the folder has no key, because then it cannot be checked."""
    if hmac.compare_digest(mark.encode(), fingerprint.encode()):
        return True
    try:
        key = bytes.fromhex(read_text(folder / KEY_FILE, 1000).strip())
    except ValueError:  # there is no key, or it is damaged
        return False
    return hmac.compare_digest(mark.encode(), _keyed(key, fingerprint).encode())


def _keyed(key: bytes, fingerprint: str) -> str:
    return hmac.new(key, fingerprint.encode("ascii"), hashlib.sha256).hexdigest()
