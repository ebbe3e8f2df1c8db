"""Where Opacus is right, its per-example gradients are ours; where it is wrong, the loop decides."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

from privet.gradients import Engine
from tests.gradients.oracle import check, loop, projected

RIGHT = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), (5, 6)),
    "sequence": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3)), (5, 4, 6)),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 3, 2)
        ),
        (5, 2, 8, 8),
    ),
    "conv1d": (
        lambda: nn.Sequential(nn.Conv1d(2, 4, 3, dilation=2), nn.Tanh(), nn.Conv1d(4, 4, 3, groups=2)),
        (5, 2, 12),
    ),
}


def opacus_instances(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule

        wrapped = GradSampleModule(copy.deepcopy(model), loss_reduction="sum")
        projected(wrapped(x)).sum().backward()
    return {name.removeprefix("_module."): p.grad_sample for name, p in wrapped.named_parameters()}


@pytest.mark.parametrize("name", RIGHT)
def test_agreement(name: str) -> None:
    torch.manual_seed(0)
    make, shape = RIGHT[name]
    model, x = make(), torch.randn(shape)
    peer = opacus_instances(model, x)
    with Engine(model) as engine:
        projected(model(x)).sum().backward()
        ours = engine.gradients().instantiate()
    for parameter, gradients in peer.items():
        torch.testing.assert_close(ours[parameter], gradients, atol=1e-5, rtol=1e-3)


def test_reflected_padding_where_opacus_is_wrong() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.Flatten())
    x = torch.randn(4, 1, 5, 5)
    oracle, peer = loop(model, (x,))["0.weight"], opacus_instances(model, x)["0.weight"]
    assert not torch.allclose(peer.double(), oracle, atol=1e-3)
    check(model, x)


def test_padding_index_where_opacus_is_wrong() -> None:
    torch.manual_seed(0)
    model = nn.Embedding(6, 3, padding_idx=0)
    tokens = torch.tensor([[0, 1, 2], [3, 0, 0], [4, 4, 5]])
    oracle, peer = loop(model, (tokens,))["weight"], opacus_instances(model, tokens)["weight"]
    assert not torch.allclose(peer.double(), oracle, atol=1e-3)
    check(model, tokens)
