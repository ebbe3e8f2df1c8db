"""How operations move the records inside a tensor: one follower for each kind of operation.

A follower returns the stride of the records in the operation's result, or `UNKNOWN` where it cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from privet.gradients.layout import UNKNOWN, Position, position, stride_at

Follow = Callable[["Moved"], int]


@dataclass(slots=True, eq=False)
class Moved:
    """One operation that was done to batched tensors: what a follower may look at."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    source: Tensor
    """The first batched argument."""
    stride: int
    """Its stride."""
    tensors: Sequence[tuple[Tensor, int | None]]
    """Every tensor argument with its stride (None: does not depend on the batch)."""
    out: Tensor
    records: int
    index: int = 0
    """Which of the operation's results `out` is."""

    def argument(self, index: int, name: str, default: Any = None) -> Any:
        return self.args[index] if len(self.args) > index else self.kwargs.get(name, default)

    @property
    def at(self) -> Position | None:
        return position(self.source.shape, self.stride, self.records)


FOLLOWERS: dict[str, Follow] = {}


def _follows(*names: str) -> Callable[[Follow], Follow]:
    def register(follow: Follow) -> Follow:
        FOLLOWERS.update(dict.fromkeys(names, follow))
        return follow

    return register


def follow(name: str, moved: Moved) -> int:
    """The stride of ``moved.out`` after the operation `name`, or `UNKNOWN`."""
    if moved.stride == UNKNOWN:
        return UNKNOWN
    if moved.records == 1:
        return moved.stride if moved.out.ndim else UNKNOWN
    stride = FOLLOWERS.get(name, _aligned)(moved)
    return stride if position(moved.out.shape, stride, moved.records) else UNKNOWN


def _place(moved: Moved, dim: int) -> int:
    """Records in dimension `dim` of the output, with the inner size they had; UNKNOWN if the size changed."""
    at = moved.at
    if at is None or not 0 <= dim < moved.out.ndim or moved.out.shape[dim] != moved.source.shape[at.dim]:
        return UNKNOWN
    return stride_at(moved.out.shape, dim, at.inner)


def _aligned(moved: Moved) -> int:
    """Broadcasting: every batched argument must place its records in one dimension, counted from the right."""
    found = set()
    for tensor, stride in moved.tensors:
        if stride is None:
            continue
        at = position(tensor.shape, stride, moved.records)
        if at is None:
            return UNKNOWN
        dim = (
            at.dim if tensor is moved.source and tensor.ndim > moved.out.ndim else at.dim + moved.out.ndim - tensor.ndim
        )
        if not 0 <= dim < moved.out.ndim or moved.out.shape[dim] != tensor.shape[at.dim]:
            return UNKNOWN
        found.add(stride_at(moved.out.shape, dim, at.inner))
    return found.pop() if len(found) == 1 else UNKNOWN


@_follows(
    "view", "reshape", "flatten", "unflatten", "view_as", "reshape_as", "unsqueeze", "squeeze", "contiguous", "ravel",
    "_unsafe_view", "atleast_1d", "atleast_2d", "atleast_3d",
)  # fmt: skip
def _same_order(moved: Moved) -> int:
    return moved.stride


@_follows("expand", "expand_as", "broadcast_to", "repeat", "tile")
def _grown(moved: Moved) -> int:
    at = moved.at
    return UNKNOWN if at is None else _place(moved, at.dim + moved.out.ndim - moved.source.ndim)


def _permuted(moved: Moved, order: Sequence[int]) -> int:
    at = moved.at
    return UNKNOWN if at is None else _place(moved, [d % moved.source.ndim for d in order].index(at.dim))


@_follows("permute")
def _permute(moved: Moved) -> int:
    order = moved.argument(1, "dims")
    return _permuted(moved, order if isinstance(order, (tuple, list)) else moved.args[1:])


@_follows("transpose", "swapaxes", "swapdims", "transpose_")
def _transpose(moved: Moved) -> int:
    n = moved.source.ndim
    a, b = (
        moved.argument(1, "dim0", moved.kwargs.get("axis0")),
        moved.argument(2, "dim1", moved.kwargs.get("axis1")),
    )
    order = list(range(n))
    order[a % n], order[b % n] = order[b % n], order[a % n]
    return _permuted(moved, order)


@_follows("T", "t", "numpy_T")
def _reverse(moved: Moved) -> int:
    return _permuted(moved, range(moved.source.ndim - 1, -1, -1))


