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
        scales = {name: self.max_grad_norm / self.diagonal[name] for name in tensors}
        longest = self.max_grad_norm / min(float(d.min()) for d in self.diagonal.values())
        return BoundedSum(tensors, longest, scales, gradients.records, int(gradients.bad.sum()))
