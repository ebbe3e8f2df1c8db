"""Noise on a bounded sum: its protocols, the common part of all additive noises, and a lower bound on the cost of private noise.

The problem (Xiang et al. 2019): the least E |w o z|_1 over densities p with ln p(z) - ln p(z + D) <= epsilon for |D|_2 <= alpha.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import gammaln
from torch import Tensor

from privet.clipping import BoundedSum, Released, State
from privet.errors import InputError
from privet.privacy import Budget, Event, PoissonSampled, PureEpsilon
from privet.randomness import SecureSource, Source

GRID = 2.0**-24
"""The grid on which a release lies, in units of the sum's scale."""


class Mechanism(Protocol):
    """The noise of one step: it is added to a bounded sum, and knows its event."""

    @abstractmethod
    def add(self, bounded: BoundedSum, source: Source) -> dict[str, Tensor]:
        """The sum with fresh noise."""

    @abstractmethod
    def event(self) -> Event:
        """The privacy event of one use."""

    @abstractmethod
    def deviations(self, bounded: BoundedSum) -> Mapping[str, Tensor | float]:
        """The standard deviation of the noise in each tensor of the sum. It is public."""


@runtime_checkable
class Noise(Protocol):
    """The noise of a run.

    A noise is a frozen dataclass of settings. Everything that changes from step to step is in its state, which `init` makes
    before the first step and `update` replaces after every step. Inherit from `SteadyNoise` for a noise without state.

    Formal guarantees, which every implementation must keep: the event of a step follows from the settings and the number of the
    step alone, never from the state. A step checks that ``at(step, state).event() == event(step)``.
    """

    def init(self, parameters: Mapping[str, Tensor]) -> State:
        """The state before the first step, for a model with these trainable parameters."""
        return None

    @abstractmethod
    def event(self, step: int = 0) -> Event:
        """The privacy event of step 0, 1, 2, ... on all records."""

    @abstractmethod
    def at(self, step: int, state: State) -> Mechanism:
        """The mechanism of step 0, 1, 2, ..."""

    def update(self, state: State, released: Released) -> State:
        """The state of the next step. It is computed from the noisy release only."""
        return state

    @abstractmethod
    def describe(self) -> str:
        """A few words for a report, where C is the most that a record can contribute."""


class SteadyNoise(Noise, Protocol):
    """Noise that is the same mechanism in every step: write `add`, `event`, `deviations` and `describe`."""

    @abstractmethod
    def add(self, bounded: BoundedSum, source: Source) -> dict[str, Tensor]: ...

    @abstractmethod
    def deviations(self, bounded: BoundedSum) -> Mapping[str, Tensor | float]: ...

    def at(self, step: int, state: State = None) -> Self:
        return self


class AdditiveNoise(SteadyNoise):
    """Noise with a distribution over vectors of `dimension` coordinates, for sums that one record moves by at most `alpha`.

    Formal guarantees: `add` scales the noise to the sum, so that a record that moves the sum by its scale moves it by `alpha`
    in units of the noise; `event` is the event of that shift. Every call draws fresh noise. From a secure source the sum and
    the noise are rounded to one grid and added exactly, as in `GaussianNoise`, and the noise is enlarged for the rounding. A
    pure epsilon then holds except for the finite range of the numbers that are drawn: outputs that only noise beyond that
    range could reach have a probability below 2^-52 a coordinate.
    """

    alpha: float

    @property
    @abstractmethod
    def dimension(self) -> int:
        """The number of coordinates."""

    @abstractmethod
    def sample(self, source: Source, dtype: torch.dtype = torch.float32) -> Tensor:
        """One vector of noise."""

    @abstractmethod
    def cost(self, w: Tensor) -> float:
        """E |w o z|_1."""

    @abstractmethod
    def variances(self) -> Tensor | float:
        """The variance of each coordinate."""

    def add(self, bounded: BoundedSum, source: Source) -> dict[str, Tensor]:
        """The sum with fresh noise."""
        require_bounded(bounded)
        self._check(bounded.tensors)
        secure = isinstance(source, SecureSource)
        kinds = {bounded.drawn_in(name) for name in bounded.tensors}
        kind = torch.float64 if secure or torch.float64 in kinds else torch.float32
        noise, place, noisy = self.sample(source, kind).div_(self.alpha), 0, {}
        for name, tensor in bounded.tensors.items():
            part = noise[place : place + tensor.numel()].view(tensor.shape)
            scale = bounded.scales[name]
            if secure:
                noisy[name] = added_on_grid(tensor, scale, part, self.dimension)
            else:
                noisy[name] = part.to(tensor.dtype).mul_(scale).add_(tensor)
            place += tensor.numel()
        return noisy

    def deviations(self, bounded: BoundedSum) -> dict[str, Tensor | float]:
        """The standard deviation of the noise in each tensor of the sum."""
        self._check(bounded.tensors)
        variances, place, found = self.variances(), 0, dict[str, Tensor | float]()
        for name, tensor in bounded.tensors.items():
            if isinstance(variances, Tensor):
                part = variances[place : place + tensor.numel()].view(tensor.shape).sqrt() / self.alpha
                found[name] = part.to(tensor.dtype) * bounded.scales[name]
            else:
                found[name] = bounded.scales[name] * (math.sqrt(variances) / self.alpha)
            place += tensor.numel()
        return found

    def _check(self, tensors: Mapping[str, Tensor]) -> None:
        count = sum(tensor.numel() for tensor in tensors.values())
        if count != self.dimension:
            raise InputError(f"The noise was solved for {self.dimension} coordinates, and the sum has {count}.")


def require_bounded(bounded: BoundedSum) -> None:
    """Raise unless the value is a `BoundedSum`."""
    if not isinstance(bounded, BoundedSum):
        raise TypeError("Noise is added to a BoundedSum, which clipping makes; nothing else has a known sensitivity.")


def added_on_grid(tensor: Tensor, scale: Tensor | float, noise: Tensor, coordinates: int) -> Tensor:
    """A sum and noise in units of its scale, each rounded to the grid, added exactly.

    Rounding d coordinates moves two neighboring sums apart by at most ``GRID * sqrt(d)``, for which the noise is enlarged.
    """
    enlarged = noise.mul((1 + GRID * math.sqrt(coordinates)) / GRID).round_()
    on_grid = tensor.double().div(scale * GRID).round_().add_(enlarged)
    return on_grid.mul_(scale * GRID).to(tensor.dtype)


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
