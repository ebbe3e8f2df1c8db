"""Entries picked, looked up and written by their places."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from privet.gradients.following.moved import Moved, place
from privet.gradients.following.registry import BESIDE, follow, follows
from privet.gradients.layout import UNKNOWN, Position, position, stride_at


def _is_beside_a_range(moved: Moved, constant: Tensor) -> bool:
    """Whether it is one of the positions in ``x[arange(records), positions]``."""
    index = moved.args[1]
    if not isinstance(index, (tuple, list)) or not index or not isinstance(index[0], Tensor):
        return False
    return any(constant is i for i in index[1:]) and constant.shape == (moved.records,)


def _beside_in_index(moved: Moved, constant: Tensor, at: Position) -> int | None:
    return 0 if _is_beside_a_range(moved, constant) else None


@follows("__getitem__ getitem", beside=_beside_in_index)
def _getitem(moved: Moved) -> int:
    at = moved.at
    index = moved.args[1] if isinstance(moved.args[1], tuple) else (moved.args[1],)
    if any(not _is_plain(i) for i in index):
        return UNKNOWN
    if at is None or moved.source is not moved.args[0]:
        return _taken_from_table(moved, at, index)
    if moved.only_first():
        return _indexed(moved, at, index)
    return _picked(moved, at, index)


def _is_plain(i: Any) -> bool:
    """Whether it is known what an entry of an index means; ranges, nested tuples, arrays of NumPy and masks of uint8 are not."""
    if isinstance(i, Tensor):
        return i.dtype != torch.uint8
    return i is None or i is Ellipsis or isinstance(i, (slice, list, Integral))


def _taken_from_table(moved: Moved, at: Position | None, index: tuple[Any, ...]) -> int:
    """``table[labels]``: a constant is looked up by whole numbers of the records."""
    first, *others = index
    plain = first is moved.source and all(isinstance(i, slice) or i is Ellipsis for i in others)
    if (
        at is None
        or not plain
        or not moved.single()
        or moved.source.is_floating_point()
        or moved.source.dtype == torch.bool
    ):
        return UNKNOWN
    return place(moved, at.dim)


def _indexed(moved: Moved, at: Position, index: tuple[Any, ...]) -> int:
    """An index without records in it: integers, slices, new dimensions, and at most one tensor or list."""
    several = [i for i in index if isinstance(i, (Tensor, list))]
    if len(several) > 1:
        return _picked(moved, at, index)
    if several and any(isinstance(i, bool) for i in index):  # a truth value and a tensor are joined to one dimension
        return UNKNOWN
    consumed = sum(_dims_of(i) for i in index)
    if all(i is not Ellipsis for i in index):
        index = (*index, Ellipsis)
    dim, kept = 0, 0
    for i in index:
        width = moved.source.ndim - consumed if i is Ellipsis else _dims_of(i)
        if dim <= at.dim < dim + width:
            if i is Ellipsis:
                return place(moved, kept + at.dim - dim)
            if isinstance(i, slice):
                return _sliced(moved, at, kept, i)
            return UNKNOWN
        dim, kept = dim + width, kept + _dims_after(i, width)
    return UNKNOWN


def _dims_of(i: Any) -> int:
    """How many dimensions an entry of an index uses up."""
    if i is None or i is Ellipsis or isinstance(i, bool):
        return 0
    return i.ndim if isinstance(i, Tensor) and i.dtype == torch.bool else 1


def _dims_after(i: Any, width: int) -> int:
    """How many dimensions it leaves."""
    if i is None or isinstance(i, bool):
        return 1
    if i is Ellipsis:
        return width
    if isinstance(i, Tensor):
        return 1 if i.dtype == torch.bool else i.ndim
    if isinstance(i, list):
        return torch.as_tensor(i).ndim
    return int(isinstance(i, slice))


def _sliced(moved: Moved, at: Position, dim: int, part: slice) -> int:
    """A slice along the records must hold whole batches."""
    start, _, step = part.indices(moved.source.shape[at.dim])
    batch = moved.records * at.inner
    if step != 1 or start % batch or moved.out.shape[dim] % batch or not moved.out.shape[dim]:
        return UNKNOWN
    return stride_at(moved.out.shape, dim, at.inner)


def _picked(moved: Moved, at: Position, index: tuple[Any, ...]) -> int:
    """``x[arange(records), positions]``: one entry for each record, the usual way to take a last token."""
    first, *others = index
    strides = {id(tensor): stride for tensor, stride in moved.tensors}
    if isinstance(first, Tensor) and first.ndim > 1:
        return _picked_by_grid(moved, at, index, strides)
    for other in others:
        stride = strides.get(id(other))
        if stride is not None and position(other.shape, stride, moved.records) != Position(0, 1, 1):
            return UNKNOWN
        if isinstance(other, list) or (isinstance(other, Tensor) and (other.ndim > 1 or other.dtype == torch.bool)):
            return UNKNOWN
    whole = (
        at == Position(0, 1, 1)
        and isinstance(first, Tensor)
        and first.ndim == 1
        and first.dtype == torch.long
        and strides.get(id(first)) is None
        and len(first) == moved.records
        and bool((first == torch.arange(moved.records, device=first.device)).all())
    )
    return place(moved, 0) if whole else UNKNOWN


def _picked_by_grid(moved: Moved, at: Position, index: tuple[Any, ...], strides: Mapping[int, int | None]) -> int:
    """``x[arange(records)[:, None], arange(length)[None, :]]``: constant places, the same of every record."""
    first, *others = index
    dim = next((d for d in range(first.ndim) if first.shape[d] == moved.records), None)
    tensors = all(isinstance(i, Tensor) and not i.is_floating_point() and strides.get(id(i)) is None for i in index)
    if dim is None or not tensors or at != Position(0, 1, 1) or first.numel() != moved.records:
        return UNKNOWN
    if any(i.dtype == torch.bool or (i.ndim >= first.ndim - dim and i.shape[dim - first.ndim] != 1) for i in others):
        return UNKNOWN
    ordered = bool((first.flatten() == torch.arange(moved.records, device=first.device)).all())
    ndim = max(i.ndim for i in index)
    return place(moved, ndim - first.ndim + dim) if ordered else UNKNOWN


def _dim_of_assigned(moved: Moved, constant: Tensor, at: Position) -> int | None:
    """Of ``x[index] = constant``, or of a constant in the index that stands beside a range over the records."""
    if len(moved.args) < 3:
        return None
    out, index, values = moved.args[:3]
    if _is_beside_a_range(moved, constant):
        return 0
    if constant is not values:  # an index, or what was there before
        before = constant.shape == out.shape and not any(
            constant is i for i in (index if type(index) is tuple else (index,))
        )
        return at.dim if before else None
    with torch._C.DisableTorchFunction():
        target = out.detach()[index]
    stride = stride_at(out.shape, at.dim, at.inner)
    taken = Moved((out, index), {}, out, stride, ((out, stride),), target, moved.records)
    place = position(target.shape, follow("__getitem__", taken), moved.records)
    dim = place.dim + constant.ndim - target.ndim if place else -1
    return dim if dim >= 0 and place and constant.shape[dim] == target.shape[place.dim] else None


BESIDE.update(__setitem__=_dim_of_assigned, index_put_=_dim_of_assigned)
