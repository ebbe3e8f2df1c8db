"""Progress on the error stream: a bar on a terminal; in a log, a line every 15 seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Fetched = Callable[[str, int, int | None], None]
Stepped = Callable[[Mapping[str, Any]], None]

SECONDS_BETWEEN_LINES = 15.0


@contextmanager
def fetching() -> Iterator[Fetched | None]:
    """A progress bar for downloads: called with the file's name, the bytes so far and all bytes."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, progress.TaskID] = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what.rsplit("/", 1)[-1], total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield show


@contextmanager
def computing() -> Iterator[Fetched]:
    """A progress bar for other long work (features, shadow models, audits): called with its name, the work done and all work."""
    with training(0.0, "Starting") as show:
        yield lambda what, done, total: show({"what": what, "step": done, "steps": total})


@contextmanager
def training(delta: float, first: str = "Calibrating the noise") -> Iterator[Stepped]:
    """The progress of a training: loss, epsilon so far (with its delta) and the time left.

    Until the first step it shows `first`. Reports without a loss are about other work; their "what" is shown instead.
    """
    if not sys.stderr.isatty():
        yield _lines(delta)
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[standing]}"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(first, total=None, standing="")

        def show(step: Mapping[str, Any]) -> None:
            what, done, total = step.get("what", "Training"), step["step"], step["steps"]
            bars.update(task, description=what, completed=done, total=total, standing=_standing(step, delta))

        yield show


def _lines(delta: float) -> Stepped:
    """Print a line every 15 seconds, and none for shorter work: logs stay short."""
    from privet.report.words import duration

    began = last = time.monotonic()
    doing = None

    def show(step: Mapping[str, Any]) -> None:
        nonlocal began, last, doing
        now = time.monotonic()
        what, done, total = step.get("what", "Training"), step["step"], step["steps"]
        if what != doing:  # the time left is for the current work only
            began, doing = now if doing else began, what
        if now - last < SECONDS_BETWEEN_LINES:
            return
        last = now
        left = f"{duration((now - began) / done * (total - done))} left" if done else ""  # a slow start is still at 0
        standing = ", ".join(filter(None, (_standing(step, delta), left)))
        print(f"{what} {done}/{total}" + (f": {standing}" if standing else ""), file=sys.stderr, flush=True)

    return show


def _standing(step: Mapping[str, Any], delta: float) -> str:
    said = [f"loss {step['loss']:.3f}"] if "loss" in step else []
    if "epsilon" in step:
        standing = str(step.get("guarantee", "proved"))
        claimed = "" if standing == "proved" else f" ({standing.partition(':')[0]})"  # the reason is on the run's page
        said.append(f"epsilon {step['epsilon']:.3f} at delta {delta:g}{claimed}")
    return ", ".join(said)
