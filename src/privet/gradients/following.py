"""How operations move the records inside a tensor: one follower for each kind of operation that keeps records apart.

Deny by default: an operation that is not listed here is unknown, and its result is not followed. A follower returns where
the records are in the operation's result: a stride (see `layout`), `SUM` or `MEAN` where the records were joined by a sum
or a mean over all of them, or `UNKNOWN` where it cannot tell or where records would meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from privet.gradients.layout import MEAN, SUM, UNKNOWN, Position, position, stride_at

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

    def only_first(self) -> bool:
        """Whether the first argument holds the records and no other one does."""
        return (
            self.args != ()
            and self.args[0] is self.source
            and all(stride is None or tensor is self.source for tensor, stride in self.tensors)
        )


FOLLOWERS: dict[str, Follow] = {}
"""The operations that are known to keep records apart, by name; the in-place form of each is known with it."""


_RESHAPED_IN_PLACE = frozenset("transpose_ t_ swapaxes_ swapdims_".split())
"""What changes the order of a tensor's dimensions in place: its shape before, by which its stride is read, is gone."""


def _follows(*names: str) -> Callable[[Follow], Follow]:
    def register(follow: Follow) -> Follow:
        FOLLOWERS.update(dict.fromkeys(" ".join(names).split(), follow))
        return follow

    return register


def is_known(name: str) -> bool:
    """Whether an operation is known to keep records apart, at least where its follower finds them."""
    return follower(name) is not None


def follower(name: str) -> Follow | None:
    if name in FOLLOWERS:
        return FOLLOWERS[name]
    plain = name.strip("_") if name.startswith("__") else name.removesuffix("_")
    if name.startswith("__") and plain[:1] in "ri" and plain[1:] in FOLLOWERS:
        plain = plain[1:]  # __radd__, __iadd__
    return FOLLOWERS.get(plain) if plain != name else None


def follow(name: str, moved: Moved) -> int:
    """Where the records are in ``moved.out`` after the operation `name`, or `UNKNOWN`."""
    if any(stride is not None and stride < 0 for _, stride in moved.tensors):
        return _joined(name, moved)
    known = follower(name)
    if known is None:
        return UNKNOWN
    if moved.records == 1:  # one record owns everything, wherever it lies
        return moved.stride
    if name in _RESHAPED_IN_PLACE or not moved.out.numel():
        return UNKNOWN
    stride = known(moved)
    return stride if stride < UNKNOWN or position(moved.out.shape, stride, moved.records) else UNKNOWN


# --- after the records were joined -----------------------------------------------------------------------------------

_LINEAR = frozenset(
    "sum mean view reshape flatten ravel unflatten squeeze unsqueeze contiguous clone detach alias to float double neg "
    "negative __neg__ positive expand select unbind getitem __getitem__ half bfloat16 type atleast_1d cpu cuda".split()
)
_SCALING = frozenset("mul multiply div divide true_divide __mul__ __rmul__ __truediv__ __imul__ __itruediv__".split())
_ADDING = frozenset(
    "add sub subtract __add__ __radd__ __sub__ __rsub__ __iadd__ __isub__ stack cat concat concatenate hstack".split()
)


def _joined(name: str, moved: Moved) -> int:
    """What keeps a sum over records a sum over records: linear operations with constants, and sums of such sums."""
    kinds = {stride for _, stride in moved.tensors if stride is not None}
    if len(kinds) != 1 or UNKNOWN in kinds:
        return UNKNOWN
    (kind,) = kinds
    joined = [tensor for tensor, stride in moved.tensors if stride is not None]
    plain = name.removesuffix("_") if not name.startswith("__") else name
    if plain in _ADDING or (plain in _LINEAR and len(joined) == 1 and moved.args and moved.args[0] is joined[0]):
        return kind
    if plain in _SCALING and len(joined) == 1:
        divides = "div" in plain and plain != "__rtruediv__"
        numerator = moved.args[0] if moved.args else None
        return kind if not divides or numerator is joined[0] else UNKNOWN
    return UNKNOWN


