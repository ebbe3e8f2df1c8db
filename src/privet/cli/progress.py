"""Progress bars on the error stream: silent where nobody is looking, so that logs and pipes stay clean."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Fetched = Callable[[str, int, int | None], None]
Stepped = Callable[[Mapping[str, Any]], None]


@contextmanager
def fetching() -> Iterator[Fetched | None]:
    """A bar for files on their way: called with what is fetched, the bytes so far and the bytes in all."""
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
def training(delta: float) -> Iterator[Stepped | None]:
    """A bar for the steps of a training: loss, epsilon so far (with its delta) and the time left."""
    if not sys.stderr.isatty():
        yield None
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
        task = bars.add_task("Calibrating the noise", total=None, standing="")

        def show(step: Mapping[str, Any]) -> None:
            standing = f"loss {step['loss']:.3f}, epsilon {step['epsilon']:.3f} at delta {delta:g}"
            bars.update(task, description="Training", completed=step["step"], total=step["steps"], standing=standing)

        yield show
