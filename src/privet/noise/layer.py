"""Noise inside a network: a layer that clips each record's activations and adds noise to them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from privet.clipping.factors import ROUNDING
from privet.randomness import Source
from privet.randomness.sources import fill_normal


class NoiseLayer(nn.Module):
    """Each record's activations scaled down to a norm of at most `bound`, plus N(0, (noise_multiplier * bound)^2) on each.

    Formal guarantees: what comes out is the Gaussian mechanism on what comes in, of sensitivity `bound`. Nothing follows for
    the gradient of a layer in front of this one, which holds that layer's inputs as they are.
    """

    def __init__(self, bound: float, noise_multiplier: float, source: Source) -> None:
        super().__init__()
        self.bound, self.noise_multiplier, self.source = bound, noise_multiplier, source

    def forward(self, x: Tensor) -> Tensor:
        norms = x.flatten(1).norm(dim=1, dtype=torch.float64).clamp(min=1e-12)
        factors = (self.bound / ROUNDING / norms).clamp(max=1.0).to(x.dtype)
        clipped = x * factors.view(-1, *[1] * (x.ndim - 1))
        noise = fill_normal(torch.empty(x.numel()), self.source).view(x.shape)
        noisy: Tensor = clipped + noise * (self.noise_multiplier * self.bound)
        return noisy

    def extra_repr(self) -> str:
        return f"bound={self.bound:g}, noise_multiplier={self.noise_multiplier:.4g}"
