"""Changes of shape and of the order of dimensions; joining and splitting tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from privet.gradients.following.moved import Follow, Moved, aligned, by_broadcasting, follows, place
from privet.gradients.marks import UNKNOWN, Position, position, stride_at

_REARRANGING = frozenset(
    "view reshape flatten unflatten unsqueeze squeeze ravel view_as reshape_as expand expand_as broadcast_to permute transpose "
    "T t mT movedim cat concat concatenate stack chunk split narrow select unbind __getitem__".split()
)


def is_rearranging(name: str) -> bool:
    """Whether an operation puts numbers into other places and changes none of them."""
    return name in _REARRANGING


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
    """Whole copies one after the other: the records repeat."""
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
    """The last dimension becomes the diagonal of two; the others keep their order."""
    at, n = moved.at, moved.out.ndim
    if at is None or not moved.only_first() or at.dim == moved.source.ndim - 1:
        return UNKNOWN
    made = {moved.argument(2, "dim1", -2) % n, moved.argument(3, "dim2", -1) % n}
    return place(moved, [d for d in range(n) if d not in made][at.dim])


def _diagonal_of(dim1: int, dim2: int) -> Follow:
    def follow(moved: Moved) -> int:
        """Two dimensions become one, which is the last."""
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
    # A tensor of distinct sizes, moved in the same way, tells where each dimension goes.
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


@follows("cat concat concatenate", beside=by_broadcasting)
def _cat(moved: Moved) -> int:
    return _joined_along(moved, moved.argument(1, "dim", moved.kwargs.get("axis", 0)) % moved.out.ndim)


def _joined_along(moved: Moved, dim: int) -> int:
    at = moved.at
    if at is None:
        return UNKNOWN
    if at.dim != dim:
        return aligned(moved, moved.out.shape)
    # Along the records: copies of the whole batch, one after the other.
    places = [position(tensor.shape, UNKNOWN if s is None else s, moved.records) for tensor, s in moved.tensors]
    if any(place is None or place.dim != dim or place.inner != at.inner for place in places):
        return UNKNOWN
    return stride_at(moved.out.shape, dim, at.inner)


@follows("hstack", beside=by_broadcasting)
def _hstack(moved: Moved) -> int:
    return _joined_along(moved, min(1, moved.out.ndim - 1))


def _widened(moved: Moved, shape: Callable[[Tensor], tuple[int, ...]], dim: int) -> int:
    """Tensors with too few dimensions get new ones before all are joined along `dim`; a stride survives the new shape."""
    with torch._C.DisableTorchFunction():
        tensors = [(tensor.detach().reshape(shape(tensor)), stride) for tensor, stride in moved.tensors]
    source = next(tensor for tensor, stride in tensors if stride is not None)
    return _joined_along(replace(moved, tensors=tensors, source=source), dim)


def _beside_below(moved: Moved, constant: Tensor, at: Position) -> int | None:
    """A vector becomes a row."""
    return at.dim - 1 if constant.ndim == 1 else at.dim


@follows("vstack row_stack", beside=_beside_below)
def _vstack(moved: Moved) -> int:
    return _widened(moved, lambda t: (1, len(t)) if t.ndim == 1 else tuple(t.shape), 0)


@follows("dstack", beside=_beside_below)
def _dstack(moved: Moved) -> int:
    return _widened(moved, lambda t: (1,) * (2 - t.ndim) + (*t.shape, 1) if t.ndim < 3 else tuple(t.shape), 2)


@follows("column_stack", beside=lambda moved, constant, at: at.dim)
def _column_stack(moved: Moved) -> int:
    return _widened(moved, lambda t: (t.numel(), 1) if t.ndim < 2 else tuple(t.shape), 1)


def _beside_in_stack(moved: Moved, constant: Tensor, at: Position) -> int | None:
    stacked: int = moved.argument(1, "dim", 0) % moved.out.ndim
    return at.dim - (stacked < at.dim)


@follows("stack", beside=_beside_in_stack)
def _stack(moved: Moved) -> int:
    dim = moved.argument(1, "dim", 0) % moved.out.ndim
    at = moved.shared()
    return UNKNOWN if at is None else place(moved, at.dim + (dim <= at.dim))


def _piece(moved: Moved, dim: int, start: int | None) -> int:
    """A piece along `dim` that begins at `start`: along the records it must hold whole batches."""
    at = moved.at
    if at is None or not moved.only_first():
        return UNKNOWN
    if at.dim != dim % moved.source.ndim:
        return place(moved, at.dim)
    batch = moved.records * at.inner
    if start is None or start % batch or moved.out.shape[at.dim] % batch or not moved.out.shape[at.dim]:
        return UNKNOWN
    return stride_at(moved.out.shape, at.dim, at.inner)


@follows("chunk unsafe_chunk split unsafe_split")
def _pieces(moved: Moved) -> int:
    dim = moved.argument(2, "dim", 0)
    size = moved.argument(1, "split_size_or_sections", moved.kwargs.get("split_size", moved.kwargs.get("chunks")))
    if not isinstance(size, int):
        return _piece(moved, dim, None)
    size_of_piece, number = moved.out.shape[dim], moved.index
    # All but the last piece are of one size.
    start = min(number * size_of_piece, moved.source.shape[dim] - size_of_piece)
    return _piece(moved, dim, start if number else 0)


@follows("tensor_split split_with_sizes vsplit")
def _uneven_pieces(moved: Moved) -> int:
    return _piece(moved, moved.argument(2, "dim", 0), None)


@follows("hsplit")
def _hsplit(moved: Moved) -> int:
    return _piece(moved, min(1, moved.source.ndim - 1), None)


@follows("dsplit")
def _dsplit(moved: Moved) -> int:
    return _piece(moved, 2, None)


@follows("narrow")
def _narrow(moved: Moved) -> int:
    start = moved.argument(2, "start")
    return _piece(moved, moved.argument(1, "dim"), start if isinstance(start, int) else None)


@follows("select unbind")
def _select(moved: Moved) -> int:
    at = moved.at
    dim = moved.argument(1, "dim", 0) % moved.source.ndim
    if at is None or at.dim == dim or not moved.only_first():
        return UNKNOWN
    return place(moved, at.dim - (dim < at.dim))
