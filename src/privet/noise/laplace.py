"""Product Laplace noise: every coordinate on its own, those of much weight with less."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from privet.noise.additive import AdditiveNoise
from privet.noise.bound import LEAST, require_budget, require_weights
from privet.privacy import Event, GroupedL2, PureEpsilon
from privet.randomness import Source
from privet.randomness.sources import CHUNK, fill_laplace

_NAMED = 1000
"""Up to so many coordinates the event names every rate."""


@dataclass(frozen=True, eq=False)
class ProductLaplaceNoise(AdditiveNoise):
    """Density ~ exp(-sum a_i |z_i|) with a_i = w_i^(1/3) / (s sqrt(sum w^(2/3))), s = alpha / epsilon.

    Formal guarantees: pure `epsilon` for shifts of L2 norm at most `alpha`, as sum a_i^2 = 1/s^2 (Cauchy-Schwarz). Its cost,
    s (sum w^(2/3))^(3/2), is within 1.2633 e^epsilon of what any noise must cost, whatever w and its length are.
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
        # float32 rounds: the rates' own length is what counts, and it may not be above epsilon / alpha.
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

    def event(self) -> Event:
        """The rates of up to 1,000 coordinates; of more, pure epsilon alone, which says less and nothing wrong."""
        if self.dimension > _NAMED:
            return PureEpsilon(self.epsilon)
        return GroupedL2(tuple((self.rates.double() * self.alpha).tolist()))

    def variances(self) -> Tensor:
        return 2 / self.rates.square()

    def describe(self) -> str:
        return f"product Laplace, pure epsilon {self.epsilon:.4g} a step"
