"""Gaussian noise: on a bounded sum, by a schedule, for one release, and inside a network."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privet.clipping import BoundedSum, State
from privet.clipping.bounded import ROUNDING
from privet.distributed import Segment
from privet.errors import InputError
from privet.gradients.numerics import workspace
from privet.noise.additive import (
    AdditiveNoise,
    Noise,
    SteadyNoise,
    added_on_grid,
    lower_bound,
    require_bounded,
    require_budget,
    require_weights,
)
from privet.privacy import Budget, Event, Gaussian, Schedule
from privet.randomness import SecureSource, Source
from privet.randomness.sources import CHUNK, fill_normal


@dataclass(frozen=True)
class GaussianNoise(SteadyNoise):
    """Independent noise of standard deviation `multiplier` times the sum's scale on every coordinate.

    Formal guarantees: on a `BoundedSum` this is the Gaussian mechanism with noise multiplier `multiplier` at sensitivity
    1, as `event` says. From a secure source the sum is rounded to a grid, the noise is rounded to the same grid
    and added exactly: that is the Gaussian mechanism on the rounded sum, itself rounded, so the low bits of a release,
    which reveal the sum under plain floating-point noise (Mironov 2012), are the same for every sum. Rounding d
    coordinates moves two neighboring sums apart by at most ``GRID * sqrt(d)``, for which the noise is enlarged.
    """

    multiplier: float

    def __post_init__(self) -> None:
        if not 0 < self.multiplier < float("inf"):
            raise InputError(f"The noise multiplier must be a positive number, not {self.multiplier}.")

    def add(self, bounded: BoundedSum, source: Source) -> dict[str, Tensor]:
        """The sum with fresh noise."""
        require_bounded(bounded)
        if isinstance(source, SecureSource):
            return self._add_on_grid(bounded, source)
        noisy = {}
        for name, tensor in bounded.tensors.items():
            noisy[name] = self._plus(tensor, bounded.scales[name], bounded.drawn_in(name), bounded.piece(name), source)
        return noisy

    def _plus(
        self, tensor: Tensor, scale: Tensor | float, drawn_in: torch.dtype, piece: Segment, source: torch.Generator
    ) -> Tensor:
        """The sum with seeded noise, rounded to the dtype in which the noise is drawn. It is computed in chunks that fit into
        the cache; the numbers are those of one long draw for the whole tensor, of which a piece gets its own."""
        factor = scale * self.multiplier
        scales = factor.expand_as(tensor).reshape(-1) if isinstance(factor, Tensor) else None
        sums, noisy = tensor.reshape(-1), torch.empty(tensor.numel(), dtype=drawn_in, device=tensor.device)
        in_place = piece.size == len(sums) and source.device == tensor.device
        for start, stop in _chunks(piece.size):
            drawn = noisy[start:stop] if in_place else noisy.new_empty(stop - start, device=source.device)
            drawn.normal_(generator=source)
            first, last = max(start, piece.start), min(stop, piece.stop)
            if first >= last:
                continue
            own, drawn = (
                slice(first - piece.start, last - piece.start),
                drawn[first - start : last - start].to(tensor.device),
            )
            if scales is None:
                # With equal dtypes torch adds twice as fast.
                converted = workspace.take("noise", drawn.shape, sums).copy_(drawn)
                noisy[own] = torch.add(sums[own], converted, alpha=float(factor), out=converted)
            else:
                torch.addcmul(sums[own], drawn.to(scales.dtype), scales[own], out=noisy[own])
        return noisy.view(tensor.shape)

    def _add_on_grid(self, bounded: BoundedSum, source: SecureSource) -> dict[str, Tensor]:
        noisy = {}
        for name, tensor in bounded.tensors.items():
            piece, scale = bounded.piece(name), bounded.scales[name]
            scales = scale.expand_as(tensor).reshape(-1) if isinstance(scale, Tensor) else None
            sums, result = tensor.reshape(-1), torch.empty_like(tensor, memory_format=torch.contiguous_format).view(-1)
            for place, drawn in source.normal_chunks(piece.size, piece.start, piece.stop):
                own = slice(place - piece.start, place - piece.start + len(drawn))
                noise = drawn.mul_(self.multiplier).to(tensor.device)
                result[own] = added_on_grid(
                    sums[own], scale if scales is None else scales[own], noise, bounded.coordinates
                )
            noisy[name] = result.view(tensor.shape)
        return noisy

    def deviations(self, bounded: BoundedSum) -> dict[str, Tensor | float]:
        return {name: scale * self.multiplier for name, scale in bounded.scales.items()}

    def describe(self) -> str:
        return f"Gaussian, {self.multiplier:.4g} C"

    def event(self, step: int = 0) -> Event:
        return Gaussian(self.multiplier)


def _chunks(count: int) -> list[tuple[int, int]]:
    """Parts of a long draw. Torch draws normal numbers in blocks of 16: chunks of a multiple of 16 give the same numbers as one
    long draw, and the last chunk, which may be empty, must not be short."""
    starts = list(range(0, max(count - CHUNK, 0), CHUNK)) or [0]
    return list(zip(starts, [*starts[1:], count], strict=True))


@dataclass(frozen=True)
class ScheduledNoise(Noise):
    """Gaussian noise whose multiplier changes over a run as planned; the event of each step is that of its own multiplier."""

    multipliers: Schedule

    def __post_init__(self) -> None:
        for multiplier, _ in self.multipliers.parts:
            GaussianNoise(multiplier)

    def at(self, step: int, state: State = None) -> GaussianNoise:
        return GaussianNoise(self.multipliers.at(step))

    def event(self, step: int = 0) -> Event:
        return self.at(step).event()

    def describe(self) -> str:
        first, last = (self.multipliers.parts[place][0] for place in (0, -1))
        return f"Gaussian, from {first:.4g} C in the first step to {last:.4g} C in the last"


@dataclass(frozen=True)
class ComparedGaussianNoise(AdditiveNoise):
    """Gaussian noise for comparison with pure-epsilon noises: as much as (epsilon, delta) needs in one release.

    It is independent in `coordinates` coordinates, with standard deviation ``multiplier * alpha``.

    Formal guarantees: (epsilon, delta), and no pure epsilon. So the lower bound does not hold for it, and a `gap` below 1 shows
    how much is gained by allowing delta.
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

    def event(self, step: int = 0) -> Event:
        return Gaussian(self.multiplier)

    def variances(self) -> float:
        return (self.multiplier * self.alpha) ** 2

    def describe(self) -> str:
        return f"Gaussian, {self.multiplier:.4g} C"


class NoiseLayer(nn.Module):
    """A layer that clips each record's activations to a norm of at most `bound` and adds N(0, (noise_multiplier * bound)^2).

    Formal guarantees: the output is the Gaussian mechanism on the input, with sensitivity `bound`. Nothing follows for
    the gradient of a layer in front of this one: it contains that layer's inputs without noise.
    """

    def __init__(self, bound: float, noise_multiplier: float, source: Source) -> None:
        super().__init__()
        self.bound, self.noise_multiplier, self.source = bound, noise_multiplier, source

    def forward(self, x: Tensor) -> Tensor:
        norms = x.flatten(1).norm(dim=1, dtype=torch.float64).clamp(min=1e-12)
        factors = (self.bound / ROUNDING / norms).clamp(max=1.0).to(x.dtype)
        clipped = x * factors.view(-1, *[1] * (x.ndim - 1))
        noise = fill_normal(torch.empty(x.numel()), self.source).view(x.shape).to(x.device)
        noisy: Tensor = clipped + noise * (self.noise_multiplier * self.bound)
        return noisy

    def extra_repr(self) -> str:
        return f"bound={self.bound:g}, noise_multiplier={self.noise_multiplier:.4g}"
