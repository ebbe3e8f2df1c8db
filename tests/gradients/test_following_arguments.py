"""Calls whose arguments hide records: in slices, in keywords, in a second use of one tensor, in one of fewer dimensions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from privet.gradients.marks import UNKNOWN, Mark, Pass, mark_of, set_mark, stride_at
from privet.gradients.recorder import Recorder
from privet.gradients.use import MemoryBudget

B = 4
"""The number of records, of positions, of features and of classes."""
RANGE, SQUARE, TABLE = torch.arange(B), torch.rand(B, B), torch.rand(10, 3)


def followed(function: Callable[..., Tensor], *records: tuple[Tensor, int]) -> tuple[Mark | None, str]:
    """The mark of what a function makes of records, each tensor with the dimension that holds them; and what has escaped."""
    recorder = Recorder({})
    recorder.take(Pass(B, MemoryBudget(1e9), trusting=False))
    recorder.know([RANGE, SQUARE, TABLE])
    assert recorder.current is not None
    for tensor, dim in records:
        set_mark(tensor, Mark(recorder.current.token, stride_at(tensor.shape, dim)))
    with recorder:
        out = function(*(tensor for tensor, _ in records))
    return mark_of(out), recorder.current.escaped


def labels() -> Tensor:
    return torch.tensor([1, 2, 3, 1])


MIXING: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "trimmed to the longest": lambda x, y, w: x[:, : y.max()],
    "a constant, trimmed to the longest": lambda x, y, w: x * SQUARE[0, : y.max()].sum(),
    "written up to the longest": lambda x, y, w: _written(x, y),
    "full_like by keywords": lambda x, y, w: x * torch.full_like(fill_value=x.sum(), input=SQUARE),
    "full_like of itself": lambda x, y, w: x * torch.full_like(x.sum(), x.sum()),
    "a sum times a sum": lambda x, y, w: torch.add(x.sum(), (2 * x).sum(), alpha=x.sum()),
    "class weights of records": lambda x, y, w: F.multi_margin_loss(x, y, weight=w, reduction="none"),
    "bags weighed by others": lambda x, y, w: F.embedding_bag(y[:, None] * RANGE, TABLE, per_sample_weights=x.T, mode="sum"),
    "bags weighed by places": lambda x, y, w: F.embedding_bag(y[:, None] * RANGE, TABLE, per_sample_weights=SQUARE, mode="sum"),
    "cdist of other dimensions": lambda x, y, w: torch.cdist(x[:, None], x[:, :, None, None] * x[:, None, None]),
    "rows of the other dimension, by a tuple": lambda x, y, w: x.T[(1, 0, 2, 3),] * x,
    "rows of the other dimension, by a range": lambda x, y, w: x.T[range(B)] * x,
    "rows of the other dimension, by NumPy": lambda x, y, w: x.T[np.array([1, 0, 2, 3])] * x,
    "places by NumPy": lambda x, y, w: x[RANGE, np.array([0, 1, 2, 3])],
    "a mask of uint8": lambda x, y, w: TABLE[:B][y.to(torch.uint8)],
    "a truth value and a tensor": lambda x, y, w: (x[None, :, :] * SQUARE[:, None])[True, RANGE[:3]],
    "a constant twice in einsum": lambda x, y, w: torch.einsum("bi,ij,bj->bi", x, SQUARE, SQUARE),
}  # fmt: skip


def _written(x: Tensor, y: Tensor) -> Tensor:
    out = x.clone()
    out[:, : y.max()] = 0
    return out


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.filterwarnings("ignore")
def test_what_mixes_records_is_unknown(name: str) -> None:
    x, y, w = torch.rand(B, B), labels(), torch.rand(B)
    mark, _ = followed(MIXING[name], (x, 0), (y, 0), (w, 0))
    assert mark is not None
    assert mark.stride == UNKNOWN


def test_einsum_of_one_tensor_with_and_without_dots() -> None:
    mark, _ = followed(lambda x: torch.einsum("a...,ab->...a", x, x), (torch.rand(B, B), 0))
    assert mark is not None
    assert mark.stride == 1


SHAPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a slice": lambda x, y: x[:, : y.max()],
    "a slice of a constant": lambda x, y: RANGE[: y.max()],
    "narrow": lambda x, y: x.narrow(1, 0, y.max()),
    "copies of a constant": lambda x, y: RANGE.repeat(y.max()),
    "records above the mean": lambda x, y: x[x[:, 0] > x.mean(0)[0]],
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_that_records_decide_is_noted(name: str) -> None:
    """Python reads shapes, and what it does with them is not followed."""
    _, escaped = followed(SHAPES[name], (torch.rand(B, B), 0), (labels(), 0))
    assert escaped


def test_a_slice_by_a_constant_is_followed() -> None:
    mark, escaped = followed(lambda x: x[:, : RANGE[2]], (torch.rand(B, B), 0))
    assert mark is not None
    assert mark.stride == 2
    assert not escaped
