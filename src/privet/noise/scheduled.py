"""Gaussian noise whose multiplier changes over a run as was planned."""

from __future__ import annotations

from dataclasses import dataclass

from privet.noise.gaussian import GaussianNoise
from privet.privacy import Schedule


@dataclass(frozen=True)
class ScheduledNoise:
    """In step 0, 1, 2, ... the noise ``at(step)``; the event of each step is that of its own noise."""

    multipliers: Schedule

    def __post_init__(self) -> None:
        for multiplier, _ in self.multipliers.parts:
            GaussianNoise(multiplier)

    def at(self, step: int) -> GaussianNoise:
        return GaussianNoise(self.multipliers.at(step))

    def describe(self) -> str:
        first, last = (self.multipliers.parts[place][0] for place in (0, -1))
        return f"Gaussian, from {first:.4g} C in the first step to {last:.4g} C in the last"
