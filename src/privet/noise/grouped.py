"""Grouped L2 noise, the near-optimal pure-epsilon noise: coordinates of similar weight share a radius."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from privet.clipping import BoundedSum, Released, floored
from privet.clipping.elliptical import joined
from privet.errors import InputError
from privet.noise.additive import AdditiveNoise, Noise, SteadyNoise, require_bounded
from privet.noise.bound import isotropic_constant, lower_bound, require_budget, require_weights
from privet.privacy import Claimed, Event, GroupedL2, PureEpsilon
from privet.randomness import Source
from privet.randomness.sources import CHUNK, fill_normal, gamma

Array = npt.NDArray[Any]

_EXACT = 1024
"""Up to this many coordinates, every division into blocks of sorted coordinates is considered."""


@dataclass(frozen=True, eq=False)
class GroupedL2Noise(AdditiveNoise):
    """Density ~ exp(-sum_g a_g |z_g|_2) over groups g of coordinates.

    Formal guarantees: pure `epsilon` for shifts of L2 norm at most `alpha`, as sum a_g^2 = (epsilon / alpha)^2 (triangle
    inequality, then Cauchy-Schwarz). `solve` never costs more than product Laplace noise or isotropic noise.

    Attributes:
        groups: the group of each coordinate.
        rates: a_g of each group.
        sizes: the number of coordinates in each group.
        gap: the cost of the solution over the proved lower bound.
    """

    groups: Tensor
    rates: tuple[float, ...]
    sizes: tuple[int, ...]
    epsilon: float
    alpha: float
    gap: float

    @classmethod
    def solve(cls, w: Tensor, epsilon: float, alpha: float = 1.0) -> GroupedL2Noise:
        """The grouped noise of least cost: exact up to 1,024 coordinates; beyond, weights are binned by factors of sqrt 2.

        A group of d_g coordinates of total weight W_g costs c_g = W_g K(d_g) for a rate of 1; the best rates are ~ c_g^(1/3), at
        a total cost of (alpha / epsilon) (sum c_g^(2/3))^(3/2). Consecutive blocks of the sorted weights are best, so that the
        best division is found block by block. Inside a factor of sqrt 2, one group is always better than Laplace noise.
        """
        require_budget(epsilon, alpha)
        bins, sizes, totals = _binned(require_weights(w))
        block_of_bin = _best_blocks(sizes, totals)
        count = int(block_of_bin[-1]) + 1
        size = np.bincount(block_of_bin, sizes, count)
        each = isotropic_constant(size) * np.bincount(block_of_bin, totals, count)
        power = float((each ** (2 / 3)).sum())
        rates = each ** (1 / 3) * (epsilon / alpha / math.sqrt(power))
        groups = torch.from_numpy(block_of_bin.astype(np.int32)).to(w.device).index_select(0, bins)
        gap = alpha / epsilon * power**1.5 / lower_bound(w, epsilon, alpha)
        return cls(groups, tuple(rates.tolist()), tuple(size.astype(int).tolist()), epsilon, alpha, gap)

    @property
    def dimension(self) -> int:
        return len(self.groups)

    def sample(self, source: Source, dtype: torch.dtype = torch.float32) -> Tensor:
        """Normal numbers times a random scale for each group.

        N(0, V) with V ~ Gamma((d + 1)/2) of rate a^2/2 has density ~ exp(-a |z|_2) in d coordinates (for d = 1, Laplace),
        so that no norm of a group has to be computed.
        """
        shapes = (torch.tensor(self.sizes, dtype=torch.float64) + 1) / 2
        scales = (2 * gamma(shapes, source)).sqrt() / torch.tensor(self.rates, dtype=torch.float64)
        scales = scales.to(self.groups.device, dtype)
        z = torch.empty(self.dimension, dtype=dtype, device=self.groups.device)
        for chunk, groups in zip(z.split(CHUNK), self.groups.split(CHUNK), strict=True):
            fill_normal(chunk, source).mul_(scales.index_select(0, groups))
        return z

    def cost(self, w: Tensor) -> float:
        totals = _totals(self.groups, require_weights(w, self.dimension), len(self.rates))
        return float((totals.cpu().numpy() * isotropic_constant(np.array(self.sizes)) / np.array(self.rates)).sum())

    def event(self, step: int = 0) -> Event:
        return GroupedL2(tuple(rate * self.alpha for rate in self.rates))

    def variances(self) -> Tensor:
        each = [(size + 1) / rate**2 for size, rate in zip(self.sizes, self.rates, strict=True)]
        return torch.tensor(each, device=self.groups.device).index_select(0, self.groups)

    def describe(self) -> str:
        return f"grouped L2 in {len(self.rates)} groups, pure epsilon {self.epsilon:.4g} a step"


def _totals(bins: Tensor, w: Tensor, count: int) -> Tensor:
    return torch.bincount(bins, weights=w, minlength=count).double()


def _binned(w: Tensor) -> tuple[Tensor, Array, Array]:
    """The bin of each coordinate, heaviest bins first, with the number and the total weight of the coordinates in each bin."""
    if len(w) <= _EXACT:
        order = w.argsort(descending=True)
        bins = torch.empty_like(order, dtype=torch.int32)
        bins[order] = torch.arange(len(w), dtype=torch.int32, device=w.device)
        return bins, np.ones(len(w)), w[order].double().cpu().numpy()
    bins = (w.max() / w).log2_().mul_(2).to(torch.int32)
    sizes, totals = torch.bincount(bins), _totals(bins, w, 0)
    used = sizes > 0
    # Empty bins are left out.
    place = (used.cumsum(0) - 1).to(torch.int32)
    return place.index_select(0, bins), sizes[used].double().cpu().numpy(), totals[used].cpu().numpy()


def _best_blocks(sizes: Array, totals: Array) -> Array:
    """The block of each bin, in the division into consecutive blocks with the least sum (W K(d))^(2/3)."""
    size, total = (np.concatenate(([0.0], np.cumsum(values))) for values in (sizes, totals))
    best, start = np.zeros(len(size)), np.zeros(len(size), dtype=np.int64)
    for end in range(1, len(size)):
        here = isotropic_constant(size[end] - size[:end]) * (total[end] - total[:end])
        costs = best[:end] + here ** (2 / 3)
        start[end] = costs.argmin()
        best[end] = costs[start[end]]
    lengths, end = list[int](), len(sizes)
    while end:
        lengths.append(end - int(start[end]))
        end = int(start[end])
    return np.repeat(np.arange(len(lengths)), lengths[::-1])


Weights = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class ShapedNoise(SteadyNoise):
    """The grouped L2 noise of least cost for `weights`, solved for each sum; without weights, all coordinates weigh the same.

    Formal guarantees: pure epsilon 1 / multiplier for any weights that do not depend on the private records, or depend
    on them only through releases that are accounted separately. Weights below 0.001 of their median are raised to it.

    Attributes:
        multiplier: 1 / epsilon of one step.
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
        """The sum with fresh noise."""
        require_bounded(bounded)
        return self.solved(bounded).add(bounded, source)

    def deviations(self, bounded: BoundedSum) -> dict[str, Tensor | float]:
        return self.solved(bounded).deviations(bounded)

    def event(self, step: int = 0) -> Event:
        return PureEpsilon(1 / self.multiplier)

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
        # Noise is drawn in units of the scales, so it weighs more where they are larger.
        scales = [torch.as_tensor(bounded.scales[n]).expand(t.shape).flatten() for n, t in bounded.tensors.items()]
        return w * torch.cat(scales).to(w.dtype)


