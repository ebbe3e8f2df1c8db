"""The records of the stations."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from privet.audit.stations.training import LOUD


def short(count: int = 3) -> Tensor:
    """Records of gradients below the clipping norm, none in the first direction."""
    return 0.4 * torch.eye(4)[1 : count + 1]


def one(length: float = LOUD, place: int = 0, width: int = 4) -> Tensor:
    return length * F.one_hot(torch.tensor(place), width).float()


def cancelling(positions: int = 16, width: int = 64) -> Tensor:
    """Near-constant inputs, then output gradients that cancel: the norm is a small difference of large numbers.

    Of fifty such records it is the one whose squared norm by Gram matrices comes out lowest in float32.
    """
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(50):
        inputs = 1e4 + torch.randn(positions, width, generator=generator)
        pulls = torch.randn(positions, width, generator=generator)
        pulls -= pulls.mean(0)
        made.append((float(((inputs @ inputs.mT) * (pulls @ pulls.mT)).sum()), torch.cat([inputs, pulls], dim=1)))
    return min(made, key=lambda pair: pair[0])[1]
