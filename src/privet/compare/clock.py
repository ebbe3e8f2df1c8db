"""The same allowance of time for every method, also over a stop and a start."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from privet.training import BudgetExhausted
from privet.training.logs import OnStep

FILE = "clock.txt"
_SECONDS = 1.0


class TimeIsUp(BudgetExhausted):
    """The allowance of time is used: what was trained until here is the model."""


class Clock:
    """Ends a training when it has had its minutes; the time before a stop counts."""

    def __init__(self, folder: Path, minutes: float) -> None:
        self._path, self._limit = folder / FILE, 60 * minutes
        self._before = self._read()
        self._began = self._noted = time.monotonic()
        self.said = ""
        """How it ended the training, in words; empty if it did not."""

    def watching(self, on_step: OnStep) -> OnStep:
        """A callback that looks at the clock after each step of a training."""

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
