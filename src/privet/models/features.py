"""Models with fixed features, which are computed once and cached, and fixed embeddings. No record shapes the fixed part."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from privet.errors import InputError
from privet.models.gans import SLOPE
from privet.models.scattering import GroupNormalize, Mirrored, Opponent, Scattering


class OnFeatures(nn.Module):
    """``head(standardise(features(x)))``: `features` is fixed, `standardise` has private releases, `head` is trained.

    `key` names the fixed part in the cache of features; two models with the same key have the same `features`. The name
    `standardise` is part of the keys of saved weights, so its spelling stays.
    """

    def __init__(self, features: nn.Module, key: str, standardise: Standardize, head: nn.Module) -> None:
        super().__init__()
        self.features, self.key, self.standardise, self.head = features, key, standardise, head

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.standardise(self.features(x)))
        return scores


class Standardize(nn.Module):
    """``channels @ (maps - mean) @ places`` for maps of shape ``(N, maps, height, width)``, flattened.

    It starts as the identity. Its buffers may only be filled with public or privately released values.
    """

    mean: Tensor
    channels: Tensor
    places: Tensor

    def __init__(self, maps: int, height: int, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(maps, height * width))
        self.register_buffer("channels", torch.eye(maps))
        self.register_buffer("places", torch.eye(height * width))

    @property
    def whitens(self) -> bool:
        return not (_is_identity(self.channels) and _is_identity(self.places))

    def forward(self, maps: Tensor) -> Tensor:
        centered = maps.flatten(2).to(self.mean.dtype) - self.mean
        if self.whitens:
            centered = self.channels @ centered @ self.places
        return centered.flatten(1)


def scattering_linear(
    channels: int = 1, height: int = 28, width: int = 28, classes: int = 10, groups: int = 27, mirrored: bool = False
) -> OnFeatures:
    """A linear classifier of normalized scattering coefficients (Tramèr and Boneh 2021); its weights start at zero.

    Colors are first converted to brightness and differences. With `mirrored`, an image and its mirror image get the same
    scores.
    """
    features, key, maps, size = _scattering(channels, height, width, groups, mirrored)
    head = nn.Linear(maps * size[0] * size[1], classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return OnFeatures(features, key, Standardize(maps, *size), head)


def _scattering(
    channels: int, height: int, width: int, groups: int, mirrored: bool
) -> tuple[nn.Module, str, int, tuple[int, int]]:
    """The fixed part of a model, its key, and the number and the size of its maps."""
    scattering = Scattering(height, width)
    maps = channels * scattering.coefficients
    if maps % groups:
        raise InputError(
            f"The {maps} scattering maps of an image cannot be divided into {groups} groups of equal size."
        )
    key = f"scattering-{scattering.scales}-{scattering.angles}-{groups}"
    layers: list[nn.Module] = [scattering, GroupNormalize(groups)]
    rows, columns = scattering.output_size
    if channels == 3:
        layers, key = [Opponent(), *layers], f"opponent-{key}"
    if mirrored:
        layers, key, columns = [*layers, Mirrored(channels)], f"{key}-mirrored", (columns + 1) // 2
    return nn.Sequential(*layers), key, maps, (rows, columns)


def _is_identity(matrix: Tensor) -> bool:
    return bool(torch.equal(matrix, torch.eye(len(matrix))))


class FixedProjection(nn.Module):
    """``(x - mean) @ directions.T / scale`` of flat records; its buffers must be public or privately released."""

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
    """Three random convolutions, like those before the noise of the noise-layer GAN, and a random projection."""
    channels, height, columns = shape
    maps = (channels, width, 2 * width, 4 * width)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(maps):
        layers += [nn.Conv2d(inputs, outputs, 4, stride=2, padding=1), nn.LeakyReLU(SLOPE)]
    size = maps[-1] * (height // 8) * (columns // 8)
    return _frozen(nn.Sequential(*layers, nn.Flatten(), projection(size, dimension)))


def scattering_projection(shape: tuple[int, int, int], dimension: int) -> nn.Module:
    """A random projection of normalized scattering coefficients, scaled to a norm of about 1."""
    channels, height, columns = shape
    scattering = Scattering(height, columns)
    maps, (rows, across) = channels * scattering.coefficients, scattering.output_size
    size = maps * rows * across
    project = projection(size, dimension)
    with torch.no_grad():
        project.weight.div_(math.sqrt(dimension))  # the coefficients have norm sqrt(size)
    return _frozen(nn.Sequential(scattering, GroupNormalize(maps), nn.Flatten(), project))


def projection(size: int, dimension: int) -> nn.Linear:
    """A projection onto random orthonormal directions."""
    layer = nn.Linear(size, dimension, bias=False)
    nn.init.orthogonal_(layer.weight)
    return layer


def _frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False).eval()
