"""Loading batches by index, from any map-style data set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from privet.errors import InputError
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
