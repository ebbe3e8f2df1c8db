"""Other shapes, copies along dimensions, and dimensions in another order."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from privet.gradients.following.moved import Follow, Moved, place
from privet.gradients.following.registry import follows
from privet.gradients.layout import UNKNOWN, stride_at


@follows(
    "view reshape flatten unflatten unsqueeze squeeze ravel _unsafe_view atleast_1d atleast_2d atleast_3d"
)  # fmt: skip
def _same_order(moved: Moved) -> int:
    reinterpreted = any(isinstance(a, torch.dtype) for a in (*moved.args, *moved.kwargs.values()))
    several = len(moved.tensors) > 1  # torch.atleast_2d(one, other)
    return UNKNOWN if reinterpreted or several or not moved.only_first() else moved.stride


@follows("view_as reshape_as")
def _same_order_like(moved: Moved) -> int:
    return moved.stride if moved.args[0] is moved.source else UNKNOWN


@follows("expand expand_as broadcast_to")
def _grown(moved: Moved) -> int:
    at = moved.at
    if at is None or moved.args[0] is not moved.source:
        return UNKNOWN
    return place(moved, at.dim + moved.out.ndim - moved.source.ndim)


@follows("repeat tile")
def _repeated(moved: Moved) -> int:
    """Whole copies one after the other: the records come round again."""
    at = moved.at
    if at is None or not moved.only_first():
        return UNKNOWN
    return stride_at(moved.out.shape, at.dim + moved.out.ndim - moved.source.ndim, at.inner)


@follows("repeat_interleave")
def _repeated_in_place(moved: Moved) -> int:
    at, times, dim = moved.at, moved.argument(1, "repeats"), moved.argument(2, "dim")
    if at is None or not isinstance(times, int) or not moved.only_first() or (dim is None and moved.source.ndim > 1):
        return UNKNOWN
    grown = times if (dim or 0) % moved.source.ndim == at.dim else 1
    return stride_at(moved.out.shape, at.dim, at.inner * grown)


@follows("diag_embed")
def _diag_embed(moved: Moved) -> int:
    """The last dimension becomes a diagonal of two; the others stay in their order."""
    at, n = moved.at, moved.out.ndim
    if at is None or not moved.only_first() or at.dim == moved.source.ndim - 1:
        return UNKNOWN
    made = {moved.argument(2, "dim1", -2) % n, moved.argument(3, "dim2", -1) % n}
    return place(moved, [d for d in range(n) if d not in made][at.dim])


def _diagonal_of(dim1: int, dim2: int) -> Follow:
    def follow(moved: Moved) -> int:
        """Two dimensions become one, the last."""
        at, n = moved.at, moved.source.ndim
        gone = {moved.argument(2, "dim1", dim1) % n, moved.argument(3, "dim2", dim2) % n}
        if at is None or not moved.only_first() or at.dim in gone:
            return UNKNOWN
        return place(moved, at.dim - sum(d < at.dim for d in gone))

    return follow


follows("diagonal")(_diagonal_of(0, 1))
follows("linalg_diagonal")(_diagonal_of(-2, -1))


@follows("pad constant_pad_nd")
def _padded(moved: Moved) -> int:
    at, sizes = moved.at, moved.argument(1, "pad")
    if at is None or not moved.only_first():
        return UNKNOWN
    touched = {moved.source.ndim - 1 - i // 2 for i, size in enumerate(sizes) if size}
    return UNKNOWN if at.dim in touched else place(moved, at.dim)


def _permuted(moved: Moved, order: Sequence[int]) -> int:
    at = moved.at
    if at is None or not moved.only_first():
        return UNKNOWN
    return place(moved, [d % moved.source.ndim for d in order].index(at.dim))


@follows("permute")
def _permute(moved: Moved) -> int:
    order = moved.argument(1, "dims")
    return _permuted(moved, order if isinstance(order, (tuple, list)) else moved.args[1:])


@follows("transpose swapaxes swapdims")
def _transpose(moved: Moved) -> int:
    n = moved.source.ndim
    a, b = (
        moved.argument(1, "dim0", moved.kwargs.get("axis0")),
        moved.argument(2, "dim1", moved.kwargs.get("axis1")),
    )
    order = list(range(n))
    order[a % n], order[b % n] = order[b % n], order[a % n]
    return _permuted(moved, order)


@follows("T t numpy_T")
def _reverse(moved: Moved) -> int:
    return _permuted(moved, range(moved.source.ndim - 1, -1, -1))


@follows("mT mH adjoint")
def _matrix_transpose(moved: Moved) -> int:
    n = moved.source.ndim
    return _permuted(moved, [*range(n - 2), n - 1, n - 2])


@follows("movedim moveaxis")
def _movedim(moved: Moved) -> int:
    # Sizes stand for the dimensions: moving them the same way tells where each one went.
    shape = torch.empty([i + 2 for i in range(moved.source.ndim)], device="meta")
    return _permuted(moved, [size - 2 for size in shape.movedim(*moved.args[1:], **moved.kwargs).shape])


@follows("flip")
def _flip(moved: Moved) -> int:
    named = moved.kwargs.get("dims", moved.args[1:])
    dims = named[0] if len(named) == 1 and isinstance(named[0], (tuple, list)) else named
    at = moved.at
    if at is None or at.dim in {d % moved.source.ndim for d in dims} or not moved.only_first():
        return UNKNOWN
    return place(moved, at.dim)
