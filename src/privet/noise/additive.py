"""The protocols of noise, and the common part of all additive noises."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from privet.clipping import BoundedSum, Released, State
from privet.errors import InputError
from privet.privacy import Event
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
