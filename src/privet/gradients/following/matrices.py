"""Linear algebra on the matrices of each record, which are in the last two dimensions."""

from __future__ import annotations

from torch import Tensor

from privet.gradients.following.moved import Moved, inside, place
from privet.gradients.following.products import beside_matrices
from privet.gradients.following.registry import follows
from privet.gradients.layout import UNKNOWN

follows("linalg_inv_ex linalg_cholesky_ex linalg_matrix_exp matrix_exp linalg_det det logdet slogdet linalg_slogdet")(
    inside(2)
)


@follows("linalg_matrix_power matrix_power")
def _power(moved: Moved) -> int:
    """A negative power needs an inverse, which may not exist."""
    return inside(2)(moved) if moved.argument(1, "n") >= 0 else UNKNOWN


@follows("linalg_solve_ex linalg_solve_triangular", beside=beside_matrices)
def _solved(moved: Moved) -> int:
    """The records are left of rows and columns; with a constant matrix, each may be one of the right sides."""
    matrix, right = moved.args[0], moved.argument(1, "B")
    at = moved.shared()
    if at is None or not isinstance(right, Tensor) or matrix.ndim != right.ndim:
        return UNKNOWN
    sides = right.ndim - (1 if moved.kwargs.get("left", True) else 2)
    of_one_matrix = moved.source is right and moved.single() and at.dim == sides
    return place(moved, at.dim) if at.dim < right.ndim - 2 or of_one_matrix else UNKNOWN
