"""Elliptical clipping whose diagonal follows the gradients that were released."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from privet.clipping.bounded import BoundedSum, Deviations
from privet.clipping.elliptical import EllipticalClipping, optimal_diagonal
from privet.clipping.factors import check_bound
from privet.clipping.flat import FlatClipping
from privet.clipping.released import divided, joined
from privet.errors import InputError
from privet.gradients import PerExampleGradients

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class MovingEllipticalClipping:
    """Clip ``|D g| <= max_grad_norm``, with D the best one (L2 cost) for the squares of the gradients released so far.

    A single coordinate of a release is mostly noise. So the squares, less the known variance of the noise, are averaged over
    the rows and over the columns of each weight and over all steps: a coordinate's moment is the product of its row's and
    its column's. Each of them is raised by its standard error: what is not seen above the noise is not trusted to be small.
    D clips away as much as flat clipping to the same norm would, by these moments.

    The release is multiplied by D^2 before the optimizer has it: that is the steepest step in the norm that clips. With the
    plain gradient the ellipsoid would gain nothing where the squares of gradients are near the curvature of the cost.

    Formal guarantees: D is a function of what was released before, so the accountant is that of flat clipping with the same
    noise multiplier; the factor D^2 is post-processing.

    Attributes:
        max_grad_norm: the bound.
        warmup: so many first steps are clipped flat.
        steps: how many releases are in the sums.
        rows, columns: the sums of the squares less the noise's variance, in units of the bound.
        row_variances, column_variances: the sums of the variances of these.
    """

    max_grad_norm: float = 1.0
    warmup: int = 10
    steps: int = 0
    rows: Tensors | None = None
    columns: Tensors | None = None
    row_variances: Tensors | None = None
    column_variances: Tensors | None = None

    def __post_init__(self) -> None:
        check_bound(self.max_grad_norm)
        if self.warmup < 1:
            raise InputError(f"At least one step is clipped flat before there is an ellipsoid, not {self.warmup!r}.")

    @cached_property
    def now(self) -> FlatClipping | EllipticalClipping:
        """The clipping of this step."""
        if self.steps < self.warmup or self.rows is None or self.columns is None:
            return FlatClipping(self.max_grad_norm)
        rows = self._seen(self.rows, self.row_variances)
        columns = self._seen(self.columns, self.column_variances)
        moments = {name: row * columns[name] / row.mean() for name, row in rows.items()}
        vector = joined(moments)
        d = optimal_diagonal(vector, torch.ones_like(vector), "l2") * vector.sum(dtype=torch.float64).sqrt()
        return EllipticalClipping(divided(d.to(vector.dtype), moments), self.max_grad_norm)

    def _seen(self, sums: Tensors, variances: Tensors | None) -> dict[str, Tensor]:
        """The mean squares, each raised by its standard error."""
        assert variances is not None
        return {n: (total.clamp(min=0) + variances[n].sqrt()) / self.steps for n, total in sums.items()}

    @cached_property
    def metric(self) -> Tensors | None:
        """D^2, by which the release of this step is multiplied; None while clipping is flat."""
        if isinstance(self.now, FlatClipping):
            return None
        return {name: d.square() for name, d in self.now.diagonal.items()}

    def clip(self, gradients: PerExampleGradients) -> BoundedSum:
        return self.now.clip(gradients)

    def after(self, noisy: Tensors, expected_records: float, deviations: Deviations) -> MovingEllipticalClipping:
        """The clipping of the next step; `deviations` are those of the noise in the release."""
        found: dict[str, dict[str, Tensor]] = {field: {} for field in _SUMS}
        for name, deviation in deviations().items():
            variance = (torch.as_tensor(deviation) / self.max_grad_norm).square().expand_as(noisy[name])
            square = (noisy[name] / self.max_grad_norm).square() - variance
            # The square of a normal number varies by twice the square of its variance.
            pooled = (*_means(square), *_mean_variances(2 * variance.square()))
            for field, value in zip(_SUMS, pooled, strict=True):
                before = getattr(self, field)
                found[field][name] = value if before is None else before[name] + value
        return replace(self, steps=self.steps + 1, **found)  # type: ignore[arg-type]

    def describe(self) -> str:
        return f"each record's gradient to an ellipsoid that follows the released gradients; C = {self.max_grad_norm:g}"


_SUMS = ("rows", "columns", "row_variances", "column_variances")


def _means(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The means of the rows and of the columns, whose product has the tensor's shape; a vector is one row."""
    if tensor.ndim < 2:
        return tensor.mean(), tensor
    return tensor.mean(tuple(range(1, tensor.ndim)), keepdim=True), tensor.mean(0, keepdim=True)


def _mean_variances(variances: Tensor) -> tuple[Tensor, Tensor]:
    """The variances of such means, of independent numbers with these variances."""
    rows, columns = _means(variances)
    return rows * (rows.numel() / variances.numel()), columns * (columns.numel() / variances.numel())
