"""One method of a comparison in a process of its own: `python -m privet.compare.worker FOLDER METHOD`.

Where it stands goes to the standard output as lines of JSON. When the process that started it is gone, so is this one.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from privet.compare.clock import Clock
from privet.compare.entrants import ENTRANTS, Entrant
from privet.compare.job import Job
from privet.compare.row import Row, peak_megabytes
from privet.errors import PrivetError
from privet.report import RunRecord, renew
from privet.report.record import FILE
from privet.training.folder import LEDGER

SECONDS = 0.2
DRAWS = 10_000
"""Of one step; the audit of the whole training, where there is one, says more."""
ORPHANED = 3


def main(arguments: list[str]) -> int:
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    out, entrant = Path(arguments[0]), ENTRANTS[arguments[1]]
    folder = out / entrant.key
    began = time.monotonic()
    try:
        stopped = _run(Job.read(out), entrant, folder)
        row = Row(entrant.key, entrant.title, "done", stopped=stopped)
    except Exception as error:  # whatever it is, the others go on and this becomes a row
        traceback.print_exc()
        said = str(error) if isinstance(error, PrivetError) else f"{type(error).__name__}: {error}"
        row = Row(entrant.key, entrant.title, "failed", " ".join(said.split()) or type(error).__name__)
    folder.mkdir(parents=True, exist_ok=True)
    row.done_in(time.monotonic() - began, peak_megabytes()).write(folder)
    return 0 if row.state == "done" else 1


def _run(job: Job, entrant: Entrant, folder: Path) -> str:
    """Train and attack, unless that is done already; then audit. Gives how the clock stopped it, if it did."""
    clock = Clock(folder, job.minutes)
    if not (folder / FILE).exists():
        _say({"what": "Starting"})
        if not entrant.resumes and (folder / LEDGER).exists():
            _set_aside(folder)
        # What is reported first is what the clock may end.
        entrant.run(job, job.records(), folder, clock.watching(_Throttled()))
    record = RunRecord.read(folder)
    if job.note and not record.data.note:
        record = replace(record, data=replace(record.data, note=job.note))
        record.write(folder)
        renew(folder)
    if not record.audits:
        _audit(record, folder)
    return clock.said


def _audit(record: RunRecord, folder: Path) -> None:
    from privet.audit import recorded
    from privet.errors import InputError
    from privet.methods import ledger_audits

    say = _Throttled()

    def progress(what: str, done: int, total: int | None) -> None:
        say({"what": "Auditing", "step": done, "steps": total})

    try:
        ledger = record.open_ledger(folder)
        audits = recorded(ledger, record.delta, draws=DRAWS, progress=progress, contributed=ledger_audits())
    except InputError:
        return  # a mechanism that is no step of a training: there is no audit of it by its ledger
    replace(record, audits=audits).write(folder)
    renew(folder)


def _set_aside(folder: Path) -> None:
    """What was spent by a run that cannot go on stays on the books."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}-stopped-{number}")).exists():
        number += 1
    folder.rename(aside)


class _Throttled:
    """Reports a few times a second."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, step: dict[str, Any]) -> None:
        if time.monotonic() - self._last >= SECONDS or step.get("step") == step.get("steps"):
            self._last = time.monotonic()
            _say(step)


def _say(facts: dict[str, Any]) -> None:
    print(json.dumps(facts, default=str), flush=True)


def _die_with_parent() -> None:
    # Not through sys.stdin, whose lock a thread that waits would hold while the interpreter shuts down.
    while os.read(0, 64):
        pass
    os._exit(ORPHANED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
