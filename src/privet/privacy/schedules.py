"""Noise that changes over a run."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby

from privet.errors import InputError
from privet.privacy.events import Event, Gaussian, PoissonSampled, composed


@dataclass(frozen=True)
class Schedule:
    """Noise multipliers over steps, as (noise multiplier, how many steps) in order."""

    parts: tuple[tuple[float, int], ...]

    def __post_init__(self) -> None:
        if not self.parts or any(count < 1 for _, count in self.parts):
            raise InputError("Every part of a schedule needs at least one step.")
        if not all(0 < value < math.inf for value, _ in self.parts):
            raise InputError(
                "Every value of a schedule (a noise multiplier, a clipping norm) must be a number above 0."
            )

    @classmethod
    def of(cls, multipliers: Sequence[float]) -> Schedule:
        """One multiplier for each step."""
        return cls(tuple((sigma, len(list(run))) for sigma, run in groupby(map(float, multipliers))))

    @classmethod
    def constant(cls, noise_multiplier: float, steps: int) -> Schedule:
        return cls(((noise_multiplier, steps),))

    @classmethod
    def linear(cls, first: float, last: float, steps: int, *, pieces: int = 100) -> Schedule:
        """From `first` to `last` in equal differences; `pieces` bounds how many different multipliers there are."""
        return cls._pieces([first + (last - first) * share for share in _shares(min(steps, pieces))], steps)

    @classmethod
    def exponential(cls, first: float, last: float, steps: int, *, pieces: int = 100) -> Schedule:
        """From `first` to `last` in equal ratios."""
        return cls._pieces([first * (last / first) ** share for share in _shares(min(steps, pieces))], steps)

    @classmethod
    def _pieces(cls, multipliers: list[float], steps: int) -> Schedule:
        if not multipliers:
            raise InputError(f"A schedule needs at least one step and one piece, and has {steps} steps.")
        ends = [round(steps * (i + 1) / len(multipliers)) for i in range(len(multipliers))]
        counts = [end - begin for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
        return cls(tuple(zip(multipliers, counts, strict=True)))

    @property
    def steps(self) -> int:
        return self._ends[-1] if self._ends else 0

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        """The step at which each part ends."""
        return tuple(accumulate(count for _, count in self.parts))

    def at(self, step: int) -> float:
        """The noise multiplier of step 0, 1, 2, ..."""
        if not 0 <= step < self.steps:
            raise InputError(f"The schedule has {self.steps} steps.")
        return self.parts[bisect_right(self._ends, step)][0]

    def scaled(self, factor: float) -> Schedule:
        """The same shape with every multiplier times `factor`."""
        return Schedule(tuple((sigma * factor, count) for sigma, count in self.parts))

    def event(self, rate: float) -> Event:
        """What a run with this schedule and Poisson sampling at `rate` does to the data."""
        return composed(*(PoissonSampled(rate, Gaussian(sigma)) * count for sigma, count in self.parts))

    @property
    def typical(self) -> float:
        """The constant multiplier with about the same cost."""
        return 1 / math.sqrt(math.fsum(count / sigma**2 for sigma, count in self.parts) / self.steps)


def _shares(count: int) -> list[float]:
    return [i / max(count - 1, 1) for i in range(count)]
