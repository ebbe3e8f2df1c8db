"""Elliptical clipping: coordinates that matter more, or are larger, are clipped and noised on their own scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from privet.clipping.bounded import BoundedSum
from privet.clipping.factors import check_bound, clipping_factors
from privet.errors import InputError
from privet.gradients import PerExampleGradients


@dataclass(frozen=True, eq=False)
class EllipticalClipping:
    """Clip ``|D g| <= max_grad_norm`` for each record, with D a positive diagonal.

    Formal guarantees: the sum of ``D g`` has sensitivity `max_grad_norm`, so noise ``sigma * max_grad_norm * D^-1`` on the
    sum of g is the Gaussian mechanism on it with multiplier sigma: the accountant is that of flat clipping. D must not
    depend on the private records except through what was released before.

    Attributes:
        diagonal: D for each parameter by its name, of the parameter's shape.
        max_grad_norm: the bound.
    """

    diagonal: Mapping[str, Tensor]
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        check_bound(self.max_grad_norm)
        for name, d in self.diagonal.items():
            if not bool(torch.isfinite(d).all()) or not bool((d > 0).all()):
                raise InputError(f"The diagonal for '{name}' must be positive and finite everywhere.")

    def clip(self, gradients: PerExampleGradients) -> BoundedSum:
        if set(self.diagonal) != set(gradients.names):
            odd = sorted(set(self.diagonal) ^ set(gradients.names))
            raise InputError(f"The diagonal does not match the model's parameters; they differ in: {', '.join(odd)}.")
        norms = gradients.scaled_squared_norms(self.diagonal).sqrt()
        tensors = gradients.weighted_sum(clipping_factors(norms, self.max_grad_norm), last=True)
        scales = {name: self.max_grad_norm / self.diagonal[name].double() for name in tensors}
        longest = self.max_grad_norm / min(float(d.min()) for d in self.diagonal.values())
        return BoundedSum(tensors, longest, scales, gradients.records, gradients.bad_count, gradients.dtypes)


def optimal_diagonal(moments: Tensor, weights: Tensor, cost: str = "l1") -> Tensor:
    """The D with sum d_i^2 m_i = 1 for which noise of deviation ~ 1/d_i costs least.

    Args:
        moments: m_i, the mean square of coordinate i of a record's gradient: sum d_i^2 m_i bounds how much is clipped away.
        weights: w_i, what noise in coordinate i costs: w_i |z_i| for "l1", w_i z_i^2 for "l2".
        cost: "l1" or "l2".
    """
    for what, values in (("second moments", moments), ("weights", weights)):
        if not bool(torch.isfinite(values).all()) or not bool((values > 0).all()):
            raise InputError(f"The {what} must be positive and finite everywhere.")
    if moments.shape != weights.shape:
        raise InputError(f"There are {len(moments)} second moments and {len(weights)} weights: give one of each.")
    if cost == "l1":
        total = (moments.pow(1 / 3) * weights.pow(2 / 3)).sum(dtype=torch.float64)
        return (weights / moments).pow(1 / 3) / total.sqrt().to(moments.dtype)
    if cost == "l2":
        total = (weights * moments).sqrt().sum(dtype=torch.float64)
        return (weights / moments).pow(1 / 4) / total.sqrt().to(moments.dtype)
    raise InputError(f"The cost is 'l1' or 'l2', not {cost!r}.")
