"""Tensors joined to one, and taken apart."""

from __future__ import annotations

from torch import Tensor

from privet.gradients.following.moved import Moved, aligned, place
from privet.gradients.following.registry import by_broadcasting, follows
from privet.gradients.layout import UNKNOWN, Position, position, stride_at


@follows("cat concat concatenate", beside=by_broadcasting)
def _cat(moved: Moved) -> int:
    dim = moved.argument(1, "dim", moved.kwargs.get("axis", 0)) % moved.out.ndim
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


@follows("tensor_split split_with_sizes hsplit vsplit")
def _uneven_pieces(moved: Moved) -> int:
    return _piece(moved, moved.argument(2, "dim", 0), None)


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
