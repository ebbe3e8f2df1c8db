"""Flat clipping: the whole gradient of each record is scaled down to a norm (Abadi et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass

from privet.clipping.bounded import BoundedSum
from privet.clipping.factors import check_bound, clipping_factors
from privet.gradients import PerExampleGradients


@dataclass(frozen=True)
class FlatClipping:
    """``g / max(1, |g| / max_grad_norm)`` for each record."""

    max_grad_norm: float

    def __post_init__(self) -> None:
        check_bound(self.max_grad_norm)

    def clip(self, gradients: PerExampleGradients) -> BoundedSum:
        norms = gradients.total_squared_norms().sqrt()
        tensors = gradients.weighted_sum(clipping_factors(norms, self.max_grad_norm), last=True)
        scales = dict.fromkeys(tensors, self.max_grad_norm)
        return BoundedSum(tensors, self.max_grad_norm, scales, gradients.records, gradients.bad_count, gradients.dtypes)
