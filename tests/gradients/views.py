"""The oracle for several views of one record: a float64 loop over groups of consecutive rows."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from privet.gradients import Engine
from tests.gradients.oracle import TOLERANCE, Loss, projected


def loop_over_groups(model: nn.Module, x: Tensor, views: int, losses: Loss = projected) -> dict[str, Tensor]:
    """For each record, the gradient of the sum of its views' losses."""
    double = copy.deepcopy(model).double()
    parameters = {name: p for name, p in double.named_parameters() if p.requires_grad}
    rows = [
        torch.autograd.grad(losses(double(group)).sum(), list(parameters.values())) for group in x.double().split(views)
    ]
    return {name: torch.stack([row[i] for row in rows]) for i, name in enumerate(parameters)}


def check_views(model: nn.Module, x: Tensor, views: int, tolerance: float = TOLERANCE, **engine: Any) -> None:
    expected = loop_over_groups(model, x, views)
    scale = max(float(g.abs().max()) for g in expected.values()) + 1e-30
    weights = torch.linspace(0.1, 1.0, x.shape[0] // views, dtype=torch.float64)
    for reduce, share in ((torch.sum, 1), (torch.mean, views)):
        with Engine(model, views=views, **engine) as listening:
            reduce(projected(model(x))).backward()
            gradients = listening.gradients()
            norms, instances, summed = (
                gradients.squared_norms(),
                gradients.instantiate(),
                gradients.weighted_sum(weights),
            )
        for name, total in expected.items():
            oracle = total / share
            close = {"atol": tolerance * scale * len(weights), "rtol": 1e-3}
            torch.testing.assert_close(norms[name].sqrt(), oracle.flatten(1).norm(dim=1), **close)
            torch.testing.assert_close(instances[name].double(), oracle, **close)
            torch.testing.assert_close(summed[name].double(), torch.einsum("b,b...->...", weights, oracle), **close)
