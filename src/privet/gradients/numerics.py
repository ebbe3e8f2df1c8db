"""Norms that are never too small and weighted sums in float64, whatever the size of the numbers.

A float32 sum of 250,000 records that point the same way is off by 1.6 % of one of them: adding a record could then move it by
more than the clipping norm.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

_KEPT_BYTES = 2**21


class _Workspace(threading.local):
    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    def take(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Uninitialized memory for a tensor with the dtype and device of `like`. The next call with the same name reuses it."""
        size = math.prod(shape)
        kept = self.kept.get(name)
        if kept is None or kept.numel() < size or kept.dtype != like.dtype or kept.device != like.device:
            kept = like.new_empty(size)
            if size * like.element_size() <= _KEPT_BYTES:
                self.kept[name] = kept
        return kept[:size].view(shape)


workspace = _Workspace()


_BLOCK = 1024
"""Rows are summed in float32 over blocks of this length, and in float64 over the blocks. A plain float32 norm of five million
elements is 1.4e-4 too small, which would let a record contribute more than the clipping norm. torch sums a block in at least
four lanes, so that its norm is off by at most 8e-6; clipping enlarges norms by that much."""

_SMALLEST = 1e-24
"""A squared norm below this may have lost squares that float32 cannot represent. It is computed again in float64, and so is one
that is not finite."""

CONVERTED = 2**18
"""This many numbers are converted to float64 at a time, so that they stay in the cache."""


def squared_norms(rows: Tensor) -> Tensor:
    """The squared Euclidean norm of each ``rows[i]``, as float64.

    Formal guarantees: the root is too small by at most a relative 1e-5, for every magnitude that float32 can represent. It is
    zero only for a row of zeros, and finite for every finite row.
    """
    flat = flat_rows(rows)
    found = _fast(flat if flat.stride(1) == 1 else flat.contiguous())
    if len(found):
        smallest, largest = torch.aminmax(found)
        if not (smallest > _SMALLEST and largest < math.inf):
            doubtful = (~((found > _SMALLEST) & (found < math.inf))).nonzero().squeeze(1)
            found[doubtful] = _exact(flat, doubtful)
    return found


def summed_squared_norms(rows: Tensor, owners: Tensor, records: int) -> Tensor:
    """For each record, the squared norm of all rows that it owns, as float64, with the guarantees of `squared_norms`.

    Tiny rows are not computed again if other rows of the record are larger: only the sum has to be accurate.
    """
    flat = flat_rows(rows)
    found = torch.zeros(records, dtype=torch.float64, device=rows.device).index_add_(0, owners, _fast(flat))
    doubtful = ~((found > _SMALLEST) & (found < math.inf))
    again = doubtful[owners].nonzero().squeeze(1)
    if len(again):
        found[doubtful] = 0.0
        found.index_add_(0, owners[again], _exact(flat, again))
    return found


def scaled_squared_norms(rows: Tensor, scale: Tensor) -> Tensor:
    """The squared norm of each ``rows[i] * scale``, computed in float64."""
    flat, factors = flat_rows(rows), scale.reshape(-1).double()
    found = torch.empty(len(flat), dtype=torch.float64, device=rows.device)
    for chunk in cached_chunks(len(flat), flat.shape[1]):
        found[chunk] = (flat[chunk].double() * factors).square_().sum(1)
    return found


def flat_rows(rows: Tensor) -> Tensor:
    """`rows` with the shape ``(rows, numbers)``, with at least one number in a row."""
    return rows.reshape(rows.shape[0], -1) if rows.numel() else rows.new_zeros(rows.shape[0], 1)


def cached_chunks(rows: int, length: int) -> Iterator[slice]:
    """Slices of `rows` rows of this length, small enough that their float64 copies stay in the cache."""
    step = max(CONVERTED // max(length, 1), 1)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _fast(flat: Tensor) -> Tensor:
    wider = torch.float32 if flat.dtype in (torch.float16, torch.bfloat16) else None
    length = flat.shape[1]
    if length <= _BLOCK:
        short: Tensor = torch.linalg.vector_norm(flat, dim=1, dtype=wider).double().square_()
        return short
    whole = length - length % _BLOCK
    blocks = flat[:, :whole].unflatten(1, (-1, _BLOCK))
    total: Tensor = torch.linalg.vector_norm(blocks, dim=2, dtype=wider).double().square_().sum(1)
    if length > whole:
        total += torch.linalg.vector_norm(flat[:, whole:], dim=1, dtype=wider).double().square_()
    return total


def _exact(flat: Tensor, chosen: Tensor) -> Tensor:
    """The squared norms of the chosen rows, computed in float64."""
    parts = [flat[chosen[chunk]].double().square_().sum(1) for chunk in cached_chunks(len(chosen), flat.shape[1])]
    return torch.cat(parts)


_COLUMNS = 2**16
"""Long rows are converted in parts of this many numbers, four rows at a time. Of 2^14 to 2^18 it was the fastest for 32 to 256
rows of 1,024 to 590,000 numbers (AMD EPYC with AVX2, one thread)."""


def weigh(rows: Tensor, weights: Tensor) -> Tensor:
    """The sum of ``weights[i] * rows[i]``, as float64."""
    total = torch.zeros(rows.shape[1:], dtype=torch.float64, device=rows.device)
    add_weighed(total, rows, weights)
    return total


def add_weighed(total: Tensor, rows: Tensor, weights: Tensor) -> None:
    """Add the sum of ``weights[i] * rows[i]`` to `total`, which is contiguous. `total` and `weights` are float64."""
    if not rows.numel():
        return
    flat, into = flat_rows(rows), total.view(-1)
    columns = min(flat.shape[1], _COLUMNS)
    step = max(CONVERTED // columns, 1)
    for left in range(0, flat.shape[1], columns):
        part, sums = flat[:, left : left + columns], into[left : left + columns]
        for top in range(0, len(flat), step):
            chunk = part[top : top + step]
            converted = workspace.take("converted", chunk.shape, weights).copy_(chunk)
            sums.addmv_(converted.mT, weights[top : top + step])
