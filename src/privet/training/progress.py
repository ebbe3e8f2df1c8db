"""A progress bar for private steps; quiet where the output is not a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SECONDS = 0.5
"""Epsilon is computed for the eye: not more often than it can look."""


@contextmanager
def step_progress(steps: int, done: int = 0) -> Iterator[Callable[[Callable[[], float]], None]]:
    """A bar of `steps`; call what it gives after each one, with a function that says the epsilon spent so far."""
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
            if time.monotonic() - shown > _SECONDS or bar.finished:
                bar.update(task, epsilon=epsilon())
                shown = time.monotonic()

        yield tick
