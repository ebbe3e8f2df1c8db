"""The CIFAR-10 network of Abadi et al. 2016: two convolutions and two dense layers on 24x24 crops."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Crop(nn.Module):
    """Square crops: anywhere in the image in training, its centre in evaluation."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        room = images.shape[-2] - self.size, images.shape[-1] - self.size
        if self.training:
            # One place for the whole batch: it depends on no record, and the crop stays a view.
            top, left = (int(torch.randint(0, free + 1, ())) for free in room)
        else:
            top, left = room[0] // 2, room[1] // 2
        return images[..., top : top + self.size, left : left + self.size]


def crop_cnn(channels: int = 3, crop: int = 24, classes: int = 10, frozen: bool = False) -> nn.Sequential:
    """Two 5x5 convolutions of 64 maps, each with ReLU and 2x2 max pooling, and two dense layers of 384 units.

    The paper pretrained the convolutions on CIFAR-100 as public data and kept them fixed: `frozen` does the latter, once
    weights from public data were loaded into them.
    """
    side = crop // 4
    model = nn.Sequential(
        Crop(crop),
        nn.Conv2d(channels, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * side * side, 384),
        nn.ReLU(),
        nn.Linear(384, 384),
        nn.ReLU(),
        nn.Linear(384, classes),
    )
    if frozen:
        for layer in model:
            if isinstance(layer, nn.Conv2d):
                layer.requires_grad_(False)
    return model
