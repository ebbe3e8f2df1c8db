"""Logs of a training: a report after each step, a progress bar, and a CSV file; for others see `privet.integrations.trackers`.

Logged losses are computed from the records without noise: logs are for the owner of the data, and not for release.
"""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privet.io.moved import moved_names

if TYPE_CHECKING:
    from privet.training.private import Private

OnStep = Callable[[dict[str, Any]], None]
"""Called with a dictionary after each step."""

FILE = "steps.csv"
COLUMNS = ("what", "step", "steps", "loss", "accuracy", "epsilon", "delta", "guarantee", "seconds")
_REPORTED = 0.2
"""Epsilon in a report is computed at most every this many seconds."""
_SHOWN = 0.5
"""Epsilon in a progress bar is computed at most every this many seconds."""


class StepReport:
    """Called after a step, it returns a dictionary with step, steps, epsilon with its delta, and the guarantee.

    Epsilon is computed a few times a second and after the last step: it may be a few steps old.
    """

    def __init__(self, private: Private) -> None:
        self._private = private
        self._epsilon, self._looked = 0.0, 0.0

    def __call__(self) -> dict[str, Any]:
        private = self._private
        done, steps, now = private.steps_done, private.plan.steps, time.monotonic()
        if now - self._looked > _REPORTED or done == steps:
            self._epsilon, self._looked = private.spent().epsilon, now
        spent = {"epsilon": self._epsilon, "delta": private.delta, "guarantee": str(private.ledger.guarantee)}
        return {"step": done, "steps": steps, **spent}


@contextmanager
def step_progress(steps: int, done: int = 0) -> Iterator[Callable[[Callable[[], float]], None]]:
    """A progress bar, shown on a terminal only. It gives a function to call after each step, with a function for epsilon."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("epsilon {task.fields[epsilon]:.3f}"),
        TimeRemainingColumn(),
    )
    if not console.is_terminal:
        yield lambda epsilon: None
        return
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("step", total=steps, completed=done, epsilon=0.0)
        shown = 0.0

        def tick(epsilon: Callable[[], float]) -> None:
            nonlocal shown
            bar.advance(task)
            if time.monotonic() - shown > _SHOWN or bar.finished:
                bar.update(task, epsilon=epsilon())
                shown = time.monotonic()

        yield tick


class CsvLog:
    """Writes each step as a line of a CSV file that only its owner can read; further entries of a report get their own columns.

    If the file exists, the lines of steps that are repeated are dropped.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._began = path, time.monotonic()
        self._file: io.TextIOWrapper | None = None
        self._columns: list[str] = list(COLUMNS)

    def __call__(self, step: Mapping[str, Any]) -> None:
        if self._file is None:
            self._open(step)
        assert self._file is not None
        row = {"what": "Training", "seconds": f"{time.monotonic() - self._began:.3f}", **step}
        csv.DictWriter(self._file, self._columns, extrasaction="ignore", lineterminator="\n").writerow(row)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self, first: Mapping[str, Any]) -> None:
        kept = [row for row in self._read() if int(row["step"]) < int(first["step"])]
        self._columns = [*(kept[0] if kept else COLUMNS)]
        self._columns += [name for name in first if name not in self._columns]
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._file = os.fdopen(handle, "w", encoding="utf-8", newline="", buffering=1)
        writer = csv.DictWriter(self._file, self._columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)

    def _read(self) -> list[dict[str, str]]:
        """The complete lines of the file, without a line that was being written when the process died."""
        if not self._path.exists():
            return []
        rows = csv.DictReader(io.StringIO(self._path.read_text(encoding="utf-8")))
        return [row for row in rows if None not in row.values() and str(row.get("step")).isdecimal()]


@contextmanager
def logged(folder: Path, *also: OnStep | None) -> Iterator[OnStep]:
    """A callback that logs every step of a training to `folder`, and passes everything on to the other callbacks.

    Reports without a loss (of computed features, for example) are passed on and not logged.
    """
    logs: list[CsvLog] = []

    def on_step(step: dict[str, Any]) -> None:
        if "loss" in step and not logs:
            # Opened with the first step: a run that is refused leaves no files.
            logs.append(CsvLog(folder / FILE))
        for log in logs if "loss" in step else ():
            log(step)
        for other in also:
            if other is not None:
                other(step)

    try:
        yield on_step
    finally:
        for log in logs:
            log.close()


if not TYPE_CHECKING:
    __getattr__ = moved_names(__name__)
