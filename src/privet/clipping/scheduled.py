"""Flat clipping whose norm changes over a run as was planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from privet.clipping.bounded import BoundedSum, Deviations
from privet.clipping.factors import check_bound
from privet.clipping.flat import FlatClipping
from privet.gradients import PerExampleGradients
from privet.privacy import Schedule


@dataclass(frozen=True)
class ScheduledClipping:
    """Flat clipping to ``norms.at(step)``.

    Formal guarantees: the norms are fixed before the run, and noise is scaled by the norm of its own step, so that the event
    is that of flat clipping.
    """

    norms: Schedule
    step: int = 0

    def __post_init__(self) -> None:
        for norm, _ in self.norms.parts:
            check_bound(norm)

    @property
    def max_grad_norm(self) -> float:
        """The norm of this step."""
        return self.norms.at(self.step)

    def clip(self, gradients: PerExampleGradients) -> BoundedSum:
        return FlatClipping(self.max_grad_norm).clip(gradients)

    def after(self, noisy: Mapping[str, Tensor], expected_records: float, deviations: Deviations) -> ScheduledClipping:
        return replace(self, step=self.step + 1)
