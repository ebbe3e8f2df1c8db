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
from privet.privacy import Event, Ledger, Part, Relation, Together, UnsupportedEventError, spent_together
from privet.report.record import FILE, OtherRun, RunRecord
from privet.training.folder import LEDGER


def find_others(out: Path, fingerprint: str, named: Sequence[Path] = ()) -> tuple[OtherRun, ...]:
    """The runs in the folder that holds `out` whose records have this fingerprint, and those that were `named`.

    What those had found themselves comes along. A run that cannot be read is passed over, unless it was named.
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
    """A run as another one counts it, and the others that it counts; one that was stopped before its end counts as well."""
    if not (folder / FILE).exists() and (folder / LEDGER).exists():
        return (stopped(folder),)
    record = RunRecord.read(folder)
    name = folder.resolve().name
    own = of_ledger(record.open_ledger(folder), name=name, created=record.created, method=record.method)
    return (own, *(record.others or ()))


def stopped(folder: Path) -> OtherRun:
    """A run that was stopped: it has a ledger and no record, and what it used was used."""
    ledger = Ledger.open(folder / LEDGER, read_only=True)
    return of_ledger(ledger, name=folder.resolve().name, created="", method="stopped before its end")


def of_ledger(ledger: Ledger, *, name: str, created: str, method: str) -> OtherRun:
    """Everything that a ledger holds, as another run counts it."""
    relation, event = ledger.relation.value, ledger.event.to_dict()
    return OtherRun(name, created, method, ledger.head, relation, ledger.unit, event, ledger.conditions)


def together(record: RunRecord, ledger: Ledger) -> Together | None:
    """What this run and the others cost as a whole; None where there are none. Those that no theorem adds are named."""
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
    """Each run once: it may be found twice, named and beside. A copy under another name is another run."""
    return tuple(sorted({run.identity: run for run in runs}.values(), key=lambda run: run.identity))


KEY_FILE = "data.key"


def mark_of(fingerprint: str, folder: Path, *, public: bool) -> str:
    """The fingerprint itself of public records; of others, its HMAC under a new key that is written to the folder."""
    if public:
        return fingerprint
    key = secrets.token_bytes(32)
    handle = os.open(folder / KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(key.hex() + "\n")
    return _keyed(key, fingerprint)


def fits(mark: str, fingerprint: str, folder: Path) -> bool:
    """Whether a mark is that of these records. Where the folder came without its key, that cannot be told: False."""
    if hmac.compare_digest(mark, fingerprint):
        return True
    path = folder / KEY_FILE
    if not path.exists():
        return False
    return hmac.compare_digest(mark, _keyed(bytes.fromhex(path.read_text(encoding="ascii").strip()), fingerprint))


def _keyed(key: bytes, fingerprint: str) -> str:
    return hmac.new(key, fingerprint.encode("ascii"), hashlib.sha256).hexdigest()
