"""The models of the stations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from privet.audit.stations.training import PUBLIC_SIZE


def linear(width: int = 4, bias: bool = False) -> nn.Module:
    model = nn.Linear(width, 1, bias=bias)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


class Twins(nn.Module):
    """Two layers of one shape; a record pulls them in opposite directions."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = linear(), linear()

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.one(x) - self.other(x)
        return total


class Padded(nn.Module):
    """An embedding with a padding row; the last column of a record is the gradient of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, 2, padding_idx=0)
        nn.init.zeros_(self.embedding.weight)

    def forward(self, x: Tensor) -> Tensor:
        tokens, pull = x[:, :-1].long(), x[:, -1:]
        total: Tensor = self.embedding(tokens).sum((1, 2))[:, None] * pull
        return total


class WithBuffer(nn.Module):
    """A layer and a buffer that nobody should touch; with `counting`, the model itself writes batch statistics into it."""

    statistics: Tensor

    def __init__(self, counting: bool) -> None:
        super().__init__()
        self.layer, self.counting = linear(), counting
        self.register_buffer("statistics", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.counting:
            with torch.no_grad():
                self.statistics.copy_(x.mean(0))
        total: Tensor = self.layer(x)
        return total


class Normalized(nn.Module):
    """Batch normalization in evaluation mode when the training is made private, and in training mode in the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4, affine=False), linear()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.layer(self.norm(x))
        return total


class Late(nn.Module):
    """A second layer that is frozen when the training is made private, and whose gradients nobody clips."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.late = linear(), linear()
        self.late.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.layer(x) + self.late(x)
        return total


class Growing(nn.Module):
    """A model that gets a second layer in the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([linear()])

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = sum((layer(x) for layer in self.layers), torch.zeros(len(x), 1))
        return total


class Mixing(nn.Module):
    """A layer whose input was mixed over the records of the batch; the last column of a record is the pull of its output."""

    def __init__(self, mix: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.mix = linear(), mix
        self.first = nn.Linear(4, 4, bias=False)
        nn.init.eye_(self.first.weight)
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.layer(self.mix(self.first(x[:, :4]))) * x[:, 4:]
        return total


class Positions(nn.Module):
    """A table of positions, whose numbers are a second input with as many rows as a batch may have records."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(PUBLIC_SIZE, 1)
        nn.init.zeros_(self.table.weight)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        total: Tensor = (x[..., None] * self.table(positions)).sum((1, 2))
        return total


class Sequences(nn.Module):
    """A linear layer on every position of a sequence."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inside, outside, bias=False)
        nn.init.zeros_(self.layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        return found