@dataclass(frozen=True)
class MovingShapeNoise(Noise):
    """`ShapedNoise` whose weights are the magnitudes of a moving average of the released gradients, which is the state.

    Formal guarantees: the weights are post-processing of earlier releases, so that every step has the same `event`.
    """

    multiplier: float
    decay: float = 0.9

    def __post_init__(self) -> None:
        require_budget(self.multiplier, 1.0)
        if not 0 <= self.decay < 1:
            raise InputError(f"The decay of a moving average is at least 0 and below 1, and this is {self.decay!r}.")

    def event(self, step: int = 0) -> Event:
        return PureEpsilon(1 / self.multiplier)

    def at(self, step: int, state: Weights | None = None) -> ShapedNoise:
        return ShapedNoise(self.multiplier, state)

    def update(self, state: Weights | None, released: Released) -> dict[str, Tensor]:
        # The average begins at zero: only its shape matters, not its size.
        if state is None:
            return {name: (1 - self.decay) * tensor for name, tensor in released.noisy.items()}
        return {name: torch.lerp(tensor, state[name], self.decay) for name, tensor in released.noisy.items()}

    def describe(self) -> str:
        return f"{ShapedNoise(self.multiplier).describe()} shaped by the released gradients,"


@dataclass(frozen=True, eq=False)
class PublishedShapeNoise(SteadyNoise):
    """`ShapedNoise` whose weights come from the private records, as published (Xiang et al. 2019).

    Formal guarantees: none. The noise of a step has pure epsilon for a fixed shape, and this shape depends on the
    records: `event` says so, and so does every statement computed from it.

    Attributes:
        multiplier: 1 / epsilon of one step, as claimed.
        sensitivity: computes the derivative of the cost over the training records; called in every step.
    """

    multiplier: float
    sensitivity: Callable[[], Weights]

    def __post_init__(self) -> None:
        require_budget(self.multiplier, 1.0)

    def add(self, bounded: BoundedSum, source: Source) -> dict[str, Tensor]:
        return ShapedNoise(self.multiplier, self.sensitivity()).add(bounded, source)

    def deviations(self, bounded: BoundedSum) -> dict[str, Tensor | float]:
        return ShapedNoise(self.multiplier, self.sensitivity()).deviations(bounded)

    def event(self, step: int = 0) -> Event:
        return PureEpsilon(1 / self.multiplier).under(CLAIM)

    def describe(self) -> str:
        return f"{ShapedNoise(self.multiplier).describe()} shaped by the private records as published,"


CLAIM = Claimed("Xiang et al. 2019", "the shape of the noise was computed from the private records without protection")