def dim_beside_records(name: str, moved: Moved, constant: Tensor, at: Position) -> int | None:
    """The dimension of a constant that has an entry for each place in the batch, where the operation has one; `at` says where
    the records are in its result."""
    if name in ("__setitem__", "index_put_"):
        return _dim_of_assigned(moved, constant, at)
    known, plain = follower(name), name.removesuffix("_")
    size = moved.out.shape[at.dim]
    if known in (_recurrent, _recurrent_cell):
        dim, fits = int(known is _recurrent), any(constant is state for state in _states(moved))
    elif known is _stack:
        dim, fits = at.dim - (moved.argument(1, "dim", 0) % moved.out.ndim < at.dim), True
    elif known is _getitem:
        dim, fits = 0, _is_beside_a_range(moved, constant)
    elif known is _einsum:
        dim = _dim_in_equation(moved, constant, at)
        fits = dim >= 0
    elif known in (_cosine, _pairwise):
        shape, gone = _compared(moved, known is _cosine)
        fell = moved.out.ndim < len(shape) and min(gone, default=len(shape)) <= at.dim
        dim, fits = at.dim + fell + constant.ndim - len(shape), True
    elif known in (_row_loss, _front):
        dim, fits = 0, constant.ndim > 0
    elif known is _bilinear:
        dim, fits = at.dim, any(constant is factor for factor in moved.args[:2])
    else:
        dim = at.dim + constant.ndim - moved.out.ndim
        fits = plain in _BESIDE or known in (_elementwise, _where, _cat, _broadcast_tensors, _distances, _extreme)
        if known is _index_written:
            fits = constant is not moved.argument(2, "index")
        elif known is _added_product and constant is moved.argument(0, "input"):
            fits = True
        elif known in (_matmul, _matmul_reversed, _added_product, _attention):
            fits = moved.out.ndim - at.dim > 2
    if not fits or not 0 <= dim < constant.ndim or constant.shape[dim] != size:
        return None
    return dim


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


def _is_beside_a_range(moved: Moved, constant: Tensor) -> bool:
    """Whether it is one of the positions in ``x[arange(records), positions]``."""
    index = moved.args[1]
    if not isinstance(index, (tuple, list)) or not index or not isinstance(index[0], Tensor):
        return False
    return any(constant is i for i in index[1:]) and constant.shape == (moved.records,)


def _dim_in_equation(moved: Moved, constant: Tensor, at: Position) -> int:
    inputs, output = moved.args[0].replace(" ", "").split("->")
    terms = zip(inputs.split(","), moved.tensors, strict=False)
    return next((term.find(output[at.dim]) for term, (tensor, _) in terms if tensor is constant), -1)


# --- the same place --------------------------------------------------------------------------------------------------


def _place(moved: Moved, dim: int) -> int:
    """Records in dimension `dim` of the output, with the inner size they had; UNKNOWN if the size changed."""
    at = moved.at
    if at is None or not 0 <= dim < moved.out.ndim or moved.out.shape[dim] != moved.source.shape[at.dim]:
        return UNKNOWN
    return stride_at(moved.out.shape, dim, at.inner)


def aligned(moved: Moved, shape: Sequence[int]) -> int:
    """Broadcasting to `shape`: every batched argument must place its records in one dimension, counted from the right."""
    found = set()
    for tensor, stride in moved.tensors:
        if stride is None:
            continue
        at = position(tensor.shape, stride, moved.records)
        if at is None:
            return UNKNOWN
        dim = at.dim + len(shape) - tensor.ndim
        if not 0 <= dim < len(shape) or shape[dim] != tensor.shape[at.dim]:
            return UNKNOWN
        found.add(stride_at(shape, dim, at.inner))
    return found.pop() if len(found) == 1 else UNKNOWN


@_follows(
    # one tensor
    "abs absolute acos acosh arccos arccosh asin asinh arcsin arcsinh atan atanh arctan arctanh ceil clamp clamp_min",
    "clamp_max clip conj conj_physical resolve_conj resolve_neg cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1",
    "fix floor frac lgamma log log10 log1p log2 logit mvlgamma neg negative positive polygamma rad2deg reciprocal relu",
    "relu6 round rsqrt sigmoid sign sgn signbit sin sinc sinh softplus softsign hardtanh hardswish hardsigmoid hardshrink",
    "softshrink tanhshrink threshold elu selu celu leaky_relu gelu silu mish logsigmoid log_sigmoid sqrt square tan tanh",
    "trunc nan_to_num isnan isinf isfinite isposinf isneginf bitwise_not logical_not invert dropout alpha_dropout",
    "special_expit special_erf special_log1p special_expm1 i0 angle real imag",
    # copies
    "clone detach alias contiguous float double half bfloat16 long int short bool byte char type cpu cuda",
    "deepcopy requires_grad data zero fill",
    # several tensors, by broadcasting
    "add sub subtract mul multiply div divide true_divide floor_divide remainder fmod mod pow float_power rsub truediv",
    "floordiv maximum minimum fmax fmin atan2 arctan2 hypot copysign nextafter logaddexp logaddexp2 xlogy bitwise_and",
    "bitwise_or bitwise_xor logical_and logical_or logical_xor and or xor eq ne lt le gt ge not_equal less greater",
    "less_equal greater_equal isclose complex polar masked_fill lerp addcmul addcdiv heaviside ldexp copy _prelu_kernel",
)  # fmt: skip
def _elementwise(moved: Moved) -> int:
    return aligned(moved, moved.out.shape)


FOLLOWERS["__deepcopy__"] = FOLLOWERS["deepcopy"]


@_follows("where")
def _where(moved: Moved) -> int:
    """With one argument it lists the places that are not zero."""
    return aligned(moved, moved.out.shape) if len(moved.args) + len(moved.kwargs) > 2 else UNKNOWN


