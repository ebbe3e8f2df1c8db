"""Progress on the error stream: a bar on a terminal, and in a log a line every 15 seconds; for a comparison, its board."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from privet.runs.comparison import Compared, Comparison
    from privet.runs.race import Lane

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


# --- the board of a comparison ----------------------------------------------------------------------------------------

Show = Callable[[Sequence["Lane"]], None]
WIDE = 150
MARKS = {
    "proved": "✓ proved",
    "assumed": "≈ assumed",
    "claimed": "✗ claimed",
    "open": "! unprotected",
    "refuted": "✗ refuted",
}
VACUOUS_MARKS = {"proved": "∅ proved, vacuous", "assumed": "∅ assumed, vacuous", "claimed": "✗ claimed, vacuous"}


@contextmanager
def board(delta: float, *, quiet: bool = False) -> Iterator[Show]:
    """Show the progress of every method. Call the yielded function with the lanes whenever something may have changed."""
    if not sys.stderr.isatty():
        yield _lanes_in_log(quiet)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True) as live:
        yield lambda lanes: live.update(_live_table(lanes, delta))


def _live_table(lanes: Sequence[Lane], delta: float) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    shown = Table("Method", "", "Progress", "Accuracy", f"Epsilon at {delta:g}", "Time left")
    for lane in lanes:
        step = lane.standing
        done, total = step.get("step") or 0, step.get("steps") or 0
        bar = ProgressBar(total=total or 1, completed=total or 1 if lane.row else done, width=20)
        what = lane.state if lane.row or lane.state == "waiting" else _work(lane)
        accuracy = f"{100 * step['accuracy']:.1f} %" if "accuracy" in step else ""
        epsilon = f"{step['epsilon']:.2f}" if "epsilon" in step else ""
        claimed = "" if step.get("guarantee", "proved") == "proved" else " (claimed)"
        shown.add_row(lane.key, what, bar, accuracy, f"{epsilon}{claimed if epsilon else ''}", _left(lane))
    return shown


def _work(lane: Lane) -> str:
    step = lane.standing
    return str(step.get("what", "Training" if step else "Starting"))


def _left(lane: Lane) -> str:
    """The time left, if each step takes as long as the steps so far."""
    done, total = lane.standing.get("step") or 0, lane.standing.get("steps") or 0
    if lane.state != "running" or not done or not total:
        return ""
    return f"{(time.monotonic() - lane.began_this) / done * (total - done):.0f} s"


def _lanes_in_log(quiet: bool) -> Show:
    """Print a line when a method ends, and the progress of the others every 15 seconds."""
    told: set[str] = set()
    last = time.monotonic()

    def show(lanes: Sequence[Lane]) -> None:
        nonlocal last
        if quiet:
            return
        for lane in lanes:
            if lane.row is not None and lane.key not in told:
                told.add(lane.key)
                why = f": {lane.row.reason}" if lane.row.reason else ""
                _log(f"{lane.title}: {lane.row.state} in {lane.row.seconds:.0f} s{why}")
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            last = now
            _log("; ".join(_stands(lane) for lane in lanes if lane.state == "running"))

    return show


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _stands(lane: Lane) -> str:
    step = lane.standing
    of = f" {step['step']}/{step['steps']}" if step.get("steps") else ""
    left = f", {_left(lane)} left" if _left(lane) else ""
    return f"{lane.key}: {_work(lane)}{of}{left}"


def table(result: Comparison) -> None:
    """The result for a terminal."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(
        "Method",
        "Guarantee",
        "Accuracy",
        f"Epsilon at {result.job.delta:g}",
        "Audit: at least",
        "AUC",
        "TPR at 0.1 %",
        "Seconds",
        "MB",
    )
    for outcome in result.outcomes:
        shown.add_row(*_cells(outcome), style="dim" if outcome.record is None else None)
    # A log has no width of its own, and the table should not be cut there.
    console = Console() if sys.stdout.isatty() or "COLUMNS" in os.environ else Console(width=WIDE)
    console.print(shown)
    if (best := result.best) is not None:
        console.print(
            f"The most accurate method with a statement that holds: {best.row.title}, with {best.spent}", soft_wrap=True
        )
        if tied := result.within_noise:
            names = ", ".join(outcome.row.title for outcome in tied)
            console.print(f"Within the noise of the test records, so perhaps as good: {names}", soft_wrap=True)
    if result.together is not None:
        console.print(f"Choosing among them costs as much as all of them together: {result.together}", soft_wrap=True)


def _cells(outcome: Compared) -> list[str]:
    from privet.privacy.spent import round_up

    row, record, spent, standing = outcome.row, outcome.record, outcome.spent, outcome.standing
    if record is None or spent is None or standing is None:
        return [row.method, f"{row.state}: {row.reason}", *[""] * 7]
    attack, rate = record.attack, outcome.lowest_rate
    return [
        row.method,
        (MARKS | (VACUOUS_MARKS if standing.vacuous else {}))[standing.kind],
        "" if record.accuracy is None else f"{100 * record.accuracy:.2f} %",
        round_up(spent.epsilon) + (f" ({row.stopped})" if row.stopped else ""),
        _audited(outcome),
        f"{attack.auc:.3f}" if attack else "",
        f"{100 * rate.tpr:.3g} %" if rate else "",
        f"{row.seconds:.0f}",
        f"{row.peak_megabytes:.0f}" if row.peak_megabytes else "",
    ]


def _audited(outcome: Compared) -> str:
    """The bound of the audit and what it covers: the epsilon of one step is not that of the run."""
    from privet.audit.result import round_down
    from privet.privacy.spent import round_up

    if (audit := outcome.audit) is None:
        return ""
    part = "" if outcome.whole_audit else ", of a part of the run"
    flag = ", refuted" if audit.refuted else ", without power" if audit.powerless else ""
    return f"{round_down(audit.lower_bound)} of {round_up(audit.claimed_epsilon)}{part}{flag}"
