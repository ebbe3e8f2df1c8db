"""A comparison's job, the result of each method, and the clock: all are stored, so that a comparison can be resumed."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from privet.data import Dataset
from privet.errors import InputError
from privet.io import build, check_inside, from_json, read_text, write_whole
from privet.io.names import LOCK
from privet.methods import METHODS, DataSpec, Method, Public, Task, method_for, settings_of
from privet.runs.runner import Measuring
from privet.training import BudgetExhausted
from privet.training.folder import alone_in
from privet.training.logs import OnStep

JOB, ROW, CLOCK = "job.json", "row.json", "clock.txt"
_SECONDS = 1.0


@dataclass(frozen=True)
class Job:
    """The task that all methods of a comparison share.

    Attributes:
        data: the records.
        epsilon, delta: the budget of each method.
        methods: keys of `privet.methods`.
        minutes: how long a method may train; 0 means no limit.
        seed: makes the comparison repeatable; None if the results may be released.
        public: public records without labels, as `Public.of` takes them; empty if there are none.
        settings: settings for the methods that have them, by name.
        own_settings: settings of single methods, by key.
        measuring: how each release is measured and attacked.
        plugins: files of plug-ins, which every worker loads.
    """

    data: DataSpec
    epsilon: float
    delta: float
    methods: tuple[str, ...]
    minutes: float = 0.0
    seed: int | None = None
    public: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    own_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    measuring: Measuring = field(default_factory=Measuring)
    plugins: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    def task(self, dataset: Dataset) -> Task:
        """The task of every method."""
        public = Public.of(self.public, dataset, self.data) if self.public else None
        return Task.of(self.data, dataset, self.epsilon, self.delta, seed=self.seed, public=public)

    def method(self, key: str, task: Task) -> Method:
        """A method with the job's settings that apply to it."""
        method = method_for(key, task)
        known = {setting.name for setting in settings_of(method)}
        shared = {name: value for name, value in self.settings.items() if name in known}
        return method_for(key, task, shared | self.own_settings.get(key, {}))

    @contextmanager
    def kept_in(self, out: Path) -> Iterator[None]:
        """Store the job in `out`, and lock the folder for this process."""
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is a file: give a folder with --out.")
        missing = not out.exists()
        out.mkdir(parents=True, exist_ok=True)
        with alone_in(out):
            try:
                self.keep(out)
            except InputError:
                if missing:
                    shutil.rmtree(out)
                raise
            yield

    def keep(self, out: Path) -> None:
        """Write the job into its folder, or check that it is there already. A different job is refused."""
        path = out / JOB
        if path.exists():
            there = Job.read(out)
            if replace(there, command=self.command) != self:
                raise InputError(f"{out} holds another comparison: give the same options to go on, or another --out.")
            return
        if out.exists() and (not out.is_dir() or any(path.name != LOCK for path in out.iterdir())):
            raise InputError(f"{out} holds something else than a comparison: give another folder with --out.")
        out.mkdir(parents=True, exist_ok=True)
        write_whole(path, (json.dumps(dataclasses.asdict(self), indent=1) + "\n").encode(), mode=0o644)

    @classmethod
    def read(cls, out: Path) -> Job:
        if not (out / JOB).exists():
            raise InputError(f"{out} holds no comparison.")
        check_inside(out)
        try:
            return build(cls, _current(from_json(read_text(out / JOB), 1 << 63)))
        except ValueError as error:
            raise InputError(f"{out / JOB} is damaged ({error}): give another folder with --out.") from None


def _current(plain: Any) -> Any:
    """Convert a job of version 0.1 to the current form."""
    if not isinstance(plain, dict) or "source" not in plain:
        return plain
    names = ("source", "schema", "header", "user", "public_size", "hold_out", "unprotected_test", "note")
    kept = {
        name: plain[name]
        for name in ("epsilon", "delta", "methods", "minutes", "seed", "public", "command")
        if name in plain
    }
    settings = {"recipe": plain["recipe"]} if plain.get("recipe") else {}
    return kept | {"data": {name: plain[name] for name in names if name in plain}, "settings": settings}


def fitting(task: Task, *, every: bool = False) -> tuple[list[str], dict[str, str]]:
    """The methods that take part by default, or every one that fits; and why the others do not."""
    keys, left_out = [], {}
    for key, method in METHODS.items():
        reason = method.why_not(task)
        if not reason and not (every or method.by_default):
            reason = "it does not run by default: name it with --methods, or ask for all"
        if reason:
            left_out[key] = reason
        else:
            keys.append(key)
    return keys, left_out


@dataclass(frozen=True)
class Row:
    """How a method ended; its results are in the record of its run.

    Attributes:
        state: "done", "failed" or "left out".
        reason: why it failed or was left out.
        stopped: how the clock ended it, if it did.
        seconds, peak_megabytes: of its last worker.
    """

    method: str
    title: str
    state: str
    reason: str = ""
    stopped: str = ""
    seconds: float = 0.0
    peak_megabytes: float | None = None

    def done_in(self, seconds: float, peak: float | None) -> Row:
        return replace(self, seconds=round(seconds, 1), peak_megabytes=peak)

    def write(self, folder: Path) -> None:
        write_whole(folder / ROW, (json.dumps(dataclasses.asdict(self)) + "\n").encode(), mode=0o644)

    @classmethod
    def read(cls, folder: Path) -> Row | None:
        """The row in a folder; None if there is none, or only a part of one."""
        try:
            return build(cls, from_json(read_text(folder / ROW), 1 << 63))
        except ValueError:
            return None


_PEAK, _FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def begin_peak() -> None:
    """Measure the peak memory from now on, where the system can: a worker may have run another method before."""
    with suppress(OSError):
        _FORGET.write_text("5", encoding="ascii")


def peak_megabytes() -> float | None:
    """The peak memory of this process since `begin_peak`; None where the system does not say."""
    with suppress(OSError, ValueError, StopIteration):
        lines = _PEAK.read_text(encoding="ascii", errors="replace").splitlines()
        return round(int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 2**10, 1)
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


class TimeIsUp(BudgetExhausted):
    """The time limit is reached: the model stays as it is now."""


class Clock:
    """Ends a training when it has used its minutes, including the time before a resumed stop."""

    def __init__(self, folder: Path, minutes: float) -> None:
        self._path, self._limit = folder / CLOCK, 60 * minutes
        self._before = self._read()
        self._began = self._noted = time.monotonic()
        self.said = ""
        """How it ended the training, in words; empty if it did not."""

    def watching(self, on_step: OnStep) -> OnStep:
        """A callback that checks the clock after each step of a training."""

        def look(step: dict[str, Any]) -> None:
            on_step(step)
            if not self._limit or "loss" not in step:
                return
            now = time.monotonic()
            used = self._before + now - self._began
            if now - self._noted > _SECONDS:
                self._noted = now
                self._path.write_text(f"{used:.1f}\n", encoding="ascii")
            if used > self._limit and step["step"] < step["steps"]:
                self.said = f"ended by the clock after step {step['step']:,} of {step['steps']:,}"
                raise TimeIsUp(f"The training was {self.said}.")

        return look

    def _read(self) -> float:
        try:
            return float(self._path.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0.0