@_follows("broadcast_tensors")
def _broadcast_tensors(moved: Moved) -> int:
    """Each result is the argument of its place, expanded."""
    own = moved.tensors[moved.index]
    return (
        aligned(moved, moved.out.shape) if own[1] is None else aligned(replace(moved, tensors=(own,)), moved.out.shape)
    )


@_follows("type_as to")
def _converted(moved: Moved) -> int:
    """Of a second tensor, only the type and the device count."""
    return _place(moved, moved.at.dim) if moved.at and moved.args[0] is moved.source else UNKNOWN


@_follows("bucketize isin")
def _first_elementwise(moved: Moved) -> int:
    return _place(moved, moved.at.dim) if moved.at and moved.only_first() else UNKNOWN


@_follows(
    "view reshape flatten unflatten unsqueeze squeeze ravel _unsafe_view atleast_1d atleast_2d atleast_3d"
)  # fmt: skip
def _same_order(moved: Moved) -> int:
    reinterpreted = any(isinstance(a, torch.dtype) for a in (*moved.args, *moved.kwargs.values()))
    several = len(moved.tensors) > 1  # torch.atleast_2d(one, other)
    return UNKNOWN if reinterpreted or several or not moved.only_first() else moved.stride


@_follows("view_as reshape_as")
def _same_order_like(moved: Moved) -> int:
    return moved.stride if moved.args[0] is moved.source else UNKNOWN


@_follows("expand expand_as broadcast_to")
def _grown(moved: Moved) -> int:
    at = moved.at
    if at is None or moved.args[0] is not moved.source:
        return UNKNOWN
    return _place(moved, at.dim + moved.out.ndim - moved.source.ndim)


@_follows("repeat tile")
def _repeated(moved: Moved) -> int:
    """Whole copies one after the other: the records come round again."""
    at = moved.at
    if at is None or not moved.only_first():
        return UNKNOWN
    return stride_at(moved.out.shape, at.dim + moved.out.ndim - moved.source.ndim, at.inner)


@_follows("repeat_interleave")
def _repeated_in_place(moved: Moved) -> int:
    at, times, dim = moved.at, moved.argument(1, "repeats"), moved.argument(2, "dim")
    if at is None or not isinstance(times, int) or not moved.only_first() or (dim is None and moved.source.ndim > 1):
        return UNKNOWN
    grown = times if (dim or 0) % moved.source.ndim == at.dim else 1
    return stride_at(moved.out.shape, at.dim, at.inner * grown)


# --- dimensions in another order -------------------------------------------------------------------------------------


def _permuted(moved: Moved, order: Sequence[int]) -> int:
    at = moved.at
    if at is None or not moved.only_first():
        return UNKNOWN
    return _place(moved, [d % moved.source.ndim for d in order].index(at.dim))


@_follows("permute")
def _permute(moved: Moved) -> int:
    order = moved.argument(1, "dims")
    return _permuted(moved, order if isinstance(order, (tuple, list)) else moved.args[1:])


@_follows("transpose swapaxes swapdims")
def _transpose(moved: Moved) -> int:
    n = moved.source.ndim
    a, b = (
        moved.argument(1, "dim0", moved.kwargs.get("axis0")),
        moved.argument(2, "dim1", moved.kwargs.get("axis1")),
    )
    order = list(range(n))
    order[a % n], order[b % n] = order[b % n], order[a % n]
    return _permuted(moved, order)


@_follows("T t numpy_T")
def _reverse(moved: Moved) -> int:
    return _permuted(moved, range(moved.source.ndim - 1, -1, -1))


@_follows("mT mH adjoint")
def _matrix_transpose(moved: Moved) -> int:
    n = moved.source.ndim
    return _permuted(moved, [*range(n - 2), n - 1, n - 2])


@_follows("movedim moveaxis")
def _movedim(moved: Moved) -> int:
    # Sizes stand for the dimensions: moving them the same way tells where each one went.
    shape = torch.empty([i + 2 for i in range(moved.source.ndim)], device="meta")
    return _permuted(moved, [size - 2 for size in shape.movedim(*moved.args[1:], **moved.kwargs).shape])


# --- joining and taking apart ----------------------------------------------------------------------------------------


@_follows("cat concat concatenate")
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


@_follows("stack")
def _stack(moved: Moved) -> int:
    dim = moved.argument(1, "dim", 0) % moved.out.ndim
    places = {position(tensor.shape, s, moved.records) for tensor, s in moved.tensors if s is not None}
    at = places.pop()
    return UNKNOWN if at is None or places else _place(moved, at.dim + (dim <= at.dim))


def _piece(moved: Moved, dim: int, start: int | None) -> int:
    """A piece along `dim` that begins at `start`: along the records it must hold whole batches."""
    at = moved.at
    if at is None or not moved.only_first():
        return UNKNOWN
    if at.dim != dim % moved.source.ndim:
        return _place(moved, at.dim)
    batch = moved.records * at.inner
    if start is None or start % batch or moved.out.shape[at.dim] % batch or not moved.out.shape[at.dim]:
        return UNKNOWN
    return stride_at(moved.out.shape, at.dim, at.inner)


