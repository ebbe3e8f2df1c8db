"""The small convolutional network for 28x28 digits that trains well under noise (26,010 parameters, tanh)."""

from __future__ import annotations

from torch import nn


def tanh_cnn(channels: int = 1, classes: int = 10) -> nn.Sequential:
    """Two strided convolutions and two dense layers for images of 28x28 (Papernot et al. 2021, as in Tramèr and Boneh)."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.Tanh(),
        nn.Linear(32, classes),
    )
