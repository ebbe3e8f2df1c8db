"""Squared norms of long rows, summed so that float32 never under-clips."""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 1024
"""Rows are summed in float32 over blocks of this length and in float64 over the blocks: a plain float32 norm of five
million elements is 1.4e-4 too small, which would let a record contribute more than the clipping norm."""


def squared_norms(rows: Tensor) -> Tensor:
    """The squared Euclidean norm of each ``rows[i]``, as float64."""
    flat = rows.reshape(rows.shape[0], -1) if rows.shape[0] else rows.reshape(0, 1)
    length = flat.shape[1]
    if length <= _BLOCK:
        short: Tensor = torch.linalg.vector_norm(flat, dim=1).double().square_()
        return short
    whole = length - length % _BLOCK
    total = torch.zeros(flat.shape[0], dtype=torch.float64, device=rows.device)
    if whole:
        blocks = flat[:, :whole].unflatten(1, (-1, _BLOCK))
        total += torch.linalg.vector_norm(blocks, dim=2).double().square_().sum(1)
    if length > whole:
        total += torch.linalg.vector_norm(flat[:, whole:], dim=1).double().square_()
    return total