@_follows("chunk unsafe_chunk split unsafe_split")
def _pieces(moved: Moved) -> int:
    dim = moved.argument(2, "dim", 0)
    size = moved.argument(1, "split_size_or_sections", moved.kwargs.get("split_size", moved.kwargs.get("chunks")))
    if not isinstance(size, int):
        return _piece(moved, dim, None)
    size_of_piece, number = moved.out.shape[dim], moved.index
    # All but the last piece are of one size.
    start = min(number * size_of_piece, moved.source.shape[dim] - size_of_piece)
    return _piece(moved, dim, start if number else 0)


@_follows("tensor_split split_with_sizes hsplit vsplit")
def _uneven_pieces(moved: Moved) -> int:
    return _piece(moved, moved.argument(2, "dim", 0), None)


@_follows("narrow")
def _narrow(moved: Moved) -> int:
    start = moved.argument(2, "start")
    return _piece(moved, moved.argument(1, "dim"), start if isinstance(start, int) else None)


@_follows("select unbind")
def _select(moved: Moved) -> int:
    at = moved.at
    dim = moved.argument(1, "dim", 0) % moved.source.ndim
    if at is None or at.dim == dim or not moved.only_first():
        return UNKNOWN
    return _place(moved, at.dim - (dim < at.dim))


@_follows("__getitem__ getitem")
def _getitem(moved: Moved) -> int:
    at = moved.at
    index = moved.args[1] if isinstance(moved.args[1], tuple) else (moved.args[1],)
    if at is None or moved.source is not moved.args[0]:
        return _taken_from_table(moved, at, index)
    if moved.only_first():
        return _indexed(moved, at, index)
    return _picked(moved, at, index)


def _taken_from_table(moved: Moved, at: Position | None, index: tuple[Any, ...]) -> int:
    """``table[labels]``: a constant is looked up by whole numbers of the records."""
    first, *others = index
    plain = first is moved.source and all(isinstance(i, slice) or i is Ellipsis for i in others)
    if (
        at is None
        or not plain
        or not _single(moved)
        or moved.source.is_floating_point()
        or moved.source.dtype == torch.bool
    ):
        return UNKNOWN
    return _place(moved, at.dim)


def _indexed(moved: Moved, at: Position, index: tuple[Any, ...]) -> int:
    """An index without records in it: integers, slices, new dimensions, and at most one tensor or list."""
    several = [i for i in index if isinstance(i, (Tensor, list))]
    if len(several) > 1:
        return _picked(moved, at, index)
    consumed = sum(_dims_of(i) for i in index)
    if Ellipsis not in index:
        index = (*index, Ellipsis)
    dim, kept = 0, 0
    for i in index:
        width = moved.source.ndim - consumed if i is Ellipsis else _dims_of(i)
        if dim <= at.dim < dim + width:
            if i is Ellipsis:
                return _place(moved, kept + at.dim - dim)
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
    return _place(moved, 0) if whole else UNKNOWN


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
    return _place(moved, ndim - first.ndim + dim) if ordered else UNKNOWN


# --- look-ups --------------------------------------------------------------------------------------------------------


@_follows("embedding")
def _looked_up(moved: Moved) -> int:
    """Tokens of records in a table that holds none: ``torch.embedding(table, tokens)``, ``F.embedding(tokens, table)``."""
    at = moved.at
    if at is None or moved.source.is_floating_point() or sum(s is not None for _, s in moved.tensors) > 1:
        return UNKNOWN
    return _place(moved, at.dim)


@_follows("one_hot")
def _one_hot(moved: Moved) -> int:
    """Without a stated number of classes the largest label of the batch decides how wide the result is."""
    at, classes = moved.at, moved.argument(1, "num_classes", -1)
    return _place(moved, at.dim) if at and isinstance(classes, int) and classes > 0 and moved.only_first() else UNKNOWN


@_follows("embedding_bag")
def _bags(moved: Moved) -> int:
    """One row for each bag: of its offset's record, or (bags of equal length) of its tokens' record."""
    table_first = moved.args[0].is_floating_point()  # torch.embedding_bag, unlike torch.nn.functional's
    table, tokens = moved.args[0 if table_first else 1], moved.args[1 if table_first else 0]
    offsets = moved.argument(2, "offsets")
    bags = moved.out.shape[0]
    if any(tensor is table and stride is not None for tensor, stride in moved.tensors):
        return UNKNOWN
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


# --- layers ----------------------------------------------------------------------------------------------------------


def _states(moved: Moved) -> Sequence[Any]:
    """The initial states of a recurrent layer."""
    given = moved.args[1] if len(moved.args) > 1 else ()
    return given if isinstance(given, (tuple, list)) else (given,)


