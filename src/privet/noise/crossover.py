"""Where optimised pure-epsilon noise beats calibrated Gaussian noise, and where it does not: from the formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from privet.noise.bound import isotropic_constant
from privet.privacy import Budget, PoissonSampled, PureEpsilon

MOST = 10**9


@dataclass(frozen=True)
class Crossover:
    """Pure-epsilon and Gaussian noise in `steps` releases, on samples of `rate`, within one (epsilon, delta).

    All coordinates weigh alike: there isotropic noise is the best of the pure-epsilon families. A step's pure epsilon is
    composed as what it is dominated by, randomised response, and the Gaussian as itself, both by PLD.
    """

    epsilon: float
    delta: float = 1e-5
    rate: float = 1.0
    steps: int = 1

    @cached_property
    def pure_epsilon(self) -> float:
        """The pure epsilon of each step that the budget pays for."""
        budget = Budget(self.epsilon, self.delta)
        return 1 / budget.least(
            lambda scale: PoissonSampled(self.rate, PureEpsilon(1 / scale)) * self.steps, 1 / self.epsilon
        )

    @cached_property
    def noise_multiplier(self) -> float:
        """That of the Gaussian noise for the same budget."""
        return Budget(self.epsilon, self.delta).noise_multiplier(self.rate, self.steps)

    def ratio(self, dimension: float) -> float:
        """The expected |z|_1 of the pure-epsilon noise over that of the Gaussian: below 1 it wins."""
        gaussian = math.sqrt(2 / math.pi) * self.noise_multiplier
        return float(isotropic_constant(dimension)) / (self.pure_epsilon * gaussian)

    @cached_property
    def dimension(self) -> int:
        """The most coordinates in which the pure-epsilon noise is no worse; 0 if there is no such number."""
        if self.ratio(1) > 1:
            return 0
        low, high = 1, 2
        while high < MOST and self.ratio(high) <= 1:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.ratio(middle) <= 1 else (low, middle)
        return low
