"""Logs of a training: every step as a line of a CSV file, and as points of TensorBoard where it is installed.

What is logged was computed from the records without noise: logs are for whoever holds the data, and not for release.
"""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from privet.training.standing import OnStep

FILE = "steps.csv"
COLUMNS = ("what", "step", "steps", "loss", "accuracy", "epsilon", "delta", "guarantee", "seconds")
TENSORBOARD = "tensorboard"


class CsvLog:
    """Steps as lines of a CSV file that only its owner can read. A dictionary's further entries get columns of their own.

    Where the file is there already, the lines of steps that are done again are dropped.
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
        """The whole lines of the file; a line that was being written when the process died is not one of them."""
        if not self._path.exists():
            return []
        rows = csv.DictReader(io.StringIO(self._path.read_text(encoding="utf-8")))
        return [row for row in rows if None not in row.values() and str(row.get("step")).isdecimal()]


class TensorBoardLog:
    """The numbers of each step as scalars of TensorBoard."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def __call__(self, step: Mapping[str, Any]) -> None:
        for name, value in step.items():
            if isinstance(value, int | float) and name not in ("step", "steps", "delta"):
                self._writer.add_scalar(name, value, step["step"])

    def close(self) -> None:
        self._writer.close()

    @classmethod
    def where_installed(cls, folder: Path) -> TensorBoardLog | None:
        """A log in the folder, or None where TensorBoard is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        return cls(SummaryWriter(str(folder)))


@contextmanager
def logged(folder: Path, *also: OnStep | None) -> Iterator[OnStep]:
    """A callback that logs every step of a training to `folder`, and hands everything on to the others.

    Work without a loss (features that are computed, say) is handed on and not logged.
    """
    logs: list[CsvLog | TensorBoardLog] = []

    def on_step(step: dict[str, Any]) -> None:
        if "loss" in step and not logs:
            # Not before there is something to log: a run that is refused leaves nothing behind.
            board = TensorBoardLog.where_installed(folder / TENSORBOARD)
            logs.extend([CsvLog(folder / FILE), *([board] if board else [])])
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