@_follows("lstm gru rnn_tanh rnn_relu")
def _recurrent(moved: Moved) -> int:
    """The output holds the records where the input does; states hold them in dimension 1."""
    if not isinstance(moved.argument(3, "has_biases"), bool):  # a packed sequence
        return UNKNOWN
    batch_dim = 0 if moved.argument(8, "batch_first") else 1
    states = _states(moved)
    found = set()
    for tensor, stride in moved.tensors:
        if stride is not None:
            at = position(tensor.shape, stride, moved.records)
            expected = batch_dim if tensor is moved.args[0] else 1 if any(tensor is s for s in states) else -1
            if at is None or at.dim != expected:
                return UNKNOWN
            found.add((at.outer, at.inner))
    if len(found) != 1:
        return UNKNOWN
    return stride_at(moved.out.shape, batch_dim if moved.index == 0 else 1, found.pop()[1])


@_follows("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell")
def _recurrent_cell(moved: Moved) -> int:
    return _front(moved)


@_follows("grid_sample grid_sampler affine_grid affine_grid_generator")
def _front(moved: Moved) -> int:
    """Every batched argument has its records in front, and so has the result."""
    places = {position(tensor.shape, s, moved.records) for tensor, s in moved.tensors if s is not None}
    at = places.pop()
    return UNKNOWN if at is None or places or at.dim != 0 else _place(moved, 0)


@_follows("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d")
def _convolved(moved: Moved) -> int:
    weight = moved.argument(1, "weight")
    return _front(moved) if moved.only_first() and moved.source.ndim == weight.ndim else UNKNOWN


@_follows("group_norm instance_norm feature_dropout feature_alpha_dropout pixel_shuffle pixel_unshuffle channel_shuffle",
          "im2col col2im native_channel_shuffle")  # fmt: skip
def _first_in_front(moved: Moved) -> int:
    return _front(moved) if moved.only_first() else UNKNOWN


@_follows("batch_norm")
def _batch_norm(moved: Moved) -> int:
    at = moved.at
    if at is None or at.dim == 1 or not moved.only_first() or moved.argument(5, "training"):
        return UNKNOWN
    return _place(moved, at.dim)


@_follows("prelu")
def _prelu(moved: Moved) -> int:
    at, weight = moved.at, moved.argument(1, "weight")
    if at is None or not moved.only_first() or (weight.numel() > 1 and at.dim == 1):
        return UNKNOWN
    return _place(moved, at.dim)


@_follows("layer_norm rms_norm")
def _normalized(moved: Moved) -> int:
    return _outside(moved, len(moved.argument(1, "normalized_shape")))


def _outside(moved: Moved, inside: int) -> int:
    """The operation works inside the last `inside` dimensions of its first argument; the others stay."""
    at = moved.at
    if at is None or not moved.only_first() or at.dim >= moved.source.ndim - inside:
        return UNKNOWN
    return _place(moved, at.dim)


def _inside(dims: int) -> Follow:
    return lambda moved: _outside(moved, dims)


for _spatial in (1, 2, 3):
    _pools = ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool", "lp_pool", "upsample_nearest",
              "_upsample_nearest_exact", "max_unpool", "fractional_max_pool")  # fmt: skip
    for _pool in _pools:
        FOLLOWERS[f"{_pool}{_spatial}d"] = FOLLOWERS[f"{_pool}{_spatial}d_with_indices"] = _inside(_spatial)
FOLLOWERS.update(dict.fromkeys(("upsample_linear1d", "linear", "view_as_complex"), _inside(1)))
FOLLOWERS.update(dict.fromkeys(("upsample_bilinear2d", "upsample_bicubic2d", "tril", "triu"), _inside(2)))
FOLLOWERS.update(dict.fromkeys(("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"), _inside(2)))
FOLLOWERS["upsample_trilinear3d"] = _inside(3)
FOLLOWERS["view_as_real"] = _inside(0)


@_follows("diag_embed")
def _diag_embed(moved: Moved) -> int:
    plain = len(moved.args) == 1 and not moved.kwargs
    return _outside(moved, 1) if plain else UNKNOWN


