"""Tensors joined to one, and taken apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from privet.gradients.following.moved import Moved, aligned, place
from privet.gradients.following.registry import by_broadcasting, follows
from privet.gradients.layout import UNKNOWN, Position, position, stride_at


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
    """Tensors of too few dimensions get new ones, and then all are joined along `dim`; a stride survives the new shape."""
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
