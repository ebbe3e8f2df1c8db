"""Clipping factors from norms."""

from __future__ import annotations

import torch
from torch import Tensor

from privet.errors import InputError

ROUNDING = 1 + 1e-5
"""Norms are enlarged by this before they are compared, for they may be too small by as much."""


def clipping_factors(norms: Tensor, bound: float) -> Tensor:
    """``min(1, bound / norm)`` for each record."""
    return (bound / ROUNDING / norms).clamp(max=1.0)  # of a norm of zero: 1


def total_norms(squared: dict[str, Tensor]) -> Tensor:
    """The norm of each record's whole gradient from the squared norms of its parts."""
    return torch.stack(list(squared.values())).sum(0).sqrt()


def check_bound(bound: float, what: str = "The clipping norm") -> None:
    if not (bound > 0 and bound < float("inf")):
        raise InputError(f"{what} must be a positive number, not {bound}.")
