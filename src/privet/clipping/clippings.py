"""Clippings: to a Euclidean norm (flat, automatic, per layer, scheduled, adaptive), and to an ellipse."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from privet.clipping.bounded import BoundedSum, Clipping, Released, State, check_bound, clipping_factors
from privet.errors import InputError
from privet.gradients import PerExampleGradients
from privet.privacy import Schedule

COUNT = "clipping: records below the norm, less half"
"""The name of the count of `AdaptiveClipping` among the tensors of the sum."""


@dataclass(frozen=True)
class FlatClipping(Clipping):
    """``g / max(1, |g| / max_grad_norm)`` for each record (Abadi et al. 2016)."""

    max_grad_norm: float

    def __post_init__(self) -> None:
        check_bound(self.max_grad_norm)

    def clip(self, gradients: PerExampleGradients, state: State = None) -> BoundedSum:
        norms = gradients.total_squared_norms().sqrt()
        tensors = gradients.weighted_sum(clipping_factors(norms, self.max_grad_norm), last=True)
        scales = dict.fromkeys(tensors, self.max_grad_norm)
        return BoundedSum(tensors, self.max_grad_norm, scales, gradients.records, gradients.bad_count, gradients.dtypes)


@dataclass(frozen=True)
class AutomaticClipping(Clipping):
    """``max_grad_norm * g / (|g| + stability)`` for each record (Bu et al. 2022): always shorter than `max_grad_norm`.

    Every gradient is normalized, so that the clipping norm only scales the step.
    """

    max_grad_norm: float = 1.0
    stability: float = 0.01

    def __post_init__(self) -> None:
        check_bound(self.max_grad_norm)
        check_bound(self.stability, "The stability constant")

    def clip(self, gradients: PerExampleGradients, state: State = None) -> BoundedSum:
        norms = gradients.total_squared_norms().sqrt()
        tensors = gradients.weighted_sum(self.max_grad_norm / (norms + self.stability), last=True)
        scales = dict.fromkeys(tensors, self.max_grad_norm)
        return BoundedSum(tensors, self.max_grad_norm, scales, gradients.records, gradients.bad_count, gradients.dtypes)


@dataclass(frozen=True)
class ScheduledClipping(Clipping):
    """Flat clipping to ``norms.at(step)``; the state is the number of the step.

    Formal guarantees: the norms are fixed before the run, and the noise of a step is scaled by the norm of that step, so that
    the event is that of flat clipping.
    """

    norms: Schedule

    def __post_init__(self) -> None:
        for norm, _ in self.norms.parts:
            check_bound(norm)

    def init(self, parameters: Mapping[str, Tensor]) -> int:
        return 0

    def clip(self, gradients: PerExampleGradients, state: int | None = None) -> BoundedSum:
        return FlatClipping(self.norms.at(state or 0)).clip(gradients)

    def update(self, state: int, released: Released) -> int:
        return state + 1


@dataclass(frozen=True)
class AdaptiveClipping(Clipping):
    """Clip to a norm that follows a quantile of the gradient norms (Andrew et al. 2021); the state is that norm.

    Formal guarantees: the number of records below the norm is one more coordinate of the released sum, counted as plus or
    minus one half for each record, so that one record changes it by one half. It takes `share` of the squared sensitivity
    and the gradient takes the rest: jointly the sum has the same bounds as any other, and the plan's noise covers both.
    The norm changes through the *noisy* count only, once a step, which is post-processing. All physical batches of one step
    are clipped to the same norm.

    Attributes:
        max_grad_norm: the norm of the first step.
        quantile: the target fraction of records below the norm.
        rate: the learning rate of the norm, which is multiplied by ``exp(-rate * (fraction below - quantile))``.
        share: the part of the squared sensitivity that the count takes.
        minimum, maximum: limits of the norm.
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

    def init(self, parameters: Mapping[str, Tensor]) -> float:
        return self.max_grad_norm

    def clip(self, gradients: PerExampleGradients, state: float | None = None) -> BoundedSum:
        bound = self.max_grad_norm if state is None else state
        check_bound(bound)
        norms = gradients.total_squared_norms().sqrt()
        tensors = gradients.weighted_sum(clipping_factors(norms, bound), last=True)
        scales: dict[str, Tensor | float] = dict.fromkeys(tensors, bound / math.sqrt(1 - self.share))
        below = torch.where(norms <= bound, 0.5, -0.5).double()
        tensors[COUNT] = below[~gradients.bad].sum()
        scales[COUNT] = 0.5 / math.sqrt(self.share)
        dtypes = {**gradients.dtypes, COUNT: torch.float32}
        return BoundedSum(tensors, math.hypot(bound, 0.5), scales, gradients.records, gradients.bad_count, dtypes)

    def update(self, state: float, released: Released) -> float:
        fraction = float(released.noisy[COUNT]) / released.expected_records + 0.5
        factor = math.exp(-self.rate * (min(max(fraction, 0.0), 1.0) - self.quantile))
        return min(max(state * factor, self.minimum), self.maximum)


@dataclass(frozen=True)
class PerLayerClipping(Clipping):
    """Clip the gradient of each layer (the parameters of one module) to its own norm.

    Formal guarantees: all layers come from one sample of records, so one record changes all of them: the joint
    sensitivity is the root of the sum of the squared layer norms, and that is accounted. (Accounting the layers
    as independent samplings, as the original DP-SGD code did, undercounts.)

    Attributes:
        max_grad_norm: the joint sensitivity. Each of k layers gets ``max_grad_norm / sqrt(k)``, unless `norms` is given.
        norms: a clipping norm for each layer by its name, in place of `max_grad_norm`.
    """

    max_grad_norm: float | None = None
    norms: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.max_grad_norm is None) == (not self.norms):
            raise InputError("Per-layer clipping takes either max_grad_norm or norms, a clipping norm for each layer.")
        for bound in (self.max_grad_norm,) if self.max_grad_norm is not None else self.norms.values():
            check_bound(bound)

    def clip(self, gradients: PerExampleGradients, state: State = None) -> BoundedSum:
        layers: dict[str, list[str]] = defaultdict(list)
        for name in gradients.names:
            layers[layer_of(name)].append(name)
        bounds = self._bounds(list(layers))
        squared = gradients.squared_norms()
        weights = {}
        for layer, names in layers.items():
            norms = torch.stack([squared[name] for name in names]).sum(0).sqrt()
            weights.update(dict.fromkeys(names, clipping_factors(norms, bounds[layer])))
        tensors = gradients.weighted_sum(weights, last=True)
        # The noise of each layer is proportional to its norm: the sum over layers of (norm / scale)^2 is 1.
        scales = {name: bounds[layer_of(name)] * math.sqrt(len(layers)) for name in tensors}
        joint = math.sqrt(sum(bound**2 for bound in bounds.values()))
        return BoundedSum(tensors, joint, scales, gradients.records, gradients.bad_count, gradients.dtypes)

    def _bounds(self, layers: list[str]) -> dict[str, float]:
        if self.max_grad_norm is not None:
            return dict.fromkeys(layers, self.max_grad_norm / math.sqrt(len(layers)))
        if set(self.norms) != set(layers):
            odd = sorted(set(self.norms) ^ set(layers))
            raise InputError(
                f"The clipping norms do not match the layers of the model; they differ in: {', '.join(odd)}."
            )
        return dict(self.norms)


def layer_of(parameter: str) -> str:
    """The name of the module that a parameter belongs to; empty for a parameter of the model itself."""
    return parameter.rpartition(".")[0]


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
            variance = (torch.as_tensor(deviation, device=noisy.device) / self.max_grad_norm).square().expand_as(noisy)
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
