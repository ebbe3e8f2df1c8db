"""Gaussian noise on a bounded sum."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privet.clipping import BoundedSum
from privet.errors import InputError
from privet.noise.additive import added_on_grid, require_bounded
from privet.privacy import Event, Gaussian
from privet.randomness import SecureSource, Source
from privet.randomness.sources import CHUNK


@dataclass(frozen=True)
class GaussianNoise:
    """Independent noise of standard deviation `multiplier` times the sum's scale on every coordinate.

    Formal guarantees: on a `BoundedSum` this is the Gaussian mechanism with noise multiplier `multiplier` at sensitivity
    1, which is what `event` says. From a secure source the sum is rounded to a grid, the noise is rounded to the same grid
    and added exactly: that is the Gaussian mechanism on the rounded sum, itself rounded, so the low bits of a release,
    which betray a sum under plain floating-point noise (Mironov 2012), are the same for every sum. Rounding d
    coordinates moves two neighbouring sums apart by at most ``GRID * sqrt(d)``, for which the noise is enlarged.
    """

    multiplier: float

    def __post_init__(self) -> None:
        if not 0 < self.multiplier < float("inf"):
            raise InputError(f"The noise multiplier must be a positive number, not {self.multiplier}.")

    def add(self, bounded: BoundedSum, source: Source) -> dict[str, Tensor]:
        """The sum with noise. Every call draws afresh."""
        require_bounded(bounded)
        if isinstance(source, SecureSource):
            return self._add_on_grid(bounded, source)
        noisy = {}
        for name, tensor in bounded.tensors.items():
            noisy[name] = self._plus(tensor, bounded.scales[name], bounded.drawn_in(name), source)
        return noisy

    def _plus(self, tensor: Tensor, scale: Tensor | float, drawn_in: torch.dtype, source: torch.Generator) -> Tensor:
        """The sum with seeded noise, rounded to the dtype that noise is drawn in once it is added; made chunk by chunk in the
        cache. The numbers are those of one long draw."""
        factor = scale * self.multiplier
        scales = factor.expand_as(tensor).reshape(-1) if isinstance(factor, Tensor) else None
        sums, noisy = tensor.reshape(-1), torch.empty(tensor.numel(), dtype=drawn_in, device=tensor.device)
        for start, stop in _chunks(len(sums)):
            drawn = noisy[start:stop].normal_(generator=source)
            if scales is None:
                torch.add(sums[start:stop], drawn, alpha=float(factor), out=drawn)
            else:
                torch.addcmul(sums[start:stop], drawn.to(scales.dtype), scales[start:stop], out=drawn)
        return noisy.view(tensor.shape)

    def _add_on_grid(self, bounded: BoundedSum, source: SecureSource) -> dict[str, Tensor]:
        coordinates = sum(tensor.numel() for tensor in bounded.tensors.values())
        noisy = {}
        for name, tensor in bounded.tensors.items():
            noise = source.normal(tensor.numel()).mul_(self.multiplier).view(tensor.shape)
            noisy[name] = added_on_grid(tensor, bounded.scales[name], noise, coordinates)
        return noisy

    def at(self, step: int) -> GaussianNoise:
        """The noise of step 0, 1, 2, ...: the same in each."""
        return self

    def deviations(self, bounded: BoundedSum) -> dict[str, Tensor | float]:
        return {name: scale * self.multiplier for name, scale in bounded.scales.items()}

    def describe(self) -> str:
        return f"Gaussian, {self.multiplier:.4g} C"

    def event(self) -> Event:
        return Gaussian(self.multiplier)


def _chunks(count: int) -> list[tuple[int, int]]:
    """Parts of a long draw. Torch draws normal numbers in blocks of 16: multiples of it leave the numbers as they are, and the
    last part, which may be none, must not be short."""
    starts = list(range(0, max(count - CHUNK, 0), CHUNK)) or [0]
    return list(zip(starts, [*starts[1:], count], strict=True))
