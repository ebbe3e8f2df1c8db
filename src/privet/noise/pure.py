"""Pure-epsilon noises of fixed shape: isotropic L2, product Laplace, and the staircase for one number."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privet.errors import InputError
from privet.noise.additive import AdditiveNoise
from privet.noise.bound import LEAST, isotropic_constant, lower_bound, require_budget, require_weights
from privet.privacy import Event, GroupedL2, IsotropicL2, PureEpsilon
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