@_follows("mT", "mH", "adjoint")
def _matrix_transpose(moved: Moved) -> int:
    n = moved.source.ndim
    return _permuted(moved, [*range(n - 2), n - 1, n - 2])


@_follows("movedim", "moveaxis")
def _movedim(moved: Moved) -> int:
    # Numbers stand for the dimensions: moving them the same way tells where each one went.
    names = torch.arange(moved.source.ndim)
    shape = torch.empty([i + 2 for i in range(moved.source.ndim)], device="meta")
    went = shape.movedim(*moved.args[1:], **moved.kwargs).shape
    return _permuted(moved, [int(names[size - 2]) for size in went])


@_follows("cat", "concat", "concatenate")
def _cat(moved: Moved) -> int:
    dim = moved.argument(1, "dim", 0) % moved.out.ndim
    at = moved.at
    if at is None or at.dim == dim:
        return UNKNOWN
    return _aligned(moved)


@_follows("stack")
def _stack(moved: Moved) -> int:
    at = moved.at
    dim = moved.argument(1, "dim", 0) % moved.out.ndim
    return UNKNOWN if at is None else _place(moved, at.dim + (dim <= at.dim))


@_follows("embedding", "one_hot")
def _looked_up(moved: Moved) -> int:
    at = moved.at
    return UNKNOWN if at is None else _place(moved, at.dim)


