"""Squared norms of rows, never too small: whatever the length of a row and the size of its numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

_BLOCK = 1024
"""Rows are summed in float32 over blocks of this length and in float64 over the blocks: a plain float32 norm of five
million elements is 1.4e-4 too small, which would let a record contribute more than the clipping norm. Torch sums a block
in at least four lanes, so that its norm is off by at most 8e-6, for which clipping enlarges norms."""

_SMALLEST = 1e-24
"""A squared norm below this may have lost squares that float32 cannot hold; it is computed again in float64, as is one
that is not finite."""

CONVERTED = 2**18
"""How many numbers are converted to float64 at a time: they stay in the cache."""


def squared_norms(rows: Tensor) -> Tensor:
    """The squared Euclidean norm of each ``rows[i]``, as float64.

    Formal guarantees: the root is at most 1e-5 of itself too small, for every magnitude that float32 can hold; it is zero
    only for a row of zeros, and finite for every finite row.
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
    """For each record the squared norm of all rows that it owns, as float64, with the guarantees of `squared_norms`.

    Tiny rows need no second look where others of the record are larger: only the sum has to be right.
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
    """The squared norm of each ``rows[i] * scale``, as float64; the products are taken in float64 too."""
    flat, factors = flat_rows(rows), scale.reshape(-1).double()
    found = torch.empty(len(flat), dtype=torch.float64, device=rows.device)
    for chunk in cached_chunks(len(flat), flat.shape[1]):
        found[chunk] = (flat[chunk].double() * factors).square_().sum(1)
    return found


def flat_rows(rows: Tensor) -> Tensor:
    """``(rows, numbers)``, with at least one number in a row."""
    return rows.reshape(rows.shape[0], -1) if rows.numel() else rows.new_zeros(rows.shape[0], 1)


def cached_chunks(rows: int, length: int) -> Iterator[slice]:
    """Slices of `rows` rows of this length, of which float64 copies stay in the cache."""
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
    """The squared norms of the chosen rows, all of it in float64."""
    parts = [flat[chosen[chunk]].double().square_().sum(1) for chunk in cached_chunks(len(chosen), flat.shape[1])]
    return torch.cat(parts)
