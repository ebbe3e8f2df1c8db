"""Elliptical clipping: coordinates that matter more, or are larger, are clipped and noised on their own scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from privet.clipping.bounded import BoundedSum, Clipping, Released, State, check_bound, clipping_factors
from privet.clipping.spherical import FlatClipping
from privet.errors import InputError
from privet.gradients import PerExampleGradients

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class EllipticalClipping(Clipping):
    """Clip ``|D g| <= max_grad_norm`` for each record, with D a positive diagonal.

    Formal guarantees: the sum of ``D g`` has sensitivity `max_grad_norm`, so noise ``sigma * max_grad_norm * D^-1`` on the
    sum of g is the Gaussian mechanism with multiplier sigma: the event is that of flat clipping. D must not
    depend on the private records except through earlier releases.

    Attributes:
        diagonal: D for each parameter by its name, in the parameter's shape.
        max_grad_norm: the bound.
    """

    diagonal: Tensors
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        check_bound(self.max_grad_norm)
        for name, d in self.diagonal.items():
            if not bool(torch.isfinite(d).all()) or not bool((d > 0).all()):
                raise InputError(f"The diagonal for '{name}' must be positive and finite everywhere.")

    def clip(self, gradients: PerExampleGradients, state: State = None) -> BoundedSum:
        if set(self.diagonal) != set(gradients.names):
            odd = sorted(set(self.diagonal) ^ set(gradients.names))
            raise InputError(f"The diagonal does not match the model's parameters; they differ in: {', '.join(odd)}.")
        norms = gradients.scaled_squared_norms(self.diagonal).sqrt()
        tensors = gradients.weighted_sum(clipping_factors(norms, self.max_grad_norm), last=True)
        scales = {name: self.max_grad_norm / self.diagonal[name].double() for name in tensors}
        longest = self.max_grad_norm / min(float(d.min()) for d in self.diagonal.values())
        return BoundedSum(tensors, longest, scales, gradients.records, gradients.bad_count, gradients.dtypes)


@dataclass(frozen=True)
class MovingEllipticalClipping(Clipping):
    """Clip ``|D g| <= max_grad_norm``, with the best D (L2 cost) for the squares of the gradients released so far.

    A single coordinate of a release is mostly noise. So the squares, less the known variance of the noise, are averaged over
    the rows and over the columns of each weight and over all steps: the moment of a coordinate is the product of the moments
    of its row and its column. Each is raised by its standard error, because a value below the noise cannot be trusted to be
    small. By these moments, D clips away as much as flat clipping to the same norm would.

    The release is multiplied by D^2 before the optimizer gets it: this is the steepest step in the norm that clips. With the
    plain gradient the ellipsoid would gain nothing where the squares of gradients are near the curvature of the cost.

    Formal guarantees: D is a function of earlier releases, so the event is that of flat clipping with the same
    noise multiplier; the factor D^2 is post-processing.

    The state holds the number of releases (`steps`), D (`diagonal`; None before the first ellipsoid), the sums of
    the squares less the variance of the noise, in units of the bound (`rows`, `columns`), and the sums of the variances of
    these (`row_variances`, `column_variances`).

    Attributes:
        max_grad_norm: the bound.
        warmup: the number of first steps that are clipped flat.
    """

    max_grad_norm: float = 1.0
    warmup: int = 10

    def __post_init__(self) -> None:
        check_bound(self.max_grad_norm)
        if self.warmup < 1:
            raise InputError(f"At least one step is clipped flat before there is an ellipsoid, not {self.warmup!r}.")

    def init(self, parameters: Tensors) -> dict[str, State]:
        return {"steps": 0, "diagonal": None, **{name: {} for name in _SUMS}}

    def clip(self, gradients: PerExampleGradients, state: Mapping[str, State] | None = None) -> BoundedSum:
        if state is None or state["diagonal"] is None:
            return FlatClipping(self.max_grad_norm).clip(gradients)
        return EllipticalClipping(state["diagonal"], self.max_grad_norm).clip(gradients)

    def update(self, state: Mapping[str, State], released: Released) -> dict[str, State]:
        sums: dict[str, dict[str, Tensor]] = {name: {} for name in _SUMS}
        for name, deviation in released.deviations().items():
            noisy = released.noisy[name] / self.max_grad_norm
            variance = (torch.as_tensor(deviation) / self.max_grad_norm).square().expand_as(noisy)
            # The square of a normal number has twice the square of its variance as variance.
            pooled = (*_means(noisy.square() - variance), *_mean_variances(2 * variance.square()))
            for key, value in zip(_SUMS, pooled, strict=True):
                sums[key][name] = state[key][name] + value if name in state[key] else value
        steps = state["steps"] + 1
        return {"steps": steps, "diagonal": _diagonal(steps, sums) if steps >= self.warmup else None, **sums}

    def metric(self, state: Mapping[str, State]) -> dict[str, Tensor]:
        return {name: d.square() for name, d in (state["diagonal"] or {}).items()}

    def describe(self) -> str:
        return f"each record's gradient to an ellipsoid that follows the released gradients; C = {self.max_grad_norm:g}"


_SUMS = ("rows", "columns", "row_variances", "column_variances")


def _diagonal(steps: int, sums: Mapping[str, Tensors]) -> dict[str, Tensor]:
    """The best D for the mean squares, each raised by its standard error."""
    rows, columns = (
        {name: (total.clamp(min=0) + sums[variances][name].sqrt()) / steps for name, total in sums[key].items()}
        for key, variances in (("rows", "row_variances"), ("columns", "column_variances"))
    )
    moments = {name: row * columns[name] / row.mean() for name, row in rows.items()}
    vector = joined(moments)
    d = optimal_diagonal(vector, torch.ones_like(vector), "l2") * vector.sum(dtype=torch.float64).sqrt()
    return divided(d.to(vector.dtype), moments)


def _means(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The means of the rows and of the columns, whose product has the tensor's shape; a vector counts as one row."""
    if tensor.ndim < 2:
        return tensor.mean(), tensor
    return tensor.mean(tuple(range(1, tensor.ndim)), keepdim=True), tensor.mean(0, keepdim=True)


