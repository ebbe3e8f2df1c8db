"""A progress bar for private steps; quiet where the output is not a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def step_progress(steps: int, done: int = 0) -> Iterator[Callable[[float], None]]:
    """A bar of `steps`; call what it gives after each one, with the epsilon spent so far."""
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
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("step", total=steps, completed=done, epsilon=0.0)
        yield lambda epsilon: bar.update(task, advance=1, epsilon=epsilon)
