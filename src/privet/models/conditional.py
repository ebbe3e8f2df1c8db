"""A discriminator for DP-SGD: small, without batch norm, and with one logit for each class, of which the label picks one."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn import functional as F

from privet.models.dcgan import SLOPE


class ConditionalDiscriminator(nn.Module):
    """``body(x)`` through a linear layer to a logit for each class; the record's own counts."""

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
    """Two dense layers, or two convolutions for images."""
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
