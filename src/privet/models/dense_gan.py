"""A generator and a discriminator of dense layers: for rows of a table, and for short embeddings."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privet.models.dcgan import SLOPE


class DenseGenerator(nn.Module):
    """Records of a class from noise: ``(N, latent)`` and ``(N,)`` labels to ``(N, *shape)`` in [-1, 1].

    It starts with the same record for all, `start` (in [0, 1]) or grey, and what it learns is squashed by tanh: changes in a few
    smooth directions still end in black and white.
    """

    def __init__(
        self, shape: tuple[int, ...], classes: int, *, latent: int = 32, width: int = 256, start: Tensor | None = None
    ) -> None:
        super().__init__()
        self.shape, self.classes, self.latent = shape, classes, latent
        self.layers = nn.Sequential(
            nn.Linear(latent + classes, width), nn.LeakyReLU(SLOPE), nn.Linear(width, width), nn.LeakyReLU(SLOPE)
        )
        self.last = nn.Linear(width, math.prod(shape))
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)
        if start is not None:
            with torch.no_grad():
                self.last.bias.copy_(torch.atanh((start.flatten() * 2 - 1).clamp(-0.98, 0.98)))

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        given = torch.cat([noise, F.one_hot(labels, self.classes).to(noise.dtype)], dim=1)
        return torch.tanh(self.last(self.layers(given))).view(-1, *self.shape)


class SpanGenerator(nn.Module):
    """As `DenseGenerator`, of records ``mean + coordinates @ directions``, cut to [0, 1]: nothing is made outside of the span."""

    mean: Tensor
    directions: Tensor

    def __init__(
        self,
        mean: Tensor,
        directions: Tensor,
        scale: float,
        shape: tuple[int, ...],
        classes: int,
        *,
        latent: int = 32,
        width: int = 256,
    ) -> None:
        super().__init__()
        self.register_buffer("mean", mean.flatten())
        self.register_buffer("directions", scale * directions)
        self.shape, self.classes, self.latent = shape, classes, latent
        self.layers = nn.Sequential(
            nn.Linear(latent + classes, width),
            nn.LeakyReLU(SLOPE),
            nn.Linear(width, width),
            nn.LeakyReLU(SLOPE),
            nn.Linear(width, len(directions)),
        )

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        given = torch.cat([noise, F.one_hot(labels, self.classes).to(noise.dtype)], dim=1)
        made = (self.mean + self.layers(given) @ self.directions).clamp(0, 1)
        images: Tensor = (made * 2 - 1).view(-1, *self.shape)
        return images


def dense_discriminator(size: int, width: int = 256) -> nn.Sequential:
    """One logit for each row of `size` numbers."""
    return nn.Sequential(
        nn.Linear(size, width),
        nn.LeakyReLU(SLOPE),
        nn.Linear(width, width),
        nn.LeakyReLU(SLOPE),
        nn.Linear(width, 1),
        nn.Flatten(0),
    )
