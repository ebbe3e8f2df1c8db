"""Clipping to a Euclidean norm: flat, automatic, per layer, scheduled and quantile-adaptive."""

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
