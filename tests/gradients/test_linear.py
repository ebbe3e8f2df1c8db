"""Linear maps on inputs of every shape against the loop over single examples."""

import pytest
import torch
from torch import nn

from tests.gradients.oracle import check


@pytest.mark.parametrize("shape", [(5, 6), (5, 4, 6), (6, 6, 6), (5, 2, 3, 6), (1, 6), (1, 4, 6)])
@pytest.mark.parametrize("budget", [0, None])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(shape: tuple[int, ...], budget: int | None, bias: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8, bias=bias), nn.ReLU(inplace=True), nn.Linear(8, 3, bias=bias))
    check(model, torch.randn(shape), memory_budget=budget)


@pytest.mark.parametrize("budget", [0, None])
@pytest.mark.parametrize("shape", [(5, 6), (5, 3, 6)])
def test_layer_called_often_is_one_use(shape: tuple[int, ...], budget: int | None) -> None:
    class Often(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(4):
                x = torch.tanh(self.layer(x))
            return x

    torch.manual_seed(0)
    engine = check(Often(), torch.randn(shape), memory_budget=budget)
    if len(shape) == 2:
        assert engine.explain().count("\n") == 1
