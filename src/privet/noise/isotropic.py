"""Isotropic L2 noise: the same in every direction."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privet.noise.additive import AdditiveNoise
from privet.noise.bound import isotropic_constant, lower_bound, require_budget, require_weights
from privet.privacy import Event, IsotropicL2
from privet.randomness import Source
from privet.randomness.sources import CHUNK, fill_normal, gamma


@dataclass(frozen=True, eq=False)
class IsotropicL2Noise(AdditiveNoise):
    """Density ~ exp(-|z|_2 / s) in `dimension` coordinates, s = alpha / epsilon.

    Formal guarantees: pure `epsilon` for shifts of L2 norm at most `alpha`, and its privacy loss is known exactly: composed
    under PLD it costs far less than pure epsilon says, in many dimensions about as much as Gaussian noise of the same size.

    Attributes:
        multiplier: s / alpha, which is 1 / epsilon.
        gap: the cost over the proved lower bound, for the weights that were given to `solve`.
    """

    coordinates: int
    multiplier: float
    alpha: float = 1.0
    gap: float = math.nan

    def __post_init__(self) -> None:
        require_budget(self.multiplier, self.alpha)

    @classmethod
    def solve(cls, w: Tensor, epsilon: float, alpha: float = 1.0) -> IsotropicL2Noise:
        """The isotropic noise for these weights; only their number matters."""
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

    def event(self) -> Event:
        return IsotropicL2(self.multiplier, self.coordinates)

    def variances(self) -> float:
        return (self.coordinates + 1) * self.scale**2

    def describe(self) -> str:
        return f"isotropic L2, pure epsilon {self.epsilon:.4g} a step"
