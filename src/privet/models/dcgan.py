"""The teacher of "Generating differentially private datasets using GANs": a DCGAN (Radford et al. 2015) with a noise layer.

The source leaves the widths of the layers and the place of the label open. Here the label comes as one more map beside the
image, learnt for each class, so that every layer may use it, and widths are what two cores can train.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SLOPE = 0.2
"""Of the leaky ReLU for negative numbers."""


class Discriminator(nn.Module):
    """``after(noise(before(image beside a map of its label)))``: one logit for each record, above 0 for "real".

    The sigmoid of the source is in the loss, where it is stable.
    """

    def __init__(
        self, before: nn.Module, noise: nn.Module, after: nn.Module, classes: int, size: tuple[int, int]
    ) -> None:
        super().__init__()
        self.label_maps = nn.Embedding(classes, size[0] * size[1])
        self.before, self.noise, self.after = before, noise, after

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        maps = self.label_maps(labels).view(len(images), 1, *images.shape[2:])
        logits: Tensor = self.after(self.noise(self.before(torch.cat([images, maps], dim=1))))
        return logits.squeeze(1)


def discriminator(
    noise: nn.Module,
    *,
    channels: int = 1,
    size: tuple[int, int] = (28, 28),
    classes: int = 10,
    width: int = 16,
    convolutions: int = 4,
) -> Discriminator:
    """Four convolutions (the source's number for MNIST; five for SVHN), the noise behind the third, a linear classifier.

    Each convolution halves the image and is followed by a leaky ReLU; those behind the noise have batch norm.
    """
    maps = [channels + 1, width, 2 * width, 4 * width]
    before: list[nn.Module] = []
    for inputs, outputs in pairwise(maps):
        before += [nn.Conv2d(inputs, outputs, 4, stride=2, padding=1), nn.LeakyReLU(SLOPE)]
    after: list[nn.Module] = []
    for _ in range(convolutions - 3):
        after += [nn.Conv2d(maps[-1], maps[-1], 3, stride=2, padding=1), nn.BatchNorm2d(maps[-1]), nn.LeakyReLU(SLOPE)]
    rows, columns = (math.ceil(side // 8 / 2 ** (convolutions - 3)) for side in size)
    after += [nn.Flatten(), nn.Linear(maps[-1] * rows * columns, 1)]
    return Discriminator(nn.Sequential(*before), noise, nn.Sequential(*after), classes, size)


class Generator(nn.Module):
    """Images of a class from noise: ``(N, latent)`` and ``(N,)`` labels to ``(N, channels, height, width)`` in [-1, 1].

    Two linear layers, five transposed convolutions with batch norm and ReLU, fractional max pooling to the size of the
    records, and tanh. Each transposed convolution doubles the image.
    """

    def __init__(
        self,
        *,
        channels: int = 1,
        size: tuple[int, int] = (28, 28),
        classes: int = 10,
        latent: int = 64,
        width: int = 16,
    ) -> None:
        super().__init__()
        self.latent, self.classes = latent, classes
        start = max(size) // 32 + 1  # the least that is above the records after five doublings, as pooling asks
        maps = [8 * width, 8 * width, 4 * width, 2 * width, width, channels]
        layers: list[nn.Module] = [
            nn.Linear(latent + classes, 8 * width),
            nn.ReLU(),
            nn.Linear(8 * width, maps[0] * start * start),
            nn.ReLU(),
            nn.Unflatten(1, (maps[0], start, start)),
        ]
        for inputs, outputs in pairwise(maps):
            layers.append(nn.ConvTranspose2d(inputs, outputs, 4, stride=2, padding=1))
            if outputs is not maps[-1]:
                layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.FractionalMaxPool2d(2, output_size=size), nn.Tanh())

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        images: Tensor = self.layers(torch.cat([noise, F.one_hot(labels, self.classes).to(noise.dtype)], dim=1))
        return images
