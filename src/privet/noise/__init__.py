"""Noise: the only consumer of a bounded sum."""

from typing import Protocol

from torch import Tensor

from privet.clipping import BoundedSum
from privet.noise.gaussian import GaussianNoise
from privet.noise.scheduled import ScheduledNoise
from privet.privacy import Event
from privet.randomness import Source


class Noise(Protocol):
    """What is added to a bounded sum in one step, and what that is worth."""

    def add(self, bounded: BoundedSum, source: Source) -> dict[str, Tensor]: ...

    def event(self) -> Event: ...

    @property
    def deviation(self) -> float:
        """The standard deviation of every coordinate, in units of the sum's scale."""


class NoisePlan(Protocol):
    """The noise of every step of a run."""

    def at(self, step: int) -> Noise: ...

    def describe(self) -> str:
        """In a few words, for a report; C is the most that a record can contribute."""


__all__ = ["GaussianNoise", "Noise", "NoisePlan", "ScheduledNoise"]
