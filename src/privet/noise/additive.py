"""What every additive noise does with a bounded sum, whatever its distribution."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from privet.clipping import BoundedSum
from privet.errors import InputError
from privet.privacy import Event
from privet.randomness import SecureSource, Source

GRID = 2.0**-24
"""The grid on which a release lies, in units of the sum's scale."""


class AdditiveNoise(ABC):
    """Noise with a distribution over vectors of `dimension` coordinates, for sums that one record moves by at most `alpha`.

    Formal guarantees: `add` scales the noise to the sum, so that a record that moves the sum by its scale moves it by `alpha`
    in units of the noise; `event` is what that is worth. Every call draws afresh. From a secure source the sum and the noise
    are rounded to one grid and added exactly, as `GaussianNoise` does, and the noise is enlarged for the rounding. A pure
    epsilon then holds but for the finite range of the numbers that are drawn: outputs that noise beyond it would reach
    have a probability below 2^-52 a coordinate.
    """

    alpha: float

    @property
    @abstractmethod
    def dimension(self) -> int: ...

    @abstractmethod
    def sample(self, source: Source, dtype: torch.dtype = torch.float32) -> Tensor:
        """One vector of noise."""

    @abstractmethod
    def cost(self, w: Tensor) -> float:
        """E |w o z|_1."""

    @abstractmethod
    def event(self) -> Event: ...

    @abstractmethod
    def variances(self) -> Tensor | float:
        """Of every coordinate."""

    @abstractmethod
    def describe(self) -> str: ...

    def add(self, bounded: BoundedSum, source: Source) -> dict[str, Tensor]:
        """The sum with noise. Every call draws afresh."""
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

    def at(self, step: int) -> Self:
        """The noise of step 0, 1, 2, ...: the same in each."""
        return self

    def _check(self, tensors: Mapping[str, Tensor]) -> None:
        count = sum(tensor.numel() for tensor in tensors.values())
        if count != self.dimension:
            raise InputError(f"The noise was solved for {self.dimension} coordinates, and the sum has {count}.")


def require_bounded(bounded: BoundedSum) -> None:
    if not isinstance(bounded, BoundedSum):
        raise TypeError("Noise is added to a BoundedSum, which clipping makes; nothing else has a known sensitivity.")


def added_on_grid(tensor: Tensor, scale: Tensor | float, noise: Tensor, coordinates: int) -> Tensor:
    """A sum and noise in units of its scale, each rounded to the grid, added exactly.

    Rounding d coordinates moves two neighbouring sums apart by at most ``GRID * sqrt(d)``, for which the noise is enlarged.
    """
    enlarged = noise.mul((1 + GRID * math.sqrt(coordinates)) / GRID).round_()
    on_grid = tensor.double().div(scale * GRID).round_().add_(enlarged)
    return on_grid.mul_(scale * GRID).to(tensor.dtype)
