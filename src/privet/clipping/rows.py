"""Bounded sums of things other than gradients: of the records themselves, of their second moments, and record by record."""

from __future__ import annotations

import torch
from torch import Tensor

from privet.clipping.bounded import ROUNDING, BoundedSum, check_bound, clipping_factors
from privet.gradients.numerics import squared_norms, weigh

_SMALLEST = 1e-30
"""Records shorter than this count as zero."""


def clipped_sum(rows: Tensor, bound: float, shares: Tensor | None = None) -> BoundedSum:
    """The sum of the rows, each scaled down to a Euclidean norm of at most `bound`, as float64.

    Here and below `shares` gives the weight of each row, so that the rows of one user have a total weight of 1; without it
    each row has weight 1.

    Formal guarantees: one record changes the sum by at most `bound`, whatever it holds; a row that is not finite
    contributes zero. With shares this holds for one user: a sum of rows is not longer than the sum of their lengths.
    """
    flat, factors, bad = _finite(rows, bound)
    factors = factors if shares is None else factors * shares
    total = weigh(flat, factors).reshape(rows.shape[1:])
    return BoundedSum({"sum": total}, bound, {"sum": bound}, len(rows), bad)


def clipped_rows(rows: Tensor, places: Tensor, count: int, bound: float) -> BoundedSum:
    """A matrix of `count` rows: each record's row, scaled down to a norm of at most `bound`, in its place; zero elsewhere.

    Formal guarantees: with the places of the others fixed, one record changes the matrix by at most `bound`, whatever it
    holds; a record that is not finite leaves its place empty.
    """
    flat, factors, bad = _finite(rows, bound)
    placed = torch.zeros(count, flat.shape[1], dtype=torch.float64).index_add_(0, places, flat * factors[:, None])
    return BoundedSum({"rows": placed}, bound, {"rows": bound}, len(rows), bad, {"rows": rows.dtype})


def _finite(rows: Tensor, bound: float) -> tuple[Tensor, Tensor, int]:
    """Flat rows (zero for rows that are not finite), their clipping factors, and the number of rows that are not finite."""
    check_bound(bound)
    flat = rows.flatten(1)
    norms = squared_norms(flat).sqrt_()
    bad = ~norms.isfinite()
    if bad.any():
        flat = torch.where(bad[:, None], 0.0, flat)
    factors = clipping_factors(torch.where(bad, 0.0, norms), bound)
    return flat, factors, int(bad.sum())


def normalized_second_moment(records: Tensor, shares: Tensor | None = None) -> BoundedSum:
    """The upper triangle of the sum of X_i^T X_i, each record X_i scaled to Frobenius norm 1, as float64.

    `records` is ``(N, d)``, or ``(N, k, d)`` where a record has k rows. Names "diagonal" and "above" hold the triangle.

    Formal guarantees: adding or removing a record changes the triangle by at most 1, since |X^T X|_F <= |X|_F^2; a record
    that is zero or not finite contributes zero.
    """
    rows = records[:, None, :] if records.ndim == 2 else records
    norms = squared_norms(rows).sqrt_()
    bad = ~norms.isfinite()
    usable = ~bad & (norms > _SMALLEST)
    if not usable.all():
        rows = torch.where(usable[:, None, None], rows, 0.0)
    # As in clipping, norms are enlarged a little, so that rounding never gives a record a weight above 1.
    factors = torch.where(usable, 1 / (norms * ROUNDING), 0.0)
    flat = (rows * factors[:, None, None]).flatten(0, 1)
    moment = flat.mT @ (flat if shares is None else flat * shares.repeat_interleave(rows.shape[1])[:, None])
    above = torch.triu_indices(len(moment), len(moment), offset=1)
    tensors = {"diagonal": moment.diagonal().clone(), "above": moment[above[0], above[1]]}
    return BoundedSum(tensors, 1.0, dict.fromkeys(tensors, 1.0), len(records), int(bad.sum()))


def grouped_count(groups: Tensor, count: int, shares: Tensor | None = None) -> BoundedSum:
    """The number of records in each group, as float64.

    Formal guarantees: each record is in one group, so it changes one count by 1. With shares, a user changes all counts
    together by at most 1.
    """
    return BoundedSum({"sum": _one_hot(groups, count, shares).sum(0)}, 1.0, {"sum": 1.0}, len(groups))


def grouped_sum(rows: Tensor, groups: Tensor, count: int, bound: float, shares: Tensor | None = None) -> BoundedSum:
    """``(count, d)``: for each group the sum of its rows, each clipped to a Euclidean norm of at most `bound`.

    Formal guarantees: those of `clipped_sum`; each record is in one group, so all sums together change by at most `bound`.
    """
    flat, bad = _clipped(rows.flatten(1), bound)
    total = _one_hot(groups, count, shares).mT @ flat
    return BoundedSum({"sum": total}, bound, {"sum": bound}, len(rows), bad)


def grouped_second_moment(
    rows: Tensor, groups: Tensor, count: int, bound: float, shares: Tensor | None = None
) -> BoundedSum:
    """For each group the upper triangle of the sum of x^T x over its rows, each clipped to a norm of at most `bound`.

    Formal guarantees: a record changes the triangles of its group, and so all of them, by at most ``bound**2``.
    """
    flat, bad = _clipped(rows.flatten(1), bound)
    weighed = flat if shares is None else flat * shares[:, None]
    moments = torch.stack([flat[groups == group].mT @ weighed[groups == group] for group in range(count)])
    above = torch.triu_indices(flat.shape[1], flat.shape[1], offset=1)
    tensors = {"diagonal": moments.diagonal(dim1=1, dim2=2).clone(), "above": moments[:, above[0], above[1]]}
    return BoundedSum(tensors, bound**2, dict.fromkeys(tensors, bound**2), len(rows), bad)


def symmetric(triangle: dict[str, Tensor]) -> Tensor:
    """The symmetric matrix, or one for each group, with this diagonal and upper triangle."""
    matrix = torch.diag_embed(triangle["diagonal"])
    above = torch.triu_indices(matrix.shape[-1], matrix.shape[-1], offset=1)
    matrix[..., above[0], above[1]] = triangle["above"]
    return matrix + matrix.triu(1).mT


def _clipped(flat: Tensor, bound: float) -> tuple[Tensor, int]:
    """The rows clipped to a norm of at most `bound`, as float64, and the number of rows that are not finite and became zero."""
    flat, factors, bad = _finite(flat, bound)
    return flat * factors[:, None], bad


def _one_hot(groups: Tensor, count: int, shares: Tensor | None = None) -> Tensor:
    hot = torch.nn.functional.one_hot(groups, count).to(torch.float64)
    return hot if shares is None else hot * shares[:, None]
