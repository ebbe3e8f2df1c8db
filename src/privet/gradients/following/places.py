"""Indexing: entries that are selected, looked up and written by their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from privet.gradients.following.moved import BESIDE, Moved, along, by_broadcasting, follow, follows, is_along, place
from privet.gradients.marks import UNKNOWN, Position, are_starts, position, stride_at


def _is_beside_a_range(moved: Moved, constant: Tensor) -> bool:
    """Whether a constant is one of the positions in ``x[arange(records), positions]``."""
    index = moved.args[1]
    if not isinstance(index, (tuple, list)) or not index or not isinstance(index[0], Tensor):
        return False
    return any(constant is i for i in index[1:]) and constant.ndim == 1 and constant.shape == index[0].shape


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
    """Whether the meaning of an entry of an index is known. Ranges, nested tuples, NumPy arrays and uint8 masks are not."""
    if isinstance(i, Tensor):
        return i.dtype != torch.uint8
    return i is None or i is Ellipsis or isinstance(i, (slice, list, Integral))


def _taken_from_table(moved: Moved, at: Position | None, index: tuple[Any, ...]) -> int:
    """``table[labels]``: integers of the records select from a constant."""
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
    """An index that does not depend on records: integers, slices, new dimensions, and at most one tensor or list."""
    several = [i for i in index if isinstance(i, (Tensor, list))]
    if len(several) > 1:
        return _picked(moved, at, index)
    if several and any(
        isinstance(i, bool) for i in index
    ):  # a truth value and a tensor are combined into one dimension
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
    """The number of dimensions that an entry of an index consumes."""
    if i is None or i is Ellipsis or isinstance(i, bool):
        return 0
    return i.ndim if isinstance(i, Tensor) and i.dtype == torch.bool else 1


def _dims_after(i: Any, width: int) -> int:
    """The number of dimensions that it leaves."""
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
    """``x[arange(rows), positions]``: one entry for each row, the usual way to take a last token. A user has several rows."""
    first, *others = index
    strides = {id(tensor): stride for tensor, stride in moved.tensors}
    if isinstance(first, Tensor) and first.ndim > 1:
        return _picked_by_grid(moved, at, index, strides)
    for other in others:
        stride = strides.get(id(other))
        if stride is not None and position(other.shape, stride, moved.records) != at:
            return UNKNOWN
        if isinstance(other, list) or (isinstance(other, Tensor) and (other.ndim > 1 or other.dtype == torch.bool)):
            return UNKNOWN
    whole = (
        at.dim == 0
        and isinstance(first, Tensor)
        and first.ndim == 1
        and first.dtype == torch.long
        and strides.get(id(first)) is None
        and _counts_up_to(len(moved.source), first)
    )
    return place(moved, 0) if whole else UNKNOWN


def _counts_up_to(rows: int, index: Tensor) -> bool:
    """Whether an index is ``arange(rows)``, in whatever shape."""
    return index.numel() == rows and bool((index.flatten() == torch.arange(rows, device=index.device)).all())


def _picked_by_grid(moved: Moved, at: Position, index: tuple[Any, ...], strides: Mapping[int, int | None]) -> int:
    """``x[arange(rows)[:, None], arange(length)[None, :]]``: the same constant places for every row."""
    first, *others = index
    rows = len(moved.source)
    dim = next((d for d in range(first.ndim) if first.shape[d] == rows), None)
    tensors = all(isinstance(i, Tensor) and not i.is_floating_point() and strides.get(id(i)) is None for i in index)
    if dim is None or not tensors or at.dim != 0 or not _counts_up_to(rows, first):
        return UNKNOWN
    if any(i.dtype == torch.bool or (i.ndim >= first.ndim - dim and i.shape[dim - first.ndim] != 1) for i in others):
        return UNKNOWN
    ndim = max(i.ndim for i in index)
    return place(moved, ndim - first.ndim + dim)


def _dim_of_assigned(moved: Moved, constant: Tensor, at: Position) -> int | None:
    """For ``x[index] = constant``, or for a constant in the index beside a range over the records."""
    if len(moved.args) < 3:
        return None
    out, index, values = moved.args[:3]
    if _is_beside_a_range(moved, constant):
        return 0
    if constant is not values:  # an index, or the tensor before the assignment
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


@follows("embedding")
def _looked_up(moved: Moved) -> int:
    """Tokens of records select from a constant table: ``torch.embedding(table, tokens)``, ``F.embedding(tokens, table)``."""
    at = moved.at
    if at is None or moved.source.is_floating_point() or sum(s is not None for _, s in moved.tensors) > 1:
        return UNKNOWN
    return place(moved, at.dim)


@follows("one_hot")
def _one_hot(moved: Moved) -> int:
    """Without a given number of classes, the largest label of the batch decides the width of the result."""
    at, classes = moved.at, moved.argument(1, "num_classes", -1)
    return place(moved, at.dim) if at and isinstance(classes, int) and classes > 0 and moved.only_first() else UNKNOWN


@follows("embedding_bag")
def _bags(moved: Moved) -> int:
    """One row for each bag: it belongs to the record of its offset, or (for bags of equal length) of its tokens."""
    table_first = moved.args[0].is_floating_point()  # torch.embedding_bag, unlike torch.nn.functional's
    table, tokens = moved.args[0 if table_first else 1], moved.args[1 if table_first else 0]
    offsets = moved.argument(2, "offsets")
    bags = moved.out.shape[0]
    if any(tensor is table and stride is not None for tensor, stride in moved.tensors):
        return UNKNOWN
    weights = [(tensor, s) for tensor, s in moved.tensors if all(tensor is not t for t in (table, tokens, offsets))]
    if any(s is None or s != moved.stride for _, s in weights):
        return UNKNOWN  # per_sample_weights, one for each token
    for tensor, stride in moved.tensors:
        if tensor is offsets and stride is not None:
            # A bag ends where the next one begins: values of records as offsets would let others decide that.
            at = position(offsets.shape, stride, moved.records) if are_starts(offsets) else None
            return UNKNOWN if at is None or len(offsets) != bags else stride_at(moved.out.shape, 0, at.inner)
    at, length = moved.at, tokens.numel() // max(bags, 1)
    if at is None or moved.source is not tokens or length == 0 or tokens.numel() != bags * length:
        return UNKNOWN
    if tokens.ndim == 2:
        return place(moved, 0) if at.dim == 0 else UNKNOWN
    equal = torch.equal(offsets[:bags], torch.arange(0, len(tokens), length, device=offsets.device))
    return stride_at(moved.out.shape, 0, at.inner // length) if equal and at.inner % length == 0 else UNKNOWN


@follows("scatter scatter_add scatter_reduce", beside=by_broadcasting)
def _scattered(moved: Moved) -> int:
    """An index that is shorter than the batch reads and writes only some of the records."""
    at = moved.at
    if at is None or any(
        t.ndim == moved.out.ndim and t.shape[at.dim] != moved.out.shape[at.dim] for t, _ in moved.tensors
    ):
        return UNKNOWN
    return is_along(moved, 1, None)


@follows("searchsorted", beside=by_broadcasting)
def _searched(moved: Moved) -> int:
    """One-dimensional boundaries are shared by all values and hold no records; others belong to the records of their rows."""
    boundaries, values = moved.args[0], moved.argument(1, "input")
    if not isinstance(values, Tensor) or moved.kwargs.get("sorter") is not None:
        return UNKNOWN
    if boundaries.ndim == 1:
        at = moved.at
        return place(moved, at.dim) if at and moved.source is values and moved.single() else UNKNOWN
    return is_along(moved, len(moved.args), -1)


def _beside_selected(moved: Moved, constant: Tensor, at: Position) -> int | None:
    dim: int = moved.argument(2, "dim") % moved.out.ndim
    return at.dim - (dim < at.dim) if constant.ndim < moved.out.ndim else at.dim


@follows("select_scatter", beside=_beside_selected)
def _select_written(moved: Moved) -> int:
    """A slice along `dim` is replaced: with this dimension added, it has the shape of the tensor."""
    dim = moved.argument(2, "dim")
    with torch._C.DisableTorchFunction():
        whole = [(t if t.ndim == moved.out.ndim else t.detach().unsqueeze(dim), s) for t, s in moved.tensors]
    source = next(tensor for tensor, stride in whole if stride is not None)
    return is_along(replace(moved, tensors=whole, source=source), 2, None)


follows("slice_scatter", beside=by_broadcasting)(along(2, 0))


@follows("gather", beside=by_broadcasting)
def _gathered(moved: Moved) -> int:
    return _taken_along(moved, moved.argument(1, "dim"), moved.argument(2, "index"))


@follows("take_along_dim", beside=by_broadcasting)
def _gathered_by_broadcast(moved: Moved) -> int:
    return _taken_along(moved, moved.argument(2, "dim"), moved.argument(1, "indices"))


def _taken_along(moved: Moved, dim: Any, index: Any) -> int:
    """Each entry of the index selects along `dim`, at its own place in all other dimensions."""
    at = moved.at
    if at is None or not isinstance(dim, int) or not isinstance(index, Tensor):
        return UNKNOWN
    if at.dim == dim % moved.source.ndim:  # the records of an index may select from a constant along this dimension
        return (
            place(moved, at.dim) if moved.source is index and moved.args[0] is not index and moved.single() else UNKNOWN
        )
    if any(t.ndim != moved.out.ndim or t.shape[at.dim] not in (1, moved.out.shape[at.dim]) for t, _ in moved.tensors):
        return UNKNOWN
    return is_along(replace(moved, kwargs={"dim": dim}), len(moved.args), None)


@follows("index_select")
def _index_select(moved: Moved) -> int:
    at, dim, index = moved.at, moved.argument(1, "dim"), moved.argument(2, "index")
    if at is not None and moved.source is index and moved.args[0] is not index and moved.single():
        return stride_at(moved.out.shape, dim % moved.out.ndim, at.inner)  # a constant, looked up by records
    return place(moved, at.dim) if at and moved.only_first() and at.dim != dim % moved.source.ndim else UNKNOWN


def _beside_written(moved: Moved, constant: Tensor, at: Position) -> int | None:
    return None if constant is moved.argument(2, "index") else by_broadcasting(moved, constant, at)


@follows("index_add index_copy index_fill", beside=_beside_written)
def _index_written(moved: Moved) -> int:
    """``x.index_add(dim, index, values)`` along a dimension other than that of the records, with a constant index."""
    index = moved.argument(2, "index")
    if any(tensor is index and stride is not None for tensor, stride in moved.tensors):
        return UNKNOWN
    return is_along(moved, 1, None)
