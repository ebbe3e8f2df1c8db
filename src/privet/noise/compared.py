"""The Gaussian beside which the pure-epsilon noises stand: as much noise as (epsilon, delta) asks for in one release."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from privet.noise.additive import AdditiveNoise
from privet.noise.bound import lower_bound, require_budget, require_weights
from privet.privacy import Budget, Event, Gaussian
from privet.randomness import Source
from privet.randomness.sources import CHUNK, fill_normal


@dataclass(frozen=True)
class ComparedGaussianNoise(AdditiveNoise):
    """Independent normal noise of deviation `multiplier` alpha in `coordinates` coordinates.

    Formal guarantees: (epsilon, delta) and no pure epsilon. So the lower bound does not hold for it, and a `gap` below 1 says how
    much is gained by allowing delta.
    """

    coordinates: int
    multiplier: float
    alpha: float = 1.0
    gap: float = math.nan

    @classmethod
    def solve(cls, w: Tensor, epsilon: float, alpha: float = 1.0, *, delta: float = 1e-5) -> ComparedGaussianNoise:
        """The least Gaussian noise that is (epsilon, delta)-private for one release (PLD)."""
        require_budget(epsilon, alpha)
        multiplier = Budget(epsilon, delta).noise_multiplier(1.0, 1)
        noise = cls(len(require_weights(w)), multiplier, alpha)
        return cls(len(w), multiplier, alpha, noise.cost(w) / lower_bound(w, epsilon, alpha))

    @property
    def dimension(self) -> int:
        return self.coordinates

    def sample(self, source: Source, dtype: torch.dtype = torch.float32) -> Tensor:
        device = source.device if isinstance(source, torch.Generator) else None
        z = torch.empty(self.coordinates, dtype=dtype, device=device)
        for chunk in z.split(CHUNK):
            fill_normal(chunk, source).mul_(self.multiplier * self.alpha)
        return z

    def cost(self, w: Tensor) -> float:
        total = float(require_weights(w, self.coordinates).sum(dtype=torch.float64))
        return math.sqrt(2 / math.pi) * self.multiplier * self.alpha * total

    def event(self) -> Event:
        return Gaussian(self.multiplier)

    def variances(self) -> float:
        return (self.multiplier * self.alpha) ** 2

    def describe(self) -> str:
        return f"Gaussian, {self.multiplier:.4g} C"
