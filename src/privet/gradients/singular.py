"""Linear algebra that raises where a matrix is singular, so that one record could end the run.

Here it does not raise: what belongs to such a matrix is not a number, and a record that is not finite contributes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def _or_nan(result: Tensor, info: Tensor, dims: int = 2) -> Tensor:
    return result * torch.where(info[(..., *(None,) * dims)] != 0, math.nan, 1.0)


def inv(A: Tensor) -> Tensor:
    return _or_nan(*torch.linalg.inv_ex(A))


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    return _or_nan(*torch.linalg.cholesky_ex(A, upper=upper))


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    result, info = torch.linalg.solve_ex(A, B, left=left)
    return _or_nan(result, info, result.ndim - info.ndim)


WITHOUT_RAISING: dict[str, Callable[..., Tensor]] = {
    "linalg_inv": inv,
    "inverse": inv,
    "linalg_cholesky": cholesky,
    "linalg_solve": solve,
}
"""What is computed in the place of an operation, by its name."""
