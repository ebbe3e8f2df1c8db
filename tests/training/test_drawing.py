"""Loading batches by index, from any map-style data set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import privet
from privet.errors import InputError, PrivetError
from privet.training.drawing import load_batches


class Squares(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index), float(index**2)]), index


@pytest.mark.parametrize("workers", [0, 1])
def test_any_map_style_data_set(workers: int) -> None:
    indices = [torch.tensor([1, 4]), torch.tensor([], dtype=torch.long), torch.tensor([8])]
    batches = list(load_batches(Squares(), iter(indices), workers=workers))
    assert [len(x) for x, _ in batches] == [2, 0, 1]
    assert batches[0][0].tolist() == [[1.0, 1.0], [4.0, 16.0]]
    assert batches[1][0].shape == (0, 2) and batches[1][1].shape == (0,)


def test_tensors_are_selected_at_once() -> None:
    data = TensorDataset(torch.arange(10.0).view(10, 1), torch.arange(10))
    (x, y), (empty, _) = load_batches(data, [torch.tensor([2, 7]), torch.tensor([], dtype=torch.long)])
    assert x.tolist() == [[2.0], [7.0]] and y.tolist() == [2, 7] and empty.shape == (0, 1)


def test_streams_are_refused() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([1, 2])

    with pytest.raises(InputError, match="map-style"):
        next(load_batches(Stream(), []))


def test_a_loop_that_is_left_does_not_draw_again() -> None:
    """Otherwise the records would decide which of several draws is used: a loop could leave all batches that hold one."""
    data = TensorDataset(torch.randn(60, 2), torch.arange(60))
    model = torch.nn.Linear(2, 2)
    private = privet.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=20, steps=2, noise_multiplier=1.0, delta=1e-3,
        max_grad_norm=1.0,
    )  # fmt: skip

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        private.step(torch.nn.functional.cross_entropy(model(x), y % 2, reduction="none"))

    draws = []
    for _ in range(3):
        for x, y in private.batches():
            if not private.rehearsing:
                draws.append(y.tolist())
                break
            step(x, y)
    assert draws[0] == draws[1] == draws[2] and private.steps_done == 0
    seen = []
    for x, y in private.batches():
        step(x, y)
        seen.append(y.tolist())
    assert seen[0] == draws[0] and seen[1] != draws[0] and private.steps_done == 2


def test_a_gradient_that_is_replaced_between_two_optimizers() -> None:
    data = TensorDataset(torch.randn(12, 2), torch.arange(12) % 2)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    first, second = (torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model)
    private = privet.make_private(
        model, [first, second], data, batch_size=6, steps=2, noise_multiplier=1.0, delta=1e-2, max_grad_norm=1.0
    )
    with pytest.raises(PrivetError, match="between the steps of two optimizers"):
        for x, y in private.batches():
            torch.nn.functional.cross_entropy(model(x), y).backward()
            first.step()
            if not private.rehearsing:
                with torch._C.DisableTorchFunction():
                    model[1].bias.grad = x.mean(0).clone()
            second.step()
