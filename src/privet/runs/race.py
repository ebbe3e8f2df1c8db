"""Methods side by side: each in a worker of a farm, with its progress and its log in the folder of the comparison."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from privet.attacks import attack_named
from privet.data import Progress
from privet.errors import InputError, PrivetError
from privet.io import Busy, Lock
from privet.io.farm import Farm
from privet.io.names import LOCK, RECORD
from privet.io.registry import load_plugin
from privet.methods import Power, method_named
from privet.report import RunRecord
from privet.runs.after import attack_run, audit_run
from privet.runs.job import ROW, Clock, Job, Row, begin_peak, peak_megabytes
from privet.runs.runner import fitting_attacks, run
from privet.training.folder import working_files

POWER = Power(draws=10_000)
"""The power of the audit of one step; the audit of the whole training, if there is one, shows more."""
SECONDS_BUSY = 60.0
"""How long a worker waits for another process on the same run: one that a cluster has given up may still be alive."""
_SECONDS = 0.2

Say = Callable[[dict[str, Any]], None]


@dataclass(eq=False)
class Lane:
    """One method while it runs."""

    key: str
    title: str
    folder: Path
    standing: dict[str, Any] = field(default_factory=dict)
    """Its latest report."""
    row: Row | None = None
    began_this: float = 0.0
    """When its current work began."""

    @property
    def state(self) -> str:
        if self.row is not None:
            return self.row.state
        return "running" if self.standing else "waiting"

    def look(self) -> None:
        """Read where it stands."""
        with suppress(OSError, ValueError):  # it has not said anything yet, or has ended
            if isinstance(told := json.loads(_progress_file(self.folder).read_text(encoding="utf-8")), dict):
                self.hear(told)

    def hear(self, standing: dict[str, Any]) -> None:
        """Store a progress report; the time starts again with each kind of work."""
        if standing.get("what") != self.standing.get("what"):
            self.began_this = time.monotonic()
        self.standing = standing


def race(
    methods: Sequence[str],
    out: Path,
    *,
    farm: Farm | None = None,
    one: Callable[[Path, str], Row] | None = None,
    on_change: Callable[[Sequence[Lane]], None] | None = None,
) -> list[Row]:
    """Run every method of the job in `out` that is not done yet; gives the rows in the order of the methods.

    One method's failure is its row. A method whose worker is lost is submitted again and goes on; lost each time, it is a
    row too. Stopped with Ctrl-C or killed, what the workers have done is kept: called again, it goes on.

    Args:
        methods: keys of methods of the job.
        out: the folder of the comparison. Workers on other machines need it too.
        farm: where the methods run, and how many at once; by default one for each core of this machine.
        one: what runs one method in a worker, `run_method` by default.
        on_change: called a few times a second, from another thread, with where every method stands.
    """
    lanes = [Lane(key, method_named(key).title, out / key) for key in methods]
    for lane in lanes:
        kept = Row.read(lane.folder)
        if kept is not None and kept.state == "done":
            lane.row = kept
        elif kept is not None:
            (lane.folder / ROW).unlink()  # it failed: it is tried again
        _progress_file(lane.folder).unlink(missing_ok=True)
    left = [lane for lane in lanes if lane.row is None]

    def watch() -> None:
        for lane in left:
            lane.look()
        if on_change is not None:
            on_change(lanes)

    for number, found in (farm or Farm()).each(one or run_method, [(out, lane.key) for lane in left], watch):
        lane = left[number]
        lane.row = found if isinstance(found, Row) else Row(lane.key, lane.title, "failed", _said(found))
        _progress_file(lane.folder).unlink(missing_ok=True)
    return [lane.row for lane in lanes if lane.row is not None]


def run_method(out: Path, key: str) -> Row:
    """One method of the comparison in `out`, in a worker: from where it stands to its row. Its errors are in its row and its log.

    Formal guarantees: those of `run`. A method that is done is not run again, and a second worker on the same method waits
    until the first one has ended: nothing is charged twice.
    """
    folder, title, say = out / key, key, _Said(_progress_file(out / key))
    began = time.monotonic()
    begin_peak()
    with _logged(out / f"{key}.log"):
        try:
            job = Job.read(out)
            for plugin in job.plugins:
                load_plugin(plugin)
            title = method_named(key).title
            say({"what": "Starting"}, now=True)
            _wait_for(folder)
            kept = Row.read(folder)
            if kept is not None and kept.state == "done":
                return kept
            row = Row(key, title, "done", stopped=compete(job, key, folder, say))
        except Exception as error:  # whatever it is becomes a row, and the other methods go on
            traceback.print_exc()
            row = Row(key, title, "failed", _said(error))
    folder.mkdir(parents=True, exist_ok=True)
    row = row.done_in(time.monotonic() - began, peak_megabytes())
    row.write(folder)
    return row


def compete(job: Job, key: str, folder: Path, say: Say) -> str:
    """Train and attack, unless that is already done; then audit. Returns the clock's reason for stopping, if any."""
    clock = Clock(folder, job.minutes)
    task = job.task(job.data.load())
    method = job.method(key, task)
    # Attacks on a model and attacks on data can be asked for together: each run gets those that fit it.
    attacks = fitting_attacks(job.measuring.attacks, method, task, job.measuring)

    def progress(what: str, done: int, total: int | None) -> None:
        say({"what": what, "step": done, "steps": total})

    if not (folder / RECORD).exists() or working_files(folder):
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


def _wait_for(folder: Path) -> None:
    """Wait until no other process works on a run."""
    end = time.monotonic() + SECONDS_BUSY
    while folder.is_dir():
        try:
            Lock(folder / LOCK).release()
            return
        except Busy:
            if time.monotonic() > end:
                return  # the run says who holds it
            time.sleep(_SECONDS)


class _Said:
    """Writes where a method stands to a file, a few times a second. It may tell of records: only the owner reads it."""

    def __init__(self, path: Path) -> None:
        self._path, self._last = path, 0.0

    def __call__(self, step: dict[str, Any], now: bool = False) -> None:
        if not now and time.monotonic() - self._last < _SECONDS and step.get("step") != step.get("steps"):
            return
        self._last = time.monotonic()
        new = self._path.with_suffix(".new")
        with suppress(OSError), _owners(new, os.O_TRUNC) as file:  # a disk without room stops the run elsewhere
            file.write(json.dumps(step, default=str))
            file.close()
            new.replace(self._path)


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Put what is printed into the log of the method. It may come from the records: only the owner reads it."""
    with _owners(path, os.O_APPEND) as log, redirect_stdout(log), redirect_stderr(log):
        yield


def _owners(path: Path, how: int) -> Any:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600), "w", encoding="utf-8")


def _progress_file(folder: Path) -> Path:
    return folder.parent / f"{folder.name}.progress"


def _said(error: object) -> str:
    said = str(error) if isinstance(error, PrivetError) else f"{type(error).__name__}: {error}"
    return " ".join(said.split()) or type(error).__name__
