"""One method of a comparison in a process of its own: `python -m privet.runs.worker FOLDER METHOD`.

It reports progress on the standard output as lines of JSON, and ends when the process that started it ends.
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

from privet.attacks import attack_named
from privet.data import Progress
from privet.errors import InputError, PrivetError
from privet.io.registry import load_plugin
from privet.methods import Power, method_named
from privet.report import RunRecord
from privet.report.record import FILE
from privet.runs.after import attack_run, audit_run
from privet.runs.job import Clock, Job, Row, peak_megabytes
from privet.runs.runner import fitting_attacks, run
from privet.training.folder import working_files

SECONDS = 0.2
POWER = Power(draws=10_000)
"""The power of the audit of one step; the audit of the whole training, if there is one, shows more."""
ORPHANED = 3


def main(arguments: list[str]) -> int:
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    out, key = Path(arguments[0]), arguments[1]
    folder, title = out / key, key
    began = time.monotonic()
    try:
        job = Job.read(out)
        for plugin in job.plugins:
            load_plugin(plugin)
        title = method_named(key).title
        row = Row(key, title, "done", stopped=_run(job, key, folder))
    except Exception as error:  # whatever it is becomes a row, and the other methods go on
        traceback.print_exc()
        said = str(error) if isinstance(error, PrivetError) else f"{type(error).__name__}: {error}"
        row = Row(key, title, "failed", " ".join(said.split()) or type(error).__name__)
    folder.mkdir(parents=True, exist_ok=True)
    row.done_in(time.monotonic() - began, peak_megabytes()).write(folder)
    return 0 if row.state == "done" else 1


def _run(job: Job, key: str, folder: Path) -> str:
    """Train and attack, unless that is already done; then audit. Returns the clock's reason for stopping, if any."""
    clock, say = Clock(folder, job.minutes), _Throttled()
    _say({"what": "Starting"})
    task = job.task(job.data.load())
    method = job.method(key, task)
    # Attacks on a model and attacks on data can be asked for together: each run gets those that fit it.
    attacks = fitting_attacks(job.measuring.attacks, method, task, job.measuring)

    def progress(what: str, done: int, total: int | None) -> None:
        say({"what": what, "step": done, "steps": total})

    if not (folder / FILE).exists() or working_files(folder):
        run(
            method,
            task,
            folder,
            measuring=replace(job.measuring, attacks=attacks),
            resume=True,
            command=job.command,
            on_step=clock.watching(say),
            progress=progress,
        )
    record = RunRecord.read(folder)
    made = {attack.key for attack in record.attacks}
    if missing := [each for each in attacks if each not in made]:  # it was stopped in between
        attack_run(
            folder, [attack_named(each) for each in missing], task.dataset, command=job.command, progress=progress
        )
    if not record.audits:
        _audit(folder, job.command, progress)
    return clock.said


def _audit(folder: Path, command: tuple[str, ...], progress: Progress) -> None:
    try:
        audit_run(folder, POWER, command=command, progress=lambda what, done, total: progress("Auditing", done, total))
    except InputError:
        return  # no part of this run can be audited


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
