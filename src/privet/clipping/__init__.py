"""Clipping: from the gradients of records to a sum that one record can change only by a known amount."""

from typing import TYPE_CHECKING

from privet.clipping.bounded import BoundedSum, Clipping, Deviations, Released, State
from privet.clipping.clippings import (
    AdaptiveClipping,
    AutomaticClipping,
    EllipticalClipping,
    FlatClipping,
    MovingEllipticalClipping,
    PerLayerClipping,
    ScheduledClipping,
    floored,
    optimal_diagonal,
)
from privet.io.moved import moved_names

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

if not TYPE_CHECKING:
    __getattr__ = moved_names(__name__)