@_follows("pad constant_pad_nd")
def _padded(moved: Moved) -> int:
    at, sizes = moved.at, moved.argument(1, "pad")
    if at is None or not moved.only_first():
        return UNKNOWN
    touched = {moved.source.ndim - 1 - i // 2 for i, size in enumerate(sizes) if size}
    return UNKNOWN if at.dim in touched else _place(moved, at.dim)


@_follows("bilinear")
def _bilinear(moved: Moved) -> int:
    places = {position(tensor.shape, s, moved.records) for tensor, s in moved.tensors if s is not None}
    batched = [tensor for tensor, s in moved.tensors if s is not None]
    inputs = moved.args[:2]
    at = places.pop()
    if at is None or places or any(all(t is not i for i in inputs) for t in batched) or at.dim >= batched[0].ndim - 1:
        return UNKNOWN
    return _place(moved, at.dim)


@_follows("scaled_dot_product_attention")
def _attention(moved: Moved) -> int:
    """Queries, keys, values and mask have their records in one dimension, left of positions and features."""
    found = set()
    for tensor, stride in moved.tensors:
        if stride is not None:
            at = position(tensor.shape, stride, moved.records)
            if at is None or tensor.ndim - at.dim < 3:
                return UNKNOWN
            dim = moved.out.ndim - (tensor.ndim - at.dim)
            if dim < 0 or moved.out.shape[dim] != tensor.shape[at.dim]:
                return UNKNOWN
            found.add((dim, at.inner))
    if len(found) != 1:
        return UNKNOWN
    dim, inner = found.pop()
    return stride_at(moved.out.shape, dim, inner)


# --- products --------------------------------------------------------------------------------------------------------


@_follows("matmul bmm mm mv")
def _matmul(moved: Moved) -> int:
    if len(moved.args) < 2 or not all(isinstance(a, Tensor) for a in moved.args[:2]):
        return UNKNOWN
    return _product(moved, moved.args[0], moved.args[1])


FOLLOWERS["__matmul__"] = _matmul


@_follows("__rmatmul__")
def _matmul_reversed(moved: Moved) -> int:
    return _product(moved, *moved.args[1::-1]) if len(moved.args) == 2 else UNKNOWN


@_follows("addmm addmv addbmm baddbmm")
def _added_product(moved: Moved) -> int:
    added = moved.args[0]
    left = moved.argument(1, "batch1", moved.kwargs.get("mat1", moved.kwargs.get("mat")))
    right = moved.argument(2, "batch2", moved.kwargs.get("mat2", moved.kwargs.get("vec")))
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return UNKNOWN
    if moved.out.ndim != max(left.ndim, right.ndim - (left.ndim == 1)):
        return UNKNOWN
    product = _product(moved, left, right)
    for own in moved.tensors:
        if (
            own[0] is added
            and own[1] is not None
            and aligned(replace(moved, tensors=(own,)), moved.out.shape) != product
        ):
            return UNKNOWN
    return product


def _product(moved: Moved, left: Tensor, right: Tensor) -> int:
    """Neither factor may be summed over its records, and the records of both must fall into one dimension."""
    strides = {id(tensor): stride for tensor, stride in moved.tensors}
    found = set()
    for tensor, contracted in ((left, 1), (right, min(2, right.ndim))):
        stride = strides.get(id(tensor))
        if stride is None:
            continue
        at = position(tensor.shape, stride, moved.records)
        if at is None or tensor.ndim - at.dim == contracted:
            return UNKNOWN
        # Counted from the right: a vector has no dimension of its own in the result.
        from_right = tensor.ndim - at.dim
        if tensor is left and right.ndim == 1:
            from_right -= 1
        if tensor is right and left.ndim == 1 and from_right > 2:
            from_right -= 1
        dim = moved.out.ndim - from_right
        if dim < 0 or moved.out.shape[dim] != tensor.shape[at.dim]:
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
            letters.add(term[at.dim] if at and term.count(term[at.dim]) == 1 else "")
    letter = letters.pop() if len(letters) == 1 else ""
    return _place(moved, output.index(letter)) if letter and output.count(letter) == 1 else UNKNOWN


@_follows("cdist")
def _distances(moved: Moved) -> int:
    places = {position(tensor.shape, s, moved.records) for tensor, s in moved.tensors if s is not None}
    at = places.pop()
    if at is None or places or at.dim >= moved.source.ndim - 2:
        return UNKNOWN
    return _place(moved, at.dim)


# --- along a dimension -----------------------------------------------------------------------------------------------


def _dims(moved: Moved, index: int, default: Any, *names: str) -> set[int] | None:
    """The dimensions that an operation names, counted from the left; None where it names none."""
    found = moved.args[index] if len(moved.args) > index else default
    for name in (*names, "dim", "dims", "axis"):
        found = moved.kwargs.get(name, found)
    if found is None or isinstance(found, bool):
        return None
    each = found if isinstance(found, (tuple, list)) else (found,)
    return {d % max(moved.source.ndim, 1) for d in each} if all(type(d) is int for d in each) and each else None


def _is_reduced(moved: Moved, index: int, joined: int) -> int:
    at, gone = moved.at, _dims(moved, index, None)
    if at is None or not moved.only_first():
        return UNKNOWN
    if gone is None or at.dim in gone:
        return joined
    kept = moved.out.ndim == moved.source.ndim
    return _place(moved, at.dim if kept else at.dim - sum(d < at.dim for d in gone))


def _reduction(index: int, joined: int = UNKNOWN) -> Follow:
    return lambda moved: _is_reduced(moved, index, joined)


FOLLOWERS["sum"], FOLLOWERS["mean"] = _reduction(1, SUM), _reduction(1, MEAN)
for _name in ("amax amin var std var_mean std_mean logsumexp argmax argmin prod any all median nanmedian nansum nanmean "
              "count_nonzero mode aminmax").split():  # fmt: skip
    FOLLOWERS[_name] = _reduction(1)
for _name in "norm linalg_vector_norm vector_norm kthvalue".split():
    FOLLOWERS[_name] = _reduction(2)


@_follows("quantile nanquantile")
def _quantile(moved: Moved) -> int:
    """Several quantiles at once are in a new dimension, in front."""
    at, gone, q = moved.at, _dims(moved, 2, None), moved.argument(1, "q")
    if at is None or gone is None or at.dim in gone or not moved.only_first():
        return UNKNOWN
    front = int(isinstance(q, Tensor) and q.ndim == 1)
    kept = moved.out.ndim - front == moved.source.ndim
    return _place(moved, front + at.dim - (0 if kept else sum(d < at.dim for d in gone)))


@_follows("max min")
def _extreme(moved: Moved) -> int:
    other = moved.argument(1, "other")
    return aligned(moved, moved.out.shape) if isinstance(other, Tensor) else _is_reduced(moved, 1, UNKNOWN)


def _is_along(moved: Moved, index: int, default: Any) -> int:
    """Works along dimensions that it names; every batched argument has its records in one other dimension."""
    gone = _dims(moved, index, default)
    places = {position(tensor.shape, s, moved.records) for tensor, s in moved.tensors if s is not None}
    at = places.pop()
    if at is None or places or gone is None or at.dim in gone:
        return UNKNOWN
    return _place(moved, at.dim)


def _along(index: int, default: Any = None) -> Follow:
    return lambda moved: _is_along(moved, index, default)


for _name in "softmax log_softmax cumsum cumprod logcumsumexp cummax cummin unfold".split():
    FOLLOWERS[_name] = _along(1)
for _name in "sort argsort glu".split():
    FOLLOWERS[_name] = _along(1, -1)
for _name in "topk diff".split():
    FOLLOWERS[_name] = _along(2, -1)
for _name in "fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_ihfft".split():
    FOLLOWERS[_name] = _along(2, -1)
for _name in "fft_fftn fft_ifftn roll".split():
    FOLLOWERS[_name] = _along(2)
for _name in "fft_fft2 fft_ifft2 fft_rfft2".split():
    FOLLOWERS[_name] = _along(2, (-2, -1))


@_follows("scatter scatter_add scatter_reduce")
def _scattered(moved: Moved) -> int:
    """An index that is shorter than the batch writes into the records of some places only, and reads as many."""
    at = moved.at
    if at is None or any(
        t.ndim == moved.out.ndim and t.shape[at.dim] != moved.out.shape[at.dim] for t, _ in moved.tensors
    ):
        return UNKNOWN
    return _is_along(moved, 1, None)


@_follows("gather")
def _gathered(moved: Moved) -> int:
    return _taken_along(moved, moved.argument(1, "dim"), moved.argument(2, "index"))


@_follows("take_along_dim")
def _gathered_by_broadcast(moved: Moved) -> int:
    return _taken_along(moved, moved.argument(2, "dim"), moved.argument(1, "indices"))


def _taken_along(moved: Moved, dim: Any, index: Any) -> int:
    """Each entry of the index takes one along `dim`, of its own place in all other dimensions."""
    at = moved.at
    if at is None or not isinstance(dim, int) or not isinstance(index, Tensor):
        return UNKNOWN
    if at.dim == dim % moved.source.ndim:  # a constant may be read along the records of an index
        return (
            _place(moved, at.dim)
            if moved.source is index and moved.args[0] is not index and _single(moved)
            else UNKNOWN
        )
    if any(t.ndim != moved.out.ndim or t.shape[at.dim] not in (1, moved.out.shape[at.dim]) for t, _ in moved.tensors):
        return UNKNOWN
    return _is_along(replace(moved, kwargs={"dim": dim}), len(moved.args), None)


def _single(moved: Moved) -> bool:
    return sum(stride is not None for _, stride in moved.tensors) == 1


@_follows("flip")
def _flip(moved: Moved) -> int:
    named = moved.kwargs.get("dims", moved.args[1:])
    dims = named[0] if len(named) == 1 and isinstance(named[0], (tuple, list)) else named
    at = moved.at
    if at is None or at.dim in {d % moved.source.ndim for d in dims} or not moved.only_first():
        return UNKNOWN
    return _place(moved, at.dim)


@_follows("index_select")
def _index_select(moved: Moved) -> int:
    at, dim, index = moved.at, moved.argument(1, "dim"), moved.argument(2, "index")
    if at is not None and moved.source is index and moved.args[0] is not index and _single(moved):
        return stride_at(moved.out.shape, dim % moved.out.ndim, at.inner)  # a constant, looked up by records
    return _place(moved, at.dim) if at and moved.only_first() and at.dim != dim % moved.source.ndim else UNKNOWN


@_follows("index_add index_copy index_fill")
def _index_written(moved: Moved) -> int:
    """``x.index_add(dim, index, values)`` along another dimension than the records', with an index that holds none."""
    index = moved.argument(2, "index")
    if any(tensor is index and stride is not None for tensor, stride in moved.tensors):
        return UNKNOWN
    return _is_along(moved, 1, None)


@_follows("cosine_similarity")
def _cosine(moved: Moved) -> int:
    return _without(moved, *_compared(moved, True))


@_follows("pairwise_distance")
def _pairwise(moved: Moved) -> int:
    return _without(moved, *_compared(moved, False))


def _compared(moved: Moved, named: bool) -> tuple[tuple[int, ...], set[int]]:
    """The shape of what two tensors are compared in, and the dimension of it that is gone afterwards."""
    shape = torch.broadcast_shapes(*(tensor.shape for tensor, _ in moved.tensors))
    dim = moved.argument(2, "dim", 1) if named else -1
    return tuple(shape), {dim % len(shape)} if isinstance(dim, int) else set()


def _without(moved: Moved, shape: Sequence[int], gone: Iterable[int]) -> int:
    """Broadcasting to `shape`, then some dimensions are gone."""
    at = position(tuple(shape), aligned(moved, shape), moved.records)
    if at is None or at.dim in gone:
        return UNKNOWN
    dim = at.dim if moved.out.ndim == len(shape) else at.dim - sum(d < at.dim for d in gone)
    return stride_at(moved.out.shape, dim, at.inner) if moved.out.shape[dim] == shape[at.dim] else UNKNOWN


# --- losses ----------------------------------------------------------------------------------------------------------

_BESIDE = frozenset(
    "gather scatter scatter_add scatter_reduce take_along_dim diff mse_loss l1_loss binary_cross_entropy soft_margin_loss "
    "binary_cross_entropy_with_logits poisson_nll_loss margin_ranking_loss hinge_embedding_loss smooth_l1_loss huber_loss "
    "kl_div max_unpool1d max_unpool2d max_unpool3d".split()
)
"""What takes one entry of each argument for each record, beside the operations that broadcast."""
_NONE, _MEAN_OF_ALL, _SUM_OF_ALL = 0, 1, 2
"""How torch's own losses are told their reduction."""


def _reduced_loss(moved: Moved, stride: int, index: int | None) -> int:
    """A loss for each entry, whose records are at `stride`, joined as the operation's reduction says."""
    stated: Any = moved.args[slice(-1, None) if index is None else slice(index, index + 1)]
    reduction = moved.kwargs.get("reduction", stated[0] if stated else None)
    if type(reduction) is not int:  # a margin, a weight: the reduction was left out
        return UNKNOWN
    return {_MEAN_OF_ALL: MEAN, _SUM_OF_ALL: SUM, _NONE: stride}.get(reduction, UNKNOWN) if stride >= 0 else UNKNOWN


def _elementwise_loss(index: int | None) -> Follow:
    def follow_loss(moved: Moved) -> int:
        shape = torch.broadcast_shapes(*(tensor.shape for tensor, _ in moved.tensors))
        stride = aligned(moved, shape)
        return _reduced_loss(moved, stride if position(shape, stride, moved.records) else UNKNOWN, index)

    return follow_loss


_ELEMENTWISE_LOSSES = (_elementwise_loss(None), _elementwise_loss(2))
"""Losses of single entries whose reduction is their last argument, and those where it is the third."""
for _name in ("mse_loss l1_loss binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss poisson_nll_loss "
              "margin_ranking_loss hinge_embedding_loss").split():  # fmt: skip
    FOLLOWERS[_name] = _ELEMENTWISE_LOSSES[0]
for _name in "smooth_l1_loss huber_loss kl_div".split():
    FOLLOWERS[_name] = _ELEMENTWISE_LOSSES[1]


@_follows("cosine_embedding_loss multi_margin_loss multilabel_margin_loss triplet_margin_loss")
def _row_loss(moved: Moved) -> int:
    """A loss for each row; the records are in front of every argument, one row each or several."""
    places = {position(tensor.shape, s, moved.records) for tensor, s in moved.tensors if s is not None}
    at = places.pop()
    rows = isinstance(moved.args[0], Tensor) and moved.args[0].ndim == 2  # without rows, all of it is one row
    if at is None or places or at.dim != 0 or not rows or any(tensor.ndim > 2 for tensor, _ in moved.tensors):
        return UNKNOWN
    return _reduced_loss(moved, at.inner, None)


def joined_shape(name: str, moved: Moved) -> Sequence[int]:
    """The shape of the losses of a loss that has joined its records, before it has; empty where it is no such loss."""
    known = FOLLOWERS.get(name)
    if known is not _row_loss and known not in _ELEMENTWISE_LOSSES:
        return ()
    shapes = (tensor.shape for tensor, _ in moved.tensors if tensor.ndim == moved.source.ndim)
    return tuple(torch.broadcast_shapes(*shapes))
