"""The student of "Generating differentially private datasets using GANs": trained on artificial data, without noise."""

from __future__ import annotations

from torch import nn


def conv_student(channels: int = 1, height: int = 28, width: int = 28, classes: int = 10) -> nn.Sequential:
    """Two convolutions of 5x5 with batch normalisation and max pooling, then two dense layers.

    The paper states the layers and not their sizes. Its batch normalisation mixes records: it is for data that may be
    published, and `privet.make_private` refuses it.
    """
    # Small images would be used up by convolutions that stay within their edges.
    padding, lost = (0, 3) if min(height, width) >= 16 else (2, 0)
    rows, columns = height // 4 - lost, width // 4 - lost
    return nn.Sequential(
        nn.Conv2d(channels, 20, 5, padding=padding),
        nn.ReLU(),
        nn.BatchNorm2d(20),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 40, 5, padding=padding),
        nn.ReLU(),
        nn.BatchNorm2d(40),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(40 * rows * columns, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )
