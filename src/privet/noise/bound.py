"""A lower bound on the cost of private noise, and where pure-epsilon noise beats Gaussian noise.

The problem (Xiang et al. 2019): the least E |w o z|_1 over densities p with ln p(z) - ln p(z + D) <= epsilon for |D|_2 <= alpha.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import gammaln
from torch import Tensor

from privet.errors import InputError
from privet.privacy import Budget, PoissonSampled, PureEpsilon

LEAST: float = 4 * 1.0187929716474710**1.5 / (3 * math.sqrt(3))
"""The least E|z| times the root of the Fisher information over all densities on the line: 0.7916, from the first zero of Ai'."""


def lower_bound(w: Tensor, epsilon: float, alpha: float = 1.0) -> float:
    """A lower bound on the cost of any noise that is epsilon-private for shifts of length alpha.

    Formal guarantees: the score of a density whose logarithm is Lipschitz with constant epsilon / alpha has a Fisher
    information of at most its square over all coordinates; each coordinate costs at least LEAST over the root of its part,
    and the best division gives LEAST (alpha / epsilon) (sum w^(2/3))^(3/2). A density that only keeps the privacy
    constraint lies within e^epsilon of one that is Lipschitz, hence the factor e^-epsilon.
    """
    return math.exp(-epsilon) * LEAST * alpha / epsilon * power_sum(w)


def power_sum(w: Tensor) -> float:
    """(sum w^(2/3))^(3/2), the cost of product Laplace noise in units of alpha / epsilon."""
    return math.pow(float(w.pow(2 / 3).sum(dtype=torch.float64)), 1.5)


def isotropic_constant(dimension: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """E|z_i| of noise of density ~ exp(-|z|_2): K(d) = d G(d/2) / (sqrt(pi) G((d+1)/2)), for each d."""
    d = np.asarray(dimension, dtype=np.float64)
    exact = d * np.exp(gammaln(d / 2) - gammaln((d + 1) / 2)) / math.sqrt(math.pi)
    # In many dimensions the two gamma functions cancel, and the series is exact to 1e-10.
    series = np.sqrt(2 * d / math.pi) * (1 + 1 / (4 * d) + 1 / (32 * d**2))
    return np.where(d > 1000, series, exact)


def require_weights(w: Tensor, dimension: int | None = None) -> Tensor:
    """The weights as a vector; raises unless they are positive and finite, one for each coordinate."""
    if not isinstance(w, Tensor) or w.ndim != 1 or not w.is_floating_point() or not len(w):
        raise InputError("The weights w must be a vector of floating-point numbers, one for each coordinate.")
    if dimension is not None and len(w) != dimension:
        raise InputError(f"There are {len(w)} weights w and {dimension} coordinates: give one for each.")
    low, high = (float(value) for value in torch.aminmax(w))
    if not (low > 0 and math.isfinite(high)):
        raise InputError(
            f"The weights w must be positive and finite everywhere, and lie between {low:g} and {high:g}: a coordinate of "
            f"weight zero would get unbounded noise. privet.clipping.floored raises the smallest to 0.001 of the median."
        )
    return w


def require_budget(epsilon: float, alpha: float) -> None:
    if not 0 < epsilon < math.inf:
        raise InputError(f"epsilon of a noise must be a positive number, and is {epsilon!r}.")
    if not 0 < alpha < math.inf:
        raise InputError(f"alpha, the sensitivity, must be a positive number, and is {alpha!r}.")


MOST = 10**9
"""The largest number of coordinates that `Crossover` looks at."""


@dataclass(frozen=True)
class Crossover:
    """Pure-epsilon and Gaussian noise in `steps` releases, on samples of `rate`, within one (epsilon, delta).

    All coordinates have equal weight, for which isotropic noise is the best of the pure-epsilon families. A step of pure
    epsilon is composed as randomized response, which dominates it, and the Gaussian as itself, both by PLD.
    """

    epsilon: float
    delta: float = 1e-5
    rate: float = 1.0
    steps: int = 1

    @cached_property
    def pure_epsilon(self) -> float:
        """The largest pure epsilon of each step within the budget."""
        budget = Budget(self.epsilon, self.delta)
        return 1 / budget.least(
            lambda scale: PoissonSampled(self.rate, PureEpsilon(1 / scale)) * self.steps, 1 / self.epsilon
        )

    @cached_property
    def noise_multiplier(self) -> float:
        """The noise multiplier of Gaussian noise for the same budget."""
        return Budget(self.epsilon, self.delta).noise_multiplier(self.rate, self.steps)

    def ratio(self, dimension: float) -> float:
        """The expected |z|_1 of the pure-epsilon noise over that of the Gaussian: below 1, pure-epsilon noise is better."""
        gaussian = math.sqrt(2 / math.pi) * self.noise_multiplier
        return float(isotropic_constant(dimension)) / (self.pure_epsilon * gaussian)

    @cached_property
    def dimension(self) -> int:
        """The largest number of coordinates for which pure-epsilon noise is not worse; 0 if there is none."""
        if self.ratio(1) > 1:
            return 0
        low, high = 1, 2
        while high < MOST and self.ratio(high) <= 1:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.ratio(middle) <= 1 else (low, middle)
        return low
