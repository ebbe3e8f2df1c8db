"""The six models on which the gradient engine is measured, with a batch each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Case:
    title: str
    batch: int
    make: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    classes: int = 10
    images: bool = False

    def targets(self, batch: int) -> Tensor:
        return torch.randint(self.classes, (batch,))


class Block(nn.Module):
    """A pre-activation residual block with GroupNorm."""

    def __init__(self, width: int, out: int, stride: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(groups, width), nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.norm2, self.conv2 = nn.GroupNorm(groups, out), nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.skip = nn.Conv2d(width, out, 1, stride, bias=False) if width != out or stride != 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(x))
        return self.skip(y) + self.conv2(F.relu(self.norm2(self.conv1(y))))


def residual(widths: tuple[int, ...], blocks: int, groups: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False)]
    before = 16
    for i, width in enumerate(widths):
        for j in range(blocks):
            layers.append(Block(before, width, 2 if i and not j else 1, groups))
            before = width
    return nn.Sequential(
        *layers, nn.GroupNorm(groups, before), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10)
    )


class Transformer(nn.Module):
    """A causal language model's trunk and head; the loss is that of the last token."""

    def __init__(self, vocabulary: int = 8000, width: int = 256, layers: int = 4, length: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(length, width) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


class Reader(nn.Module):
    """An LSTM text classifier."""

    def __init__(self, vocabulary: int = 8000, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        out, _ = self.lstm(self.embedding(tokens))
        return self.head(out[:, -1])


def _digits_cnn() -> nn.Module:
    from privet.models import tanh_cnn

    return tanh_cnn()


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(60, 1000), nn.ReLU(), nn.Linear(1000, 10))


CASES = {
    "mlp": Case("MLP 60-1000-10, batch 600", 600, _mlp, lambda n: torch.randn(n, 60)),
    "cnn": Case("MNIST CNN (26k), batch 256", 256, _digits_cnn, lambda n: torch.randn(n, 1, 28, 28), images=True),
    "resnet8": Case(
        "ResNet8 GroupNorm, batch 128",
        128,
        lambda: residual((16, 32, 64), 1, 8),
        lambda n: torch.randn(n, 3, 32, 32),
        images=True,
    ),
    "wrn-16-4": Case(
        "WRN-16-4 GroupNorm, batch 32",
        32,
        lambda: residual((64, 128, 256), 2, 16),
        lambda n: torch.randn(n, 3, 32, 32),
        images=True,
    ),
    "transformer": Case(
        "transformer 4x256, length 128, vocabulary 8k, batch 32",
        32,
        Transformer,
        lambda n: torch.randint(8000, (n, 128)),
    ),
    "lstm": Case("LSTM 128, length 64, batch 64", 64, Reader, lambda n: torch.randint(8000, (n, 64))),
}
