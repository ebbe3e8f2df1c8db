"""Pure-epsilon noise: noises of fixed shape (isotropic L2, product Laplace, staircase), and the near-optimal grouped L2 noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from privet.clipping import BoundedSum, Released, floored
from privet.clipping.clippings import joined
from privet.errors import InputError
from privet.noise.additive import (
    LEAST,
    AdditiveNoise,
    Noise,
    SteadyNoise,
    isotropic_constant,
    lower_bound,
    require_bounded,
    require_budget,
    require_weights,
)
from privet.privacy import Claimed, Event, GroupedL2, IsotropicL2, PureEpsilon
from privet.randomness import Source
from privet.randomness.sources import CHUNK, fill_laplace, fill_normal, gamma, uniform


@dataclass(frozen=True, eq=False)
class IsotropicL2Noise(AdditiveNoise):
    """Density ~ exp(-|z|_2 / s) in `dimension` coordinates, s = alpha / epsilon.

    Formal guarantees: pure `epsilon` for shifts of L2 norm at most `alpha`, and its privacy loss is known exactly: composed
    by PLD it costs far less than pure epsilon suggests, in many dimensions about as much as Gaussian noise of the same size.

    Attributes:
        multiplier: s / alpha, which is 1 / epsilon.
        gap: the cost over the proved lower bound, for the weights given to `solve`.
    """

    coordinates: int
    multiplier: float
    alpha: float = 1.0
    gap: float = math.nan

    def __post_init__(self) -> None:
        require_budget(self.multiplier, self.alpha)

    @classmethod
    def solve(cls, w: Tensor, epsilon: float, alpha: float = 1.0) -> IsotropicL2Noise:
        """The isotropic noise for these weights; only the number of weights matters."""
        require_budget(epsilon, alpha)
        noise = cls(len(require_weights(w)), 1 / epsilon, alpha)
        return replace(noise, gap=noise.cost(w) / lower_bound(w, epsilon, alpha))

    @property
    def epsilon(self) -> float:
        return 1 / self.multiplier

    @property
    def dimension(self) -> int:
        return self.coordinates

    @property
    def scale(self) -> float:
        return self.alpha * self.multiplier

    def sample(self, source: Source, dtype: torch.dtype = torch.float32) -> Tensor:
        """Normal numbers, times one random scale; see `GroupedL2Noise.sample`."""
        shape = torch.tensor([(self.coordinates + 1) / 2])
        scale = self.scale * math.sqrt(2 * float(gamma(shape, source)))
        device = source.device if isinstance(source, torch.Generator) else None
        z = torch.empty(self.coordinates, dtype=dtype, device=device)
        for chunk in z.split(CHUNK):
            fill_normal(chunk, source).mul_(scale)
        return z

    def cost(self, w: Tensor) -> float:
        total = float(require_weights(w, self.coordinates).sum(dtype=torch.float64))
        return self.scale * total * float(isotropic_constant(self.coordinates))

    def event(self, step: int = 0) -> Event:
        return IsotropicL2(self.multiplier, self.coordinates)

    def variances(self) -> float:
        return (self.coordinates + 1) * self.scale**2

    def describe(self) -> str:
        return f"isotropic L2, pure epsilon {self.epsilon:.4g} a step"


_NAMED = 1000
"""Up to this many coordinates the event lists every rate."""


@dataclass(frozen=True, eq=False)
class ProductLaplaceNoise(AdditiveNoise):
    """Density ~ exp(-sum a_i |z_i|) with a_i = w_i^(1/3) / (s sqrt(sum w^(2/3))), s = alpha / epsilon.

    Formal guarantees: pure `epsilon` for shifts of L2 norm at most `alpha`, as sum a_i^2 = 1/s^2 (Cauchy-Schwarz). Its cost,
    s (sum w^(2/3))^(3/2), is within a factor 1.2633 e^epsilon of the lower bound for any noise, for all w.
    """

    rates: Tensor
    epsilon: float
    alpha: float = 1.0

    @classmethod
    def solve(cls, w: Tensor, epsilon: float, alpha: float = 1.0) -> ProductLaplaceNoise:
        """The product Laplace noise of least cost."""
        require_budget(epsilon, alpha)
        root = require_weights(w).pow(1 / 3)
        length = math.sqrt(float(root.square().sum(dtype=torch.float64)))
        # The length of the rounded (float32) rates must not exceed epsilon / alpha.
        return cls(root.mul_(epsilon / (alpha * length) * (1 - 1e-6)), epsilon, alpha)

    @property
    def dimension(self) -> int:
        return len(self.rates)

    @property
    def gap(self) -> float:
        """The cost of the solution over the proved lower bound."""
        return math.exp(self.epsilon) / LEAST

    def sample(self, source: Source, dtype: torch.dtype = torch.float32) -> Tensor:
        z = torch.empty(self.dimension, dtype=dtype, device=self.rates.device)
        for chunk, rates in zip(z.split(CHUNK), self.rates.split(CHUNK), strict=True):
            fill_laplace(chunk, source).div_(rates)
        return z

    def cost(self, w: Tensor) -> float:
        return float((require_weights(w, self.dimension) / self.rates).sum(dtype=torch.float64))

    def event(self, step: int = 0) -> Event:
        """The rates of up to 1,000 coordinates; for more, pure epsilon alone, which is weaker and still right."""
        if self.dimension > _NAMED:
            return PureEpsilon(self.epsilon)
        return GroupedL2(tuple((self.rates.double() * self.alpha).tolist()))

    def variances(self) -> Tensor:
        return 2 / self.rates.square()

    def describe(self) -> str:
        return f"product Laplace, pure epsilon {self.epsilon:.4g} a step"


@dataclass(frozen=True)
class StaircaseNoise(AdditiveNoise):
    """The staircase, the best noise for one number (Geng and Viswanath 2014).

    Its density falls by e^epsilon in every interval of length alpha, after a part 1 / (1 + e^(epsilon/2)) of the interval.

    Formal guarantees: pure `epsilon` for shifts of at most `alpha`. E|z| = alpha / (2 sinh(epsilon / 2)), the least possible.
    """

    epsilon: float
    alpha: float = 1.0

    @classmethod
    def solve(cls, w: Tensor, epsilon: float, alpha: float = 1.0) -> StaircaseNoise:
        require_budget(epsilon, alpha)
        if len(require_weights(w)) != 1:
            raise InputError(f"The staircase is for one coordinate, and there are {len(w)}: use GroupedL2Noise.")
        return cls(epsilon, alpha)

    @property
    def dimension(self) -> int:
        return 1

    @property
    def gap(self) -> float:
        """The cost over the proved lower bound. It is above 1 although the cost is the least possible: the bound is not tight."""
        one = torch.ones(1)
        return self.cost(one) / lower_bound(one, self.epsilon, self.alpha)

    @property
    def _tread(self) -> float:
        """The part of each interval in which the density is high."""
        return 1 / (1 + math.exp(self.epsilon / 2))

    @property
    def _low(self) -> float:
        """The probability of the low part of an interval."""
        tread, fall = self._tread, math.exp(-self.epsilon)
        return (1 - tread) * fall / (tread + (1 - tread) * fall)

    def sample(self, source: Source, dtype: torch.dtype = torch.float32, *, draws: int = 1) -> Tensor:
        """`draws` independent numbers: a sign, a geometric number of the interval, its high or low part, and a place in it."""
        sign, step, part, place = (uniform(source, draws) for _ in range(4))
        number = (step.log_() / -self.epsilon).floor_()
        low = part < self._low
        within = torch.where(low, self._tread + (1 - self._tread) * place, self._tread * place)
        z = (number + within).mul_(self.alpha)
        return torch.where(sign < 0.5, -z, z).to(dtype)

    def cost(self, w: Tensor) -> float:
        return float(require_weights(w, 1)) * self.alpha / (2 * math.sinh(self.epsilon / 2))

    def event(self, step: int = 0) -> Event:
        return PureEpsilon(self.epsilon)

    def variances(self) -> float:
        tread, fall = self._tread, math.exp(-self.epsilon)
        mean, square = fall / (1 - fall), fall * (1 + fall) / (1 - fall) ** 2  # of the number of the interval
        high = square + mean * tread + tread**2 / 3
        below = square + mean * (1 + tread) + (1 + tread + tread**2) / 3
        return self.alpha**2 * ((1 - self._low) * high + self._low * below)

    def describe(self) -> str:
        return f"staircase, pure epsilon {self.epsilon:.4g} a step"


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
