"""Small classifiers with known leakage, and the records that they are trained on."""

import torch
from torch import nn

from privet.attacks import Fitting

CLASSES = 3


def blobs(records: int, seed: int, spread: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Three overlapping classes in 20 dimensions."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (records,), generator=generator)
    return torch.randn(records, 20, generator=generator) * spread + torch.eye(20)[labels], labels


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, CLASSES))


FIT = Fitting(network, epochs=30, batch_size=20, learning_rate=0.01)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
