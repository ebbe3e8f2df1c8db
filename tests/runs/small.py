"""Small runs of every method, and moments at which they can be stopped; for `test_resumed.py` and `killed.py`."""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privet import data
from privet.attacks import pictures
from privet.data import Dataset
from privet.methods import DataSpec, Public, Task, method_for
from privet.privacy import Event, Ledger
from privet.report import RunRecord, figures
from privet.runs import Measuring, run

VOTES = {"labels": "votes", "teachers": 8, "queries": 20}
GAN = {"size": 40, "width": 2, "latent": 4}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "dpsgd": ("dpsgd", {"epochs": 1}),
    "optimized noise": ("optimized-noise", {"epochs": 1}),
    "svrg": ("svrg", {"steps": 9, "every": 2}),
    "residual": ("residual", {"epochs": 3, "pi": 5.0}),
    "residual by DP-SGD": ("residual-dpsgd", {"epochs": 0.3}),
    "pate": ("pate", {"teachers": 8, "queries": 40, "threshold": 3.0, "threshold_noise": 12.0}),
    "moments": ("moments", {"size": 40, "components": 6}),
    "moments with a teacher": ("moments", {"size": 40, "components": 6, "generator_share": 0.5, "teacher_steps": 5}),
    "moments with votes": ("moments", {"size": 40, "components": 6, **VOTES}),
    "table": ("table-moments", {"size": 40}),
    "dpgan": ("dpgan", {**GAN, "steps": 7, "lot": 60, "made": 20}),
    "dpgan with votes": ("dpgan", {**GAN, "steps": 4, "lot": 60, "made": 20, **VOTES}),
    "rows": ("noise-layer-gan", {**GAN, "dimension": 6, "epochs": 1.0, "steps": 12, "rows": 30, "width": 8}),
    "rows of random features": (
        "noise-layer-gan",
        {**GAN, "features": "random", "dimension": 6, "epochs": 1.0, "steps": 12, "rows": 30, "width": 8},
    ),
    "noise layer as published": ("noise-layer-gan-published", {**GAN, "epochs": 3.0}),
}
"""A method and its settings."""
PAID_ONCE = ("pate", "moments", "moments with votes", "table", "rows", "rows of random features")
"""Runs that use records in releases that are made once, and in nothing else."""
BUDGET, DELTA = 3.0, 1e-4
BATCHES = 13
"""Batches of residual perturbation in an epoch."""


@cache
def digits() -> Dataset:
    """Some of the digits."""
    whole = data.load("digits")
    parts = {"train": whole.train.select(range(400)), "test": whole.test.select(range(150))}
    return Dataset(whole.name, whole.classes, parts)


def task_of(name: str, seed: int | None, folder: Path) -> Task:
    """The digits; for a table, rows of a file whose test records are protected too."""
    if name == "table":
        return _table(seed, folder)
    spec, public = DataSpec("digits"), None
    if name == "pate":
        public = Public.of("60", digits(), spec)
    return Task.of(spec, digits(), BUDGET, DELTA, seed=seed, public=public)


def _table(seed: int | None, folder: Path) -> Task:
    table, schema = folder / "people.csv", folder / "people.json"
    if not schema.exists():
        folder.mkdir(parents=True, exist_ok=True)
        generator = np.random.default_rng(0)
        ages, incomes = generator.integers(20, 80, 500), generator.normal(50, 20, 500).clip(0, 100)
        rows = [
            f"{age},{income:.2f},{'yes' if age + income > 100 else 'no'}"
            for age, income in zip(ages, incomes, strict=True)
        ]
        table.write_text("\n".join(["age,income,owns", *rows]) + "\n")
        columns = {
            "age": {"low": 20, "high": 80, "whole": True},
            "income": {"low": 0, "high": 100},
            "owns": {"categories": ["no", "yes"]},
        }
        schema.write_text(json.dumps({"label": "owns", "columns": columns}))
    spec = DataSpec(f"csv:{table}", schema=str(schema))
    return Task.of(spec, spec.load(), BUDGET, DELTA, seed=seed)


@dataclass
class Moments:
    """Counts the moments of a run: before and after each write, and at each report. At one of them, something happens."""

    at: int = -1
    happens: Callable[[], None] = lambda: None
    """Called at moment `at`."""
    only: str = ""
    """Only moments of this kind count: "report", "write", or both."""
    count: int = field(default=0, init=False)

    def pass_by(self, kind: str) -> None:
        if self.only in ("", kind):
            self.count += 1
            if self.count - 1 == self.at:
                self.happens()

    def report(self, _: dict[str, Any]) -> None:
        self.pass_by("report")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, writes are counted."""
        with pytest.MonkeyPatch.context() as patched:
            for name in ("fsync", "replace", "unlink", "rename"):
                patched.setattr(os, name, self._around(getattr(os, name)))
            # Drawing takes most of the time of a small run, and is tested elsewhere.
            patched.setattr(figures, "_svg", lambda *_, **__: "<svg></svg>")
            patched.setattr(pictures, "draw_distances", lambda path, *_: path)
            yield

    def _around(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*given: Any, **named: Any) -> Any:
            self.pass_by("write")
            found = write(*given, **named)
            self.pass_by("write")
            return found

        return watched


def full_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "some file")


def ctrl_c() -> None:
    raise KeyboardInterrupt


def run_small(name: str, out: Path, seed: int | None, moments: Moments | None = None) -> RunRecord:
    """Start the run in `out`, or continue it."""
    moments = moments or Moments()
    task = task_of(name, seed, out.parent)
    key, settings = SETTINGS[name]
    method = method_for(key, task, settings)
    measuring = Measuring(students=("GaussianNB",))
    with moments.watched():
        return run(method, task, out, measuring=measuring, resume=True, on_step=moments.report)


def results(out: Path) -> dict[str, bytes]:
    """What a seeded run must have in common with one that was not stopped."""
    paths = [out / "model.safetensors"]
    # A ledger begins with a number of its own, so that its hashes differ from run to run: its events must not.
    paths += [path for path in (out / "release").glob("*") if path.name not in ("README.md", "ledger.jsonl")]
    found = {path.name: path.read_bytes() for path in paths if path.exists()}
    record = RunRecord.read(out)
    ledger = record.open_ledger(out)
    found["ledger"] = repr((list(ledger), ledger.conditions, ledger.relation, ledger.unit)).encode()
    told = (record.test_accuracy, record.utility, record.history, record.how, record.settings, record.internal)
    return found | {"told": repr(told).encode()}


def counted(ledger: Ledger) -> Counter[Event]:
    """How often the ledger holds what."""
    found = Counter[Event]()
    for event, count in ledger.event.leaves():
        found[event] += count
    return found


FILES = {"CARD.md", "card.json", "ledger.jsonl", "record.json", "report.html"}
MAY_STAY = FILES | {"model.safetensors", "model.py", "steps.csv", "release", "internal", "samples.png", "data.key"}
"""What a finished run leaves in its folder, and nothing else."""
