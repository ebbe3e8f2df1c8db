"""Clipping: from the gradients of records to a sum that one record can change only by a known amount."""

from privet.clipping.bounded import BoundedSum, Clipping, Deviations, Released, State
from privet.clipping.elliptical import EllipticalClipping, MovingEllipticalClipping, floored, optimal_diagonal
from privet.clipping.spherical import (
    AdaptiveClipping,
    AutomaticClipping,
    FlatClipping,
    PerLayerClipping,
    ScheduledClipping,
)

__all__ = [
    "AdaptiveClipping",
    "AutomaticClipping",
    "BoundedSum",
    "Clipping",
    "Deviations",
    "EllipticalClipping",
    "FlatClipping",
    "MovingEllipticalClipping",
    "PerLayerClipping",
    "Released",
    "ScheduledClipping",
    "State",
    "floored",
    "optimal_diagonal",
]
