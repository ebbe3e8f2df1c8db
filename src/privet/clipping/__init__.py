"""Clipping: from gradients of records to a sum that no single record can change by much."""

from typing import Protocol

from privet.clipping.adaptive import AdaptiveClipping
from privet.clipping.automatic import AutomaticClipping
from privet.clipping.bounded import BoundedSum
from privet.clipping.elliptical import EllipticalClipping
from privet.clipping.flat import FlatClipping
from privet.clipping.per_layer import PerLayerClipping
from privet.gradients import PerExampleGradients


class Clipping(Protocol):
    """A way to bound what each record contributes."""

    def clip(self, gradients: PerExampleGradients) -> BoundedSum: ...


__all__ = [
    "AdaptiveClipping",
    "AutomaticClipping",
    "BoundedSum",
    "Clipping",
    "EllipticalClipping",
    "FlatClipping",
    "PerLayerClipping",
]
