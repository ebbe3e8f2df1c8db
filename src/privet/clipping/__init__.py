"""Clipping: from gradients of records to a sum that no single record can change by much."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor

from privet.clipping.adaptive import AdaptiveClipping
from privet.clipping.automatic import AutomaticClipping
from privet.clipping.bounded import BoundedSum, Deviations
from privet.clipping.elliptical import EllipticalClipping, optimal_diagonal
from privet.clipping.flat import FlatClipping
from privet.clipping.moving import MovingEllipticalClipping
from privet.clipping.per_layer import PerLayerClipping
from privet.clipping.released import floored
from privet.clipping.scheduled import ScheduledClipping
from privet.gradients import PerExampleGradients


class Clipping(Protocol):
    """A way to bound what each record contributes."""

    def clip(self, gradients: PerExampleGradients) -> BoundedSum: ...


@runtime_checkable
class MovingClipping(Clipping, Protocol):
    """A clipping that is another one in the next step, by what was released and by nothing else."""

    def after(self, noisy: Mapping[str, Tensor], expected_records: float, deviations: Deviations) -> Clipping: ...


@runtime_checkable
class MetricClipping(Clipping, Protocol):
    """A clipping in a norm of its own, in which the step is taken too: post-processing of the release."""

    @property
    def metric(self) -> Mapping[str, Tensor] | None:
        """By what the released gradients are multiplied elementwise, if by anything."""
        ...


__all__ = [
    "AdaptiveClipping",
    "AutomaticClipping",
    "BoundedSum",
    "Clipping",
    "EllipticalClipping",
    "FlatClipping",
    "MetricClipping",
    "MovingClipping",
    "MovingEllipticalClipping",
    "PerLayerClipping",
    "ScheduledClipping",
    "floored",
    "optimal_diagonal",
]
