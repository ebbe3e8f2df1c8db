"""Noise: the only consumer of a bounded sum."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor

from privet.clipping import BoundedSum
from privet.noise.additive import AdditiveNoise
from privet.noise.bound import lower_bound
from privet.noise.compared import ComparedGaussianNoise
from privet.noise.gaussian import GaussianNoise
from privet.noise.grouped import GroupedL2Noise
from privet.noise.isotropic import IsotropicL2Noise
from privet.noise.laplace import ProductLaplaceNoise
from privet.noise.scheduled import ScheduledNoise
from privet.noise.shaped import MovingShapeNoise, PublishedShapeNoise, ShapedNoise
from privet.noise.staircase import StaircaseNoise
from privet.privacy import Event
from privet.randomness import Source


class Noise(Protocol):
    """What is added to a bounded sum in one step, and what that is worth."""

    def add(self, bounded: BoundedSum, source: Source) -> dict[str, Tensor]: ...

    def event(self) -> Event: ...

    def deviations(self, bounded: BoundedSum) -> dict[str, Tensor | float]:
        """The standard deviation of the noise in each tensor of the sum; public."""


class NoisePlan(Protocol):
    """The noise of every step of a run."""

    def at(self, step: int) -> Noise: ...

    def describe(self) -> str:
        """In a few words, for a report; C is the most that a record can contribute."""


@runtime_checkable
class MovingNoise(NoisePlan, Protocol):
    """A noise that has another shape in the next step, by what was released and by nothing else, at the same event."""

    def after(self, noisy: Mapping[str, Tensor], expected_records: float) -> NoisePlan: ...


__all__ = [
    "AdditiveNoise",
    "ComparedGaussianNoise",
    "GaussianNoise",
    "GroupedL2Noise",
    "IsotropicL2Noise",
    "MovingNoise",
    "MovingShapeNoise",
    "Noise",
    "NoisePlan",
    "ProductLaplaceNoise",
    "PublishedShapeNoise",
    "ScheduledNoise",
    "ShapedNoise",
    "StaircaseNoise",
    "lower_bound",
]
