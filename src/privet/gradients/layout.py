"""Where the records of a batch are inside a tensor, and how operations move them.

A batched tensor holds its record index at a fixed place: reading the tensor in row-major order, element ``n``
belongs to record ``(n // stride) % records``. One number therefore says it all, and it survives every reshape.
Sequence-first tensors, windows folded into the batch and several views of one record are ordinary cases of it.

An operation that this file cannot follow gives a tensor of `UNKNOWN` layout. That is harmless until such a tensor
meets a parameter; then the engine refuses by name, because a wrong guess would clip the wrong thing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

UNKNOWN = -1
"""The stride of a tensor that depends on the batch in a way that is not followed."""
SUM, MEAN = -2, -3
"""The strides of a tensor that holds no single record: the sum, or the mean, over all records of something of each."""


@dataclass(frozen=True)
class Position:
    """The dimension that holds the records: its size is ``outer * records * inner``."""

    dim: int
    outer: int
    inner: int


@lru_cache(maxsize=4096)
def position(shape: Sequence[int], stride: int, records: int) -> Position | None:
    """The dimension of `shape` in which records lie at `stride`, or None where they are spread over several."""
    if stride < 0 or not shape:
        return None
    if records == 1:  # one record owns everything, wherever it lies
        return Position(0, 1, shape[0])
    below = 1
    for dim in range(len(shape) - 1, -1, -1):
        size = shape[dim]
        if stride % below == 0 and size % (stride // below * records) == 0 and (stride < below * size or size == 0):
            inner = stride // below
            return Position(dim, size // (inner * records), inner)
        below *= size
    return None


_PLAIN = Position(0, 1, 1)
"""Records in front, one row each: the usual case."""


def stride_at(shape: Sequence[int], dim: int, inner: int = 1) -> int:
    """The stride of records that lie in dimension `dim`, each holding `inner` consecutive entries of it."""
    return inner * math.prod(shape[dim + 1 :])


def canonical(tensor: Tensor, stride: int, records: int) -> Tensor:
    """`tensor` with the records in front: ``(records, outer, inner, *rest)``, a view where possible.

    `rest` are the dimensions other than the one that held the records, in their order.
    """
    at = position(tensor.shape, stride, records)
    if at is None:
        raise ValueError("the layout does not fit the tensor")
    if at == _PLAIN:
        return tensor[:, None, None]
    split: Tensor = tensor.unflatten(at.dim, (at.outer, records, at.inner))
    return split.movedim((at.dim + 1, at.dim, at.dim + 2), (0, 1, 2))
