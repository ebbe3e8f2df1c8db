"""Fixed embeddings: short vectors of records, by a transform that no record of theirs has shaped."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from privet.models.dcgan import SLOPE
from privet.models.scattering import GroupNormalise, Scattering


class Directions(nn.Module):
    """``(x - mean) @ directions.T / scale`` of flat records: what is in it must be public or privately released."""

    mean: Tensor
    directions: Tensor

    def __init__(self, mean: Tensor, directions: Tensor, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("mean", mean.flatten())
        self.register_buffer("directions", directions)

    def forward(self, x: Tensor) -> Tensor:
        return (x.flatten(1) - self.mean) @ self.directions.mT / self.scale


def random_convolutions(shape: tuple[int, int, int], dimension: int, width: int = 16) -> nn.Module:
    """Three convolutions as the noise-layer GAN has them in front of its noise, at random, and a random projection."""
    channels, height, columns = shape
    maps = (channels, width, 2 * width, 4 * width)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(maps):
        layers += [nn.Conv2d(inputs, outputs, 4, stride=2, padding=1), nn.LeakyReLU(SLOPE)]
    size = maps[-1] * (height // 8) * (columns // 8)
    return _frozen(nn.Sequential(*layers, nn.Flatten(), projection(size, dimension)))


def scattering_projection(shape: tuple[int, int, int], dimension: int) -> nn.Module:
    """A random projection of normalised scattering coefficients, scaled so that its norm is about 1."""
    channels, height, columns = shape
    scattering = Scattering(height, columns)
    maps, (rows, across) = channels * scattering.coefficients, scattering.output_size
    size = maps * rows * across
    project = projection(size, dimension)
    with torch.no_grad():
        project.weight.div_(math.sqrt(dimension))  # the coefficients have norm sqrt(size)
    return _frozen(nn.Sequential(scattering, GroupNormalise(maps), nn.Flatten(), project))


def projection(size: int, dimension: int) -> nn.Linear:
    """Onto random orthonormal directions."""
    layer = nn.Linear(size, dimension, bias=False)
    nn.init.orthogonal_(layer.weight)
    return layer


def _frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False).eval()
