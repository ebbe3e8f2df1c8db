"""Look-ups in tables, and entries taken and written along a dimension."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from privet.gradients.following.moved import Moved, along, is_along, place
from privet.gradients.following.registry import by_broadcasting, follows
from privet.gradients.layout import UNKNOWN, Position, position, stride_at


@follows("embedding")
def _looked_up(moved: Moved) -> int:
    """Tokens of records in a table that holds none: ``torch.embedding(table, tokens)``, ``F.embedding(tokens, table)``."""
    at = moved.at
    if at is None or moved.source.is_floating_point() or sum(s is not None for _, s in moved.tensors) > 1:
        return UNKNOWN
    return place(moved, at.dim)


@follows("one_hot")
def _one_hot(moved: Moved) -> int:
    """Without a stated number of classes the largest label of the batch decides how wide the result is."""
    at, classes = moved.at, moved.argument(1, "num_classes", -1)
    return place(moved, at.dim) if at and isinstance(classes, int) and classes > 0 and moved.only_first() else UNKNOWN


@follows("embedding_bag")
def _bags(moved: Moved) -> int:
    """One row for each bag: of its offset's record, or (bags of equal length) of its tokens' record."""
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
            at = position(offsets.shape, stride, moved.records)
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
    """An index that is shorter than the batch writes into the records of some places only, and reads as many."""
    at = moved.at
    if at is None or any(
        t.ndim == moved.out.ndim and t.shape[at.dim] != moved.out.shape[at.dim] for t, _ in moved.tensors
    ):
        return UNKNOWN
    return is_along(moved, 1, None)


@follows("searchsorted", beside=by_broadcasting)
def _searched(moved: Moved) -> int:
    """Boundaries that all values share hold no records; others hold those of their rows."""
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
    """A slice of one along `dim` is replaced: with this dimension, it has the shape of the tensor."""
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
    """Each entry of the index takes one along `dim`, of its own place in all other dimensions."""
    at = moved.at
    if at is None or not isinstance(dim, int) or not isinstance(index, Tensor):
        return UNKNOWN
    if at.dim == dim % moved.source.ndim:  # a constant may be read along the records of an index
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
    """``x.index_add(dim, index, values)`` along another dimension than the records', with an index that holds none."""
    index = moved.argument(2, "index")
    if any(tensor is index and stride is not None for tensor, stride in moved.tensors):
        return UNKNOWN
    return is_along(moved, 1, None)
