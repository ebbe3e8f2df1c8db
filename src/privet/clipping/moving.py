"""Elliptical clipping whose diagonal follows the gradients that were released."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from privet.clipping.bounded import BoundedSum
from privet.clipping.elliptical import EllipticalClipping, optimal_diagonal
from privet.clipping.factors import check_bound
from privet.clipping.flat import FlatClipping
from privet.clipping.released import check_decay, divided, floored, joined, moving_average
from privet.gradients import PerExampleGradients


@dataclass(frozen=True, eq=False)
class MovingEllipticalClipping:
    """Clip ``|D g| <= max_grad_norm``, with D the best one for the mean squares and magnitudes of the released gradients.

    D is scaled so that the noise has as much energy as that of flat clipping to the same norm: it is spread differently. The
    squares hold the noise of the releases too: where a coordinate's gradient is not seen above the noise, D falls back to
    the flat one by itself.

    Formal guarantees: D is a function of what was released before, so the accountant is that of flat clipping with the same
    noise multiplier.

    Attributes:
        max_grad_norm: the bound.
        decay: of the moving averages.
        warmup: so many first steps are clipped flat.
        cost: "l1", weighed by the released magnitudes, or "l2", with all coordinates weighed alike.
        average, square: the moving averages of the released gradients and of their squares.
        steps: how many releases they hold.
    """

    max_grad_norm: float = 1.0
    decay: float = 0.9
    warmup: int = 10
    cost: str = "l1"
    average: Mapping[str, Tensor] | None = None
    square: Mapping[str, Tensor] | None = None
    steps: int = 0

    def __post_init__(self) -> None:
        check_bound(self.max_grad_norm)
        check_decay(self.decay)
        optimal_diagonal(torch.ones(1), torch.ones(1), self.cost)

    @cached_property
    def now(self) -> FlatClipping | EllipticalClipping:
        """The clipping of this step."""
        if self.average is None or self.square is None or self.steps < self.warmup:
            return FlatClipping(self.max_grad_norm)
        moments = floored(joined(self.square))
        weights = floored(joined(self.average)) if self.cost == "l1" else torch.ones_like(moments)
        d = optimal_diagonal(moments, weights, self.cost)
        d *= d.pow(-2).mean(dtype=torch.float64).sqrt().to(d.dtype)
        return EllipticalClipping(divided(d, self.square), self.max_grad_norm)

    def clip(self, gradients: PerExampleGradients) -> BoundedSum:
        return self.now.clip(gradients)

    def after(self, noisy: Mapping[str, Tensor], expected_records: float) -> MovingEllipticalClipping:
        gradients = {name: tensor / expected_records for name, tensor in noisy.items()}
        squares = {name: tensor.square() for name, tensor in gradients.items()}
        return replace(
            self,
            average=moving_average(self.average, gradients, self.decay),
            square=moving_average(self.square, squares, self.decay),
            steps=self.steps + 1,
        )

    def describe(self) -> str:
        return f"each record's gradient to an ellipsoid that follows the released gradients; C = {self.max_grad_norm:g}"
