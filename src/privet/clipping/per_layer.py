"""Per-layer clipping: each layer's gradient is clipped on its own; one record still reaches all layers at once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from privet.clipping.bounded import BoundedSum
from privet.clipping.factors import check_bound, clipping_factors, total_norms
from privet.errors import InputError
from privet.gradients import PerExampleGradients


@dataclass(frozen=True)
class PerLayerClipping:
    """Clip the gradient of each layer (the parameters of one module) to its own norm.

    Formal guarantees: the layers come from one sample of records, so one record changes all of them: the joint
    sensitivity is the root of the sum of the squared layer norms, and that is what is accounted. (Accounting the layers
    as independent samplings, as the original DP-SGD code did, under-counts.)

    Attributes:
        max_grad_norm: the joint sensitivity. Each of k layers gets ``max_grad_norm / sqrt(k)``, unless `norms` is given.
        norms: a clipping norm for each layer by its name; then they decide, and `max_grad_norm` is derived from them.
    """

    max_grad_norm: float | None = None
    norms: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.max_grad_norm is None) == (not self.norms):
            raise InputError("Per-layer clipping takes either max_grad_norm or norms, a clipping norm for each layer.")
        for bound in (self.max_grad_norm,) if self.max_grad_norm is not None else self.norms.values():
            check_bound(bound)

    def clip(self, gradients: PerExampleGradients) -> BoundedSum:
        layers: dict[str, list[str]] = defaultdict(list)
        for name in gradients.names:
            layers[layer_of(name)].append(name)
        bounds = self._bounds(list(layers))
        squared = gradients.squared_norms()
        weights = {}
        for layer, names in layers.items():
            factors = clipping_factors(total_norms({n: squared[n] for n in names}), bounds[layer])
            weights.update(dict.fromkeys(names, factors))
        tensors = gradients.weighted_sum(weights, last=True)
        # Each layer's noise in proportion to its own norm: sum over layers of (norm / scale)^2 is 1.
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
    """The name of the module that a parameter belongs to; the empty name is the model itself."""
    return parameter.rpartition(".")[0]
