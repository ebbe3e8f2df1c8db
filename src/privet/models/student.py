"""The student of "Generating differentially private datasets using GANs": trained on artificial data, without noise."""

from __future__ import annotations

from torch import nn


def conv_student(channels: int = 1, height: int = 28, width: int = 28, classes: int = 10) -> nn.Sequential:
    """Two convolutions with batch normalisation and max pooling, then two dense layers.

    The paper states the layers and not their sizes. Its batch normalisation mixes records: it is for data that may be
    published, and `privet.make_private` refuses it.
    """
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.BatchNorm2d(32),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.BatchNorm2d(64),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )
