"""Generators and discriminators: a DCGAN with a noise layer, dense ones for tables, and a discriminator for DP-SGD.

The DCGAN (Radford et al. 2015) follows the teacher of "Generating differentially private datasets using GANs". The paper does
not give the widths of the layers or where the label enters. Here each class has a learned map that is added as a channel, so
every layer can use the label, and the widths are small enough for two cores.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SLOPE = 0.2
"""The slope of the leaky ReLU for negative numbers."""


class Discriminator(nn.Module):
    """``after(noise(before(image and a map of its label)))``: one logit for each record, above 0 for "real".

    The paper's sigmoid is part of the loss, where it is numerically stable.
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
    """Four convolutions (as in the paper for MNIST; five for SVHN) with the noise after the third, and a linear classifier.

    Each convolution halves the image and is followed by a leaky ReLU; those after the noise have batch norm.
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
    records, and tanh. Each transposed convolution doubles the size of the image.
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
        start = max(size) // 32 + 1  # after five doublings just above the size of the records, as pooling requires
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


class DenseGenerator(nn.Module):
    """Records of a class from noise: ``(N, latent)`` and ``(N,)`` labels to ``(N, *shape)`` in [-1, 1].

    At first all records are the same: `start` (in [0, 1]) or gray. The output goes through tanh, so even changes in a few
    smooth directions can reach black and white.
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
    """As `DenseGenerator`, but for records ``mean + coordinates @ directions``, clamped to [0, 1]."""

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


class ConditionalDiscriminator(nn.Module):
    """``body(x)`` and a linear layer to one logit for each class; the label of the record selects the logit."""

    def __init__(self, body: nn.Module, features: int, classes: int) -> None:
        super().__init__()
        self.body, self.head, self.classes = body, nn.Linear(features, classes), classes

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        logits = self.head(self.body(x))
        own: Tensor = (logits * F.one_hot(labels, self.classes).to(logits.dtype)).sum(1)
        return own


def private_discriminator(
    shape: tuple[int, ...], classes: int, width: int = 16, *, convolutional: bool = False
) -> ConditionalDiscriminator:
    """A small discriminator for DP-SGD without batch norm: two dense layers, or two convolutions for images."""
    if convolutional:
        channels, rows, columns = shape
        body = nn.Sequential(
            nn.Conv2d(channels, width, 5, stride=2, padding=2),
            nn.LeakyReLU(SLOPE),
            nn.Conv2d(width, 2 * width, 5, stride=2, padding=2),
            nn.LeakyReLU(SLOPE),
            nn.Flatten(),
        )
        return ConditionalDiscriminator(body, 2 * width * math.ceil(rows / 4) * math.ceil(columns / 4), classes)
    wide = 8 * width
    body = nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), wide), nn.LeakyReLU(SLOPE), nn.Linear(wide, wide), nn.LeakyReLU(SLOPE)
    )
    return ConditionalDiscriminator(body, wide, classes)
