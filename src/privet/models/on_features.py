"""Classifiers whose first part is fixed before any record is seen, so that its output is computed once and kept."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from privet.errors import InputError
from privet.models.scattering import GroupNormalise, Mirrored, Opponent, Scattering


class OnFeatures(nn.Module):
    """``head(standardise(features(x)))``: `features` is fixed, `standardise` holds private releases, `head` is trained.

    `key` names the fixed part for the cache of features; two models with the same key have the same `features`.
    """

    def __init__(self, features: nn.Module, key: str, standardise: Standardise, head: nn.Module) -> None:
        super().__init__()
        self.features, self.key, self.standardise, self.head = features, key, standardise, head

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.standardise(self.features(x)))
        return scores


class Standardise(nn.Module):
    """``channels @ (maps - mean) @ places`` on maps of shape ``(N, maps, height, width)``, given flat.

    It starts as the identity. What is put into its buffers must be public or privately released.
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
        centred = maps.flatten(2).to(self.mean.dtype) - self.mean
        if self.whitens:
            centred = self.channels @ centred @ self.places
        return centred.flatten(1)


def scattering_linear(
    channels: int = 1, height: int = 28, width: int = 28, classes: int = 10, groups: int = 27, mirrored: bool = False
) -> OnFeatures:
    """A linear classifier of normalised scattering coefficients (Tramèr and Boneh 2021), zero at the start.

    Colours are turned into brightness and differences first. With `mirrored`, an image and its mirror image are the same.
    """
    features, key, maps, size = _scattering(channels, height, width, groups, mirrored)
    head = nn.Linear(maps * size[0] * size[1], classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return OnFeatures(features, key, Standardise(maps, *size), head)


def _scattering(
    channels: int, height: int, width: int, groups: int, mirrored: bool
) -> tuple[nn.Module, str, int, tuple[int, int]]:
    """The fixed part of a model, its key, and the number and the size of its maps."""
    scattering = Scattering(height, width)
    maps = channels * scattering.coefficients
    if maps % groups:
        raise InputError(f"The {maps} scattering maps of an image cannot be put into {groups} groups of equal size.")
    key = f"scattering-{scattering.scales}-{scattering.angles}-{groups}"
    layers: list[nn.Module] = [scattering, GroupNormalise(groups)]
    rows, columns = scattering.output_size
    if channels == 3:
        layers, key = [Opponent(), *layers], f"opponent-{key}"
    if mirrored:
        layers, key, columns = [*layers, Mirrored(channels)], f"{key}-mirrored", (columns + 1) // 2
    return nn.Sequential(*layers), key, maps, (rows, columns)


def _is_identity(matrix: Tensor) -> bool:
    return bool(torch.equal(matrix, torch.eye(len(matrix))))
