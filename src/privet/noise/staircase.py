"""The staircase: the best noise of all for one number (Geng and Viswanath 2014)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from privet.errors import InputError
from privet.noise.additive import AdditiveNoise
from privet.noise.bound import lower_bound, require_budget, require_weights
from privet.privacy import Event, PureEpsilon
from privet.randomness import Source
from privet.randomness.sources import uniform


@dataclass(frozen=True)
class StaircaseNoise(AdditiveNoise):
    """Density that falls by e^epsilon at every alpha, after a part 1 / (1 + e^(epsilon/2)) of it; for one coordinate.

    Formal guarantees: pure `epsilon` for shifts of at most `alpha`. E|z| = alpha / (2 sinh(epsilon / 2)), the least of all.
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
        """The cost over the proved lower bound, which is not reached: this cost is the least."""
        one = torch.ones(1)
        return self.cost(one) / lower_bound(one, self.epsilon, self.alpha)

    @property
    def _tread(self) -> float:
        """The part of each step that is high."""
        return 1 / (1 + math.exp(self.epsilon / 2))

    @property
    def _low(self) -> float:
        """The probability of the low part of a step."""
        tread, fall = self._tread, math.exp(-self.epsilon)
        return (1 - tread) * fall / (tread + (1 - tread) * fall)

    def sample(self, source: Source, dtype: torch.dtype = torch.float32, *, draws: int = 1) -> Tensor:
        """A sign, a step of geometric number, its high or low part, and a place in it; `draws` independent numbers."""
        sign, step, part, place = (uniform(source, draws) for _ in range(4))
        number = (step.log_() / -self.epsilon).floor_()
        low = part < self._low
        within = torch.where(low, self._tread + (1 - self._tread) * place, self._tread * place)
        z = (number + within).mul_(self.alpha)
        return torch.where(sign < 0.5, -z, z).to(dtype)

    def cost(self, w: Tensor) -> float:
        return float(require_weights(w, 1)) * self.alpha / (2 * math.sinh(self.epsilon / 2))

    def event(self) -> Event:
        return PureEpsilon(self.epsilon)

    def variances(self) -> float:
        tread, fall = self._tread, math.exp(-self.epsilon)
        mean, square = fall / (1 - fall), fall * (1 + fall) / (1 - fall) ** 2  # of the number of the step
        high = square + mean * tread + tread**2 / 3
        below = square + mean * (1 + tread) + (1 + tread + tread**2) / 3
        return self.alpha**2 * ((1 - self._low) * high + self._low * below)

    def describe(self) -> str:
        return f"staircase, pure epsilon {self.epsilon:.4g} a step"
