"""Quantile-adaptive clipping: the norm follows a quantile of the gradient norms (Andrew et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from privet.clipping.bounded import BoundedSum, Deviations
from privet.clipping.factors import check_bound, clipping_factors
from privet.errors import InputError
from privet.gradients import PerExampleGradients

COUNT = "clipping: records below the norm, less half"
"""The name of the count among the tensors of the sum."""


@dataclass(frozen=True)
class AdaptiveClipping:
    """Clip to a norm that moves, after each noisy step, toward the `quantile` of the norms.

    Formal guarantees: how many records lie below the norm is one more coordinate of the released sum, counted as plus or
    minus a half for each record, so that one record changes it by a half. It takes `share` of the squared sensitivity
    and the gradient takes the rest: jointly the sum has the same bounds as any other, and the plan's noise covers both.
    The norm changes only through the *noisy* count (`after`), once a step, so it is post-processing; all physical
    batches of one step are clipped to one norm.

    Attributes:
        max_grad_norm: the norm of this step; the next step has the one that `after` gives.
        quantile: the fraction of records that shall lie below the norm.
        rate: how fast the norm moves: it is multiplied by ``exp(-rate * (fraction below - quantile))``.
        share: the part of the squared sensitivity that the count takes.
        minimum, maximum: the norm stays between them.
    """

    max_grad_norm: float = 1.0
    quantile: float = 0.5
    rate: float = 0.2
    share: float = 0.01
    minimum: float = 1e-4
    maximum: float = 1e4

    def __post_init__(self) -> None:
        check_bound(self.max_grad_norm)
        if not 0 < self.quantile < 1 or not 0 < self.share < 1:
            raise InputError("The quantile and the count's share must lie between 0 and 1.")

    def clip(self, gradients: PerExampleGradients) -> BoundedSum:
        norms = gradients.total_squared_norms().sqrt()
        tensors = gradients.weighted_sum(clipping_factors(norms, self.max_grad_norm), last=True)
        scales: dict[str, torch.Tensor | float] = dict.fromkeys(tensors, self.max_grad_norm / math.sqrt(1 - self.share))
        below = torch.where(norms <= self.max_grad_norm, 0.5, -0.5).double()
        tensors[COUNT] = below[~gradients.bad].sum()
        scales[COUNT] = 0.5 / math.sqrt(self.share)
        joint = math.hypot(self.max_grad_norm, 0.5)
        dtypes = {**gradients.dtypes, COUNT: torch.float32}
        return BoundedSum(tensors, joint, scales, gradients.records, gradients.bad_count, dtypes)

    def after(
        self, noisy: Mapping[str, torch.Tensor], expected_records: float, deviations: Deviations
    ) -> AdaptiveClipping:
        """The clipping of the next step, whose norm the noisy count has moved."""
        fraction = float(noisy[COUNT]) / expected_records + 0.5
        factor = math.exp(-self.rate * (min(max(fraction, 0.0), 1.0) - self.quantile))
        return replace(self, max_grad_norm=min(max(self.max_grad_norm * factor, self.minimum), self.maximum))
