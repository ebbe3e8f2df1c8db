"""Automatic clipping: every gradient is normalised, so that the clipping norm only scales the step (Bu et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from privet.clipping.bounded import BoundedSum
from privet.clipping.factors import check_bound
from privet.gradients import PerExampleGradients


@dataclass(frozen=True)
class AutomaticClipping:
    """``max_grad_norm * g / (|g| + stability)`` for each record: shorter than `max_grad_norm` whatever g is."""

    max_grad_norm: float = 1.0
    stability: float = 0.01

    def __post_init__(self) -> None:
        check_bound(self.max_grad_norm)
        check_bound(self.stability, "The stability constant")

    def clip(self, gradients: PerExampleGradients) -> BoundedSum:
        norms = gradients.total_squared_norms().sqrt()
        tensors = gradients.weighted_sum(self.max_grad_norm / (norms + self.stability), last=True)
        scales = dict.fromkeys(tensors, self.max_grad_norm)
        return BoundedSum(tensors, self.max_grad_norm, scales, gradients.records, gradients.bad_count, gradients.dtypes)
