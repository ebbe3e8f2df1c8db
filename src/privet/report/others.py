"""Other runs on the same records: found beside a run, and counted together with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from privet.errors import PrivetError
from privet.privacy import Event, Ledger, Spent, accountant_named
from privet.privacy.events import composed
from privet.report.data_mark import fits
from privet.report.record import FILE, OtherRun, RunRecord


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
    return _distinct(found)


def of_folder(folder: Path) -> tuple[OtherRun, ...]:
    """A run as another one counts it, and the others that it counts."""
    record = RunRecord.read(folder)
    ledger = record.open_ledger(folder)
    own = OtherRun(
        name=folder.resolve().name,
        created=record.created,
        method=record.method,
        ledger_head=ledger.head,
        relation=ledger.relation.value,
        unit=ledger.unit,
        event=ledger.event.to_dict(),
    )
    return (own, *(record.others or ()))


def together(record: RunRecord, ledger: Ledger) -> Spent | None:
    """What this run and the others cost as a whole; None where there are none, or where no theorem composes them."""
    counted = [other for other in record.others or () if other.ledger_head != ledger.head]
    if not counted or any((o.relation, o.unit) != (ledger.relation.value, ledger.unit) for o in counted):
        return None
    event = composed(ledger.event, *(Event.from_dict(other.event) for other in counted))
    return accountant_named("pld").spent(event, record.delta, ledger.relation, unit=ledger.unit)


def _beside(out: Path) -> Iterable[Path]:
    try:
        folders = sorted(out.resolve().parent.iterdir())
    except OSError:
        return ()
    return [f for f in folders if f != out.resolve() and not f.name.startswith(".") and (f / FILE).is_file()]


def _distinct(runs: Sequence[OtherRun]) -> tuple[OtherRun, ...]:
    """Each ledger once: a run may be found twice, named and beside."""
    by_ledger = {run.ledger_head: run for run in reversed(runs)}
    return tuple(sorted(by_ledger.values(), key=lambda run: (run.created, run.name)))
