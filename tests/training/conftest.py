"""Small data and models for private loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privet

KNOWN = {"batch_size": 40, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-5, "max_grad_norm": 1.0, "seed": 0}


def data(records: int = 200) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(records, 5, generator=generator)
    return TensorDataset(x, (x.sum(1) > 0).long())


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def make(
    optimizer: Callable[..., Any] = torch.optim.SGD, dataset: Any = None, lr: float = 0.1, **settings: Any
) -> tuple[nn.Module, Any, Any]:
    model = network()
    chosen = optimizer(model.parameters(), lr=lr)
    records = data() if dataset is None else dataset
    return model, chosen, privet.make_private(model, chosen, records, **{**KNOWN, **settings})


def run(model: nn.Module, optimizer: Any, private: Any, **batches: Any) -> Tensor:
    for x, y in private.batches(**batches):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return flat(model)


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.manual_seed(0)
