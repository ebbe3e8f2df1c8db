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


@pytest.mark.parametrize("length", [33, 96, 97, 130])
def test_long_sequences_take_the_gram_matrix_by_steps(length: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 160), nn.Tanh(), nn.Linear(160, 180))
    engine = check(model, torch.randn(4, length, 200), memory_budget=0)
    assert engine.explain().count("gram") == 2


def test_sequences_in_front_of_the_records() -> None:
    """Transposed, so not contiguous: the map is one product all the same, and the records are where they were."""

    class SequenceFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.transpose(0, 1)).transpose(0, 1)

    torch.manual_seed(0)
    check(SequenceFirst(), torch.randn(5, 7, 6))
