"""Gaussian noise on a bounded sum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privet.clipping import BoundedSum
from privet.errors import InputError
from privet.privacy import Event, Gaussian


@dataclass(frozen=True)
class GaussianNoise:
    """Independent noise of standard deviation `multiplier` times the sum's scale on every coordinate.

    Formal guarantees: on a `BoundedSum` this is the Gaussian mechanism with noise multiplier `multiplier` at sensitivity
    1, which is what `event` says.
    """

    multiplier: float

    def __post_init__(self) -> None:
        if not 0 < self.multiplier < float("inf"):
            raise InputError(f"The noise multiplier must be a positive number, not {self.multiplier}.")

    def add(self, bounded: BoundedSum, generator: torch.Generator) -> dict[str, Tensor]:
        """The sum with noise. Every call draws afresh."""
        if not isinstance(bounded, BoundedSum):
            raise TypeError(
                "Noise is added to a BoundedSum, which clipping makes; nothing else has a known sensitivity."
            )
        noisy = {}
        for name, tensor in bounded.tensors.items():
            noise = torch.empty_like(tensor).normal_(generator=generator)
            noisy[name] = noise.mul_(self.multiplier * bounded.scales[name]).add_(tensor)
        return noisy

    def event(self) -> Event:
        return Gaussian(self.multiplier)