def _mean_variances(variances: Tensor) -> tuple[Tensor, Tensor]:
    """The variances of such means, for independent numbers with these variances."""
    rows, columns = _means(variances)
    return rows * (rows.numel() / variances.numel()), columns * (columns.numel() / variances.numel())


def optimal_diagonal(moments: Tensor, weights: Tensor, cost: str = "l1") -> Tensor:
    """The D with sum d_i^2 m_i = 1 for which noise of deviation ~ 1/d_i costs least.

    Args:
        moments: m_i, the mean square of coordinate i of a record's gradient: sum d_i^2 m_i bounds how much is clipped away.
        weights: w_i, the cost of noise in coordinate i: w_i |z_i| for "l1", w_i z_i^2 for "l2".
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


def floored(w: Tensor, share: float = 1e-3) -> Tensor:
    """The magnitudes of w, none below `share` of their median; all 1 where the median is 0."""
    w = w.abs()
    if not bool(w.isfinite().all()):
        raise InputError("The weights w are not finite everywhere.")
    least = share * float(w.median())
    return w.clamp(min=least) if least > 0 else torch.ones_like(w)


def joined(tensors: Tensors) -> Tensor:
    """All coordinates in one vector, in the order of the mapping."""
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


def divided(vector: Tensor, like: Tensors) -> dict[str, Tensor]:
    """The inverse of `joined`: the vector as tensors with the shapes of `like`."""
    parts = vector.split([tensor.numel() for tensor in like.values()])
    return {name: part.view(tensor.shape) for (name, tensor), part in zip(like.items(), parts, strict=True)}
