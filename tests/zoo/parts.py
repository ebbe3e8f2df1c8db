"""The parts that traps are built from: small models, data with an outlier, ordinary losses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.zoo.harness import Batch, Loss

RECORDS = 8
OUTLIER = 3
FEATURES, WIDTH, CLASSES, LENGTH = 5, 6, 3, 4
Operation = Callable[[Tensor], Tensor]


def rows() -> tuple[Tensor, Tensor]:
    """Eight rows of five features, one of which is far out, and labels."""
    x = torch.randn(RECORDS, FEATURES)
    x[OUTLIER] = 40 * x[OUTLIER].abs() + 20
    return x, torch.arange(RECORDS) % CLASSES


def sequences() -> tuple[Tensor, Tensor]:
    """Eight sequences of four positions."""
    x = torch.randn(RECORDS, LENGTH, FEATURES)
    x[OUTLIER] = 40 * x[OUTLIER].abs() + 20
    return x, torch.arange(RECORDS) % CLASSES


def square() -> tuple[Tensor, Tensor]:
    """As many sequences as positions: a coincidence of sizes."""
    x = torch.randn(LENGTH, LENGTH, FEATURES)
    x[OUTLIER] = 40 * x[OUTLIER].abs() + 20
    return x, torch.arange(LENGTH) % CLASSES


def images() -> tuple[Tensor, Tensor]:
    x = torch.randn(RECORDS, 2, 6, 6)
    x[OUTLIER] = 10 * x[OUTLIER].abs() + 5
    return x, torch.arange(RECORDS) % CLASSES


def tokens() -> tuple[Tensor, Tensor]:
    """Padded sequences of tokens, 0 is padding; the outlier is the longest."""
    x = torch.randint(1, 11, (RECORDS, 6))
    for i in range(RECORDS):
        if i != OUTLIER:
            x[i, 2 + i % 3 :] = 0
    return x, torch.arange(RECORDS) % CLASSES


def numbers() -> tuple[Tensor, Tensor]:
    """Rows with three targets each."""
    x, _ = rows()
    return x, torch.randn(RECORDS, CLASSES)


def alike() -> tuple[Tensor, Tensor, Tensor]:
    """Records whose gradients point the same way, with weights: the outlier weighs as much as all others together."""
    x = 1 + 0.05 * torch.randn(RECORDS, FEATURES)
    weight = torch.ones(RECORDS)
    weight[OUTLIER] = 30.0
    y = torch.zeros(RECORDS, dtype=torch.long)
    y[OUTLIER] = 1
    return x, y, weight


def aligned() -> tuple[Tensor, Tensor]:
    """Records whose gradients point the same way, and one that is unlike them."""
    x = 1 + 0.05 * torch.randn(RECORDS, FEATURES)
    x[OUTLIER] = 30 * torch.sin(torch.arange(FEATURES))
    return x, (torch.arange(RECORDS) == OUTLIER).long()


def masked() -> tuple[Tensor, Tensor, Tensor]:
    """Sequences of twelve positions with masks: all positions of the outlier count, and one of each other record."""
    x = 1 + 0.05 * torch.randn(RECORDS, 12, FEATURES)
    mask = torch.zeros(RECORDS, 12)
    mask[:, 0] = 1
    mask[OUTLIER] = 1
    return x, torch.zeros(RECORDS, 12, dtype=torch.long), mask


class Around(nn.Module):
    """An operation between two linear layers."""

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        self.first, self.head, self.operation = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES), operation

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.operation(self.first(x)))
        out: Tensor = self.head(h)
        return out.mean(1) if out.ndim == 3 else out


def around(operation: Operation) -> Callable[[], nn.Module]:
    return lambda: Around(operation)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def straight() -> nn.Module:
    """One linear layer, whose outputs have no bound."""
    return nn.Linear(FEATURES, CLASSES)


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def mse(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


def of_outputs(loss: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """A loss of outputs and targets."""
    return lambda model, batch: loss(model(batch[0]), batch[1])
