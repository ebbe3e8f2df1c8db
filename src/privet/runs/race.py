"""Run methods in parallel: a process and a thread for each, as many at once as there are cores."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from privet.methods import method_named
from privet.runs.job import ROW, Row

WORKER = ("-m", "privet.runs.worker")
_SECONDS = 0.1
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(eq=False)
class Lane:
    """One method while it runs."""

    key: str
    title: str
    folder: Path
    standing: dict[str, Any] = field(default_factory=dict)
    """Its latest report."""
    row: Row | None = None
    began: float = 0.0
    began_this: float = 0.0
    """When its current work began."""
    process: subprocess.Popen[bytes] | None = None
    _listener: threading.Thread | None = None

    @property
    def state(self) -> str:
        if self.row is not None:
            return self.row.state
        return "running" if self.process is not None else "waiting"

    def start(self, out: Path, worker: Sequence[str]) -> None:
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        # The report of a method may contain values computed from the records.
        log = os.fdopen(os.open(out / f"{self.key}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
        command = [sys.executable, *worker, str(out), self.key]
        environment = os.environ | _ONE_THREAD
        self.began = self.began_this = time.monotonic()
        with log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
            )
        self._listener = threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True)
        self._listener.start()

    def _listen(self, said: IO[bytes]) -> None:
        with said:
            for line in said:
                with suppress(ValueError):  # something else that a library or a plug-in printed
                    if isinstance(told := json.loads(line), dict):
                        self.hear(told)

    def hear(self, standing: dict[str, Any]) -> None:
        """Store a progress report; the time starts again with each kind of work."""
        if standing.get("what") != self.standing.get("what"):
            self.began_this = time.monotonic()
        self.standing = standing

    def look(self) -> bool:
        """Whether it has ended, so that its row exists."""
        if self.process is None or self.process.poll() is None:
            return False
        code = self.process.returncode
        self.row = Row.read(self.folder)
        if self.row is None or (self.row.state == "done") != (code == 0):
            self.row = Row(self.key, self.title, "failed", _ending(code))
            self.row = self.row.done_in(time.monotonic() - self.began, None)
        self._close()
        return True

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait()
            self._close()

    def _close(self) -> None:
        assert self.process is not None and self.process.stdin is not None and self._listener is not None
        self.process.stdin.close()
        self._listener.join()
        self.process = self._listener = None


def race(
    methods: Sequence[str],
    out: Path,
    *,
    at_once: int | None = None,
    worker: Sequence[str] = WORKER,
    on_change: Callable[[Sequence[Lane]], None] | None = None,
) -> list[Row]:
    """Run every method of the job in `out` that is not finished yet; returns the rows in the order of the methods.

    A failure is a row, too. If this process is stopped or killed, the workers end as well and their work is kept; the next
    call goes on from it.
    """
    lanes = [Lane(key, method_named(key).title, out / key) for key in methods]
    for lane in lanes:
        kept = Row.read(lane.folder)
        if kept is not None and kept.state == "done":
            lane.row = kept
        elif kept is not None:
            (lane.folder / ROW).unlink()  # it failed: it is tried again
    most = at_once or cores()
    try:
        while any(lane.row is None for lane in lanes):
            running = sum(lane.process is not None for lane in lanes)
            for lane in [lane for lane in lanes if lane.state == "waiting"][: most - running]:
                lane.start(out, worker)
            time.sleep(_SECONDS)
            for lane in lanes:
                lane.look()
            if on_change is not None:
                on_change(lanes)
    finally:
        for lane in lanes:
            lane.stop()
    return [lane.row for lane in lanes if lane.row is not None]


def cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def _ending(code: int) -> str:
    if code < 0:
        return f"its process was ended by the signal {signal.Signals(-code).name}"
    return f"its process ended with the code {code}"