@_follows("embedding_bag")
def _bags(moved: Moved) -> int:
    """One row for each bag: of its offset's record, or (bags of equal length) of its tokens' record."""
    table_first = moved.args[0].is_floating_point()  # torch.embedding_bag, unlike torch.nn.functional's
    tokens, offsets = moved.args[1 if table_first else 0], moved.argument(2, "offsets")
    bags = moved.out.shape[0]
    for tensor, stride in moved.tensors:
        if tensor is offsets and stride is not None:
            at = position(offsets.shape, stride, moved.records)
            return UNKNOWN if at is None or len(offsets) != bags else stride_at(moved.out.shape, 0, at.inner)
    at, length = moved.at, tokens.numel() // max(bags, 1)
    if at is None or moved.source is not tokens or length == 0 or tokens.numel() != bags * length:
        return UNKNOWN
    if tokens.ndim == 2:
        return _place(moved, 0) if at.dim == 0 else UNKNOWN
    equal = torch.equal(offsets[:bags], torch.arange(0, len(tokens), length, device=offsets.device))
    return stride_at(moved.out.shape, 0, at.inner // length) if equal and at.inner % length == 0 else UNKNOWN


@_follows("lstm", "gru", "rnn_tanh", "rnn_relu")
def _recurrent(moved: Moved) -> int:
    """The output holds the records where the input does; states hold them in dimension 1."""
    if not isinstance(moved.argument(3, "has_biases"), bool):  # a packed sequence
        return UNKNOWN
    batch_dim = 0 if moved.argument(8, "batch_first") else 1
    inner = 1
    for tensor, stride in moved.tensors:
        if stride is not None:
            at = position(tensor.shape, stride, moved.records)
            if at is None or at.dim != (batch_dim if tensor is moved.args[0] else 1):
                return UNKNOWN
            inner = at.inner
    return stride_at(moved.out.shape, batch_dim if moved.index == 0 else 1, inner)


@_follows("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def _recurrent_cell(moved: Moved) -> int:
    return _place(moved, 0) if moved.at and moved.at.dim == 0 else UNKNOWN


@_follows("chunk", "split", "tensor_split", "narrow", "unsafe_chunk", "unsafe_split", "split_with_sizes")
def _piece(moved: Moved) -> int:
    at = moved.at
    return UNKNOWN if at is None else _place(moved, at.dim)


@_follows("select", "unbind")
def _select(moved: Moved) -> int:
    at = moved.at
    dim = moved.argument(1, "dim", 0) % moved.source.ndim
    return UNKNOWN if at is None or at.dim == dim else _place(moved, at.dim - (dim < at.dim))


@_follows("__getitem__")
def _getitem(moved: Moved) -> int:
    at = moved.at
    if at is None or moved.source is not moved.args[0]:
        return UNKNOWN
    index = moved.args[1] if isinstance(moved.args[1], tuple) else (moved.args[1],)
    if any(isinstance(i, (Tensor, list)) for i in index):
        return _picked(moved, at, index)
    consumed = sum(1 for i in index if i is not None and i is not Ellipsis)
    dim, kept = 0, 0
    for i in index:
        if i is None:
            kept += 1
        elif i is Ellipsis:
            skip = moved.source.ndim - consumed
            if dim <= at.dim < dim + skip:
                return _place(moved, kept + at.dim - dim)
            dim, kept = dim + skip, kept + skip
        else:
            if dim == at.dim:
                return _place(moved, kept) if i == slice(None) else UNKNOWN
            dim, kept = dim + 1, kept + (isinstance(i, slice))
    return _place(moved, kept + at.dim - dim)


def _picked(moved: Moved, at: Position, index: tuple[Any, ...]) -> int:
    """``x[arange(records), positions]``: one entry for each record, the usual way to take a last token."""
    first = index[0]
    whole = (
        at == Position(0, 1, 1)
        and isinstance(first, Tensor)
        and first.ndim == 1
        and first.dtype == torch.long
        and len(first) == moved.records
        and bool((first == torch.arange(moved.records, device=first.device)).all())
    )
    return _place(moved, 0) if whole else UNKNOWN


@_follows("matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "mv")
def _matmul(moved: Moved) -> int:
    (left, left_stride), (right, right_stride) = moved.tensors[:2]
    n = moved.out.ndim
    if right.ndim == 1 or left.ndim == 1:
        return _place(moved, moved.at.dim) if moved.at and moved.at.dim < moved.source.ndim - 1 else UNKNOWN
    found = set()
    for tensor, stride, contracted in ((left, left_stride, 1), (right, right_stride, 2)):
        if stride is None:
            continue
        at = position(tensor.shape, stride, moved.records)
        if at is None or tensor.ndim - at.dim == contracted:
            return UNKNOWN
        dim = n - (tensor.ndim - at.dim)
        if moved.out.shape[dim] != tensor.shape[at.dim]:
            return UNKNOWN
        found.add(stride_at(moved.out.shape, dim, at.inner))
    return found.pop() if len(found) == 1 else UNKNOWN


@_follows("einsum")
def _einsum(moved: Moved) -> int:
    equation = moved.args[0]
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        return UNKNOWN
    inputs, output = equation.replace(" ", "").split("->")
    letters = set()
    for term, (tensor, stride) in zip(inputs.split(","), moved.tensors, strict=False):
        if stride is not None:
            at = position(tensor.shape, stride, moved.records)
            letters.add(term[at.dim] if at else "")
    letter = letters.pop() if len(letters) == 1 else ""
    return _place(moved, output.index(letter)) if letter and letter in output else UNKNOWN


@_follows(
    "sum", "mean", "amax", "amin", "max", "min", "norm", "vector_norm", "var", "std", "logsumexp", "argmax", "argmin",
    "prod", "any", "all", "median", "nansum", "nanmean", "count_nonzero",
)  # fmt: skip
def _reduced(moved: Moved) -> int:
    dims = moved.argument(1, "dim", moved.kwargs.get("axis"))
    at = moved.at
    if at is None:
        return UNKNOWN
    if isinstance(dims, Tensor):  # max(x, y) and min(x, y) are elementwise
        return _aligned(moved)
    if dims is None:
        return UNKNOWN
    gone = {d % moved.source.ndim for d in (dims if isinstance(dims, (tuple, list)) else (dims,))}
    if at.dim in gone:
        return UNKNOWN
    kept = moved.out.ndim == moved.source.ndim
    return _place(moved, at.dim if kept else at.dim - sum(d < at.dim for d in gone))


@_follows(
    "softmax", "log_softmax", "cumsum", "cumprod", "sort", "topk", "flip", "roll", "gather", "softmin", "glu",
    "normalize", "logcumsumexp", "argsort", "index_select",
)  # fmt: skip
def _along(moved: Moved) -> int:
    """Operations along a dimension: along the records they would mix them."""
    at = moved.at
    default = -1 if len(moved.args) < 2 else None
    dims = moved.kwargs.get("dim", moved.kwargs.get("dims", default))
    if dims is None:
        dims = next((a for a in moved.args[1:] if isinstance(a, (int, tuple, list))), -1)
    gone = {d % moved.source.ndim for d in (dims if isinstance(dims, (tuple, list)) else (dims,))}
    return UNKNOWN if at is None or at.dim in gone else _place(moved, at.dim)


@_follows("scaled_dot_product_attention")
def _attention(moved: Moved) -> int:
    at = moved.at
    return UNKNOWN if at is None or at.dim >= moved.source.ndim - 2 else _place(moved, at.dim)
