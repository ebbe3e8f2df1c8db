"""Grouped L2 noise for a training: shaped by weights that are fixed, public, or follow what was released."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privet.clipping import BoundedSum, floored
from privet.clipping.released import check_decay, joined, moving_average
from privet.errors import InputError
from privet.noise.additive import require_bounded
from privet.noise.bound import require_budget
from privet.noise.grouped import GroupedL2Noise
from privet.privacy import Claimed, Event, PureEpsilon
from privet.randomness import Source

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class ShapedNoise:
    """The grouped L2 noise of least cost for `weights`, solved for each sum; without weights, all coordinates weigh alike.

    Formal guarantees: pure epsilon 1 / multiplier for whatever weights that do not depend on the private records, or depend
    on them through releases that are accounted on their own. Weights below 0.001 of their median are lifted to it.

    Attributes:
        multiplier: 1 / epsilon of one use.
        weights: w for each tensor of the sum by its name.
    """

    multiplier: float
    weights: Weights | None = None

    def __post_init__(self) -> None:
        require_budget(self.multiplier, 1.0)

    def solved(self, bounded: BoundedSum) -> GroupedL2Noise:
        """The noise for this sum, in units of its scale."""
        return GroupedL2Noise.solve(self._weights(bounded), 1 / self.multiplier)

    def add(self, bounded: BoundedSum, source: Source) -> dict[str, Tensor]:
        """The sum with noise. Every call draws afresh."""
        require_bounded(bounded)
        return self.solved(bounded).add(bounded, source)

    def deviations(self, bounded: BoundedSum) -> dict[str, Tensor | float]:
        return self.solved(bounded).deviations(bounded)

    def event(self) -> Event:
        return PureEpsilon(1 / self.multiplier)

    def at(self, step: int) -> ShapedNoise:
        return self

    def describe(self) -> str:
        return f"grouped L2 of least cost, pure epsilon {1 / self.multiplier:.4g} a step, for contributions of norm C,"

    def _weights(self, bounded: BoundedSum) -> Tensor:
        if self.weights is None:
            return torch.cat([torch.ones(tensor.numel()) for tensor in bounded.tensors.values()])
        wrong = [n for n, t in bounded.tensors.items() if n not in self.weights or self.weights[n].shape != t.shape]
        if wrong or len(self.weights) != len(bounded.tensors):
            odd = wrong or sorted(set(self.weights) - set(bounded.tensors))
            raise InputError(f"The weights w do not match the sum; they differ in: {', '.join(odd)}.")
        w = floored(joined({name: self.weights[name] for name in bounded.tensors}))
        # Noise is drawn in units of the scales, so that it weighs as much more where they are larger.
        scales = [torch.as_tensor(bounded.scales[n]).expand(t.shape).flatten() for n, t in bounded.tensors.items()]
        return w * torch.cat(scales).to(w.dtype)


@dataclass(frozen=True, eq=False)
class MovingShapeNoise:
    """`ShapedNoise` whose weights are the magnitudes of the moving average of the gradients that were released.

    Formal guarantees: the weights are post-processing of what was released before, so that every step is `event`, whatever
    its shape.
    """

    multiplier: float
    decay: float = 0.9
    average: Weights | None = None

    def __post_init__(self) -> None:
        require_budget(self.multiplier, 1.0)
        check_decay(self.decay)

    def at(self, step: int) -> ShapedNoise:
        return ShapedNoise(self.multiplier, self.average)

    def after(self, noisy: Mapping[str, Tensor], expected_records: float) -> MovingShapeNoise:
        return replace(self, average=moving_average(self.average, noisy, self.decay))

    def describe(self) -> str:
        return f"{ShapedNoise(self.multiplier).describe()} shaped by the released gradients,"


@dataclass(frozen=True, eq=False)
class PublishedShapeNoise:
    """`ShapedNoise` whose weights come from the private records, as published (Xiang et al. 2019).

    Formal guarantees: none. The noise of a step is pure epsilon for a shape that is fixed, and this shape moves with the
    records: `event` says so, and every statement made of it.

    Attributes:
        multiplier: 1 / epsilon of one use, as claimed.
        sensitivity: the derivative of the cost over the training records, asked for in every step.
    """

    multiplier: float
    sensitivity: Callable[[], Weights]

    def __post_init__(self) -> None:
        require_budget(self.multiplier, 1.0)

    def at(self, step: int) -> PublishedShapeNoise:
        return self

    def add(self, bounded: BoundedSum, source: Source) -> dict[str, Tensor]:
        return ShapedNoise(self.multiplier, self.sensitivity()).add(bounded, source)

    def deviations(self, bounded: BoundedSum) -> dict[str, Tensor | float]:
        return ShapedNoise(self.multiplier, self.sensitivity()).deviations(bounded)

    def event(self) -> Event:
        return PureEpsilon(1 / self.multiplier).under(CLAIM)

    def describe(self) -> str:
        return f"{ShapedNoise(self.multiplier).describe()} shaped by the private records as published,"


CLAIM = Claimed("Xiang et al. 2019", "the shape of the noise was computed from the private records without protection")
