"""Where the records of a batch are inside a tensor, and the marks that say so.

A batched tensor holds its records at a fixed stride: in row-major order, element ``n`` belongs to record
``(n // stride) % records``. One number is therefore enough, and it survives every reshape. Sequence-first tensors, windows
folded into the batch and several views of one record are ordinary cases.

The result of an operation that cannot be followed has the stride `UNKNOWN`. That is harmless until it meets a parameter or
becomes a loss; then the engine refuses, because a wrong guess would clip the wrong gradient.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from torch import Tensor

from privet.errors import PrivetError
from privet.gradients.use import MemoryBudget, Use

UNKNOWN = -1
"""The stride of a tensor that depends on the batch in an unknown way."""
SUM, MEAN = -2, -3
"""The strides of a tensor that is a sum, or a mean, over all records."""


ROWS, STARTS, PACKED = -1, -2, -3
"""What a tensor may hold instead of a dimension for the records: their rows one after another, as many as each record has; the
places where the records begin among them; or a part of a packed sequence."""


@dataclass(frozen=True)
class Position:
    """The dimension that holds the records: its size is ``outer * records * inner``."""

    dim: int
    outer: int
    inner: int


@lru_cache(maxsize=4096)
def position(shape: Sequence[int], stride: int, records: int) -> Position | None:
    """The dimension of `shape` that holds records at `stride`; None if they are spread over several."""
    if stride < 0 or not shape:
        return None
    if records == 1:  # one record owns everything, wherever it lies
        return Position(0, 1, shape[0])
    below = 1
    for dim in range(len(shape) - 1, -1, -1):
        size = shape[dim]
        if stride % below == 0 and size % (stride // below * records) == 0 and (stride < below * size or size == 0):
            inner = stride // below
            return Position(dim, size // (inner * records), inner)
        below *= size
    return None


_PLAIN = Position(0, 1, 1)
"""Records in front, one row each: the usual case."""


def stride_at(shape: Sequence[int], dim: int, inner: int = 1) -> int:
    """The stride of records that lie in dimension `dim`, each holding `inner` consecutive entries of it."""
    return inner * math.prod(shape[dim + 1 :])


def canonical(tensor: Tensor, stride: int, records: int) -> Tensor:
    """`tensor` with the records in front: ``(records, outer, inner, *rest)``, a view where possible.

    `rest` are the dimensions other than the one that held the records, in their order.
    """
    at = position(tensor.shape, stride, records)
    if at is None:
        raise ValueError("the layout does not fit the tensor")
    if at == _PLAIN:
        return tensor[:, None, None]
    split: Tensor = tensor.unflatten(at.dim, (at.outer, records, at.inner))
    return split.movedim((at.dim + 1, at.dim, at.dim + 2), (0, 1, 2))


_MARK = "_privet_mark"


@dataclass(frozen=True)
class Derived:
    """A tensor computed from parameters alone."""

    sources: tuple[Tensor, ...]
    """The tracked tensors that it was directly computed from."""
    expanded: Tensor | None = None
    """The tracked tensor that it merely repeats along new or single dimensions, if it does."""


class Token:
    """Identifies one pass of one recorder."""

    __slots__ = ("owner",)

    def __init__(self, owner: object) -> None:
        self.owner = owner


class Mark:
    """A note on a tensor, made in the pass that `token` identifies.

    `stride` says where the records are, and is None if the tensor does not depend on them. `why` says why the tensor is not known
    to keep records apart, and is empty if it is. `derived` says how the tensor was computed from parameters.
    """

    __slots__ = ("derived", "stride", "token", "why")

    def __init__(self, token: Token | None, stride: int | None, why: str = "", derived: Derived | None = None) -> None:
        self.token, self.stride, self.why, self.derived = token, stride, why, derived

    def __deepcopy__(self, memo: object) -> Mark:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return OrderedDict, ()  # a tensor in a file has no mark; ``torch.load`` accepts this with weights_only=True


_STARTS = "_privet_starts"


def set_starts(tensor: Tensor) -> None:
    """State that a tensor holds the places where the records begin, in the order of the records."""
    setattr(tensor, _STARTS, True)


def are_starts(tensor: Tensor) -> bool:
    return getattr(tensor, _STARTS, False)


FREE = Mark(None, None)
"""The tensor does not depend on records or parameters."""
RANDOM = Mark(None, None)
"""The tensor does not depend on records or parameters, and its numbers were drawn independently of their places."""
RANDOM_ROWS = Mark(None, None)
"""Like `RANDOM`, but only its rows are alike: within a row, numbers were combined or ordered."""


def mark_of(tensor: Tensor) -> Mark | None:
    """The mark of a tensor. It is an attribute, because every operation of the forward pass asks for it; a dictionary with weak
    keys takes twenty times as long."""
    found = getattr(tensor, _MARK, None)
    return found if type(found) is Mark else None


def set_mark(tensor: Tensor, mark: Mark) -> None:
    setattr(tensor, _MARK, mark)
    if mark is RANDOM or mark is RANDOM_ROWS or tensor.is_complex():
        note_version(tensor)


def random_mark(tensor: Tensor) -> Mark | None:
    """`RANDOM` or `RANDOM_ROWS`, if nothing was written into the tensor, under any name of its memory, since it was marked so."""
    mark = mark_of(tensor)
    if mark is not RANDOM and mark is not RANDOM_ROWS:
        return None
    kept = not tensor.is_inference() and getattr(tensor, _VERSION, None) == tensor._version
    return mark if kept else None


_VERSION = "_privet_version"


def note_version(tensor: Tensor) -> None:
    """Note how often a tensor was written into, for `is_written_unseen`."""
    setattr(tensor, _VERSION, -1 if tensor.is_inference() else tensor._version)


def is_written_unseen(tensor: Tensor) -> bool:
    """Whether a complex tensor was written into since its mark: torch shows ``z.real = x`` to nobody."""
    noted = getattr(tensor, _VERSION, None)
    return noted is not None and not tensor.is_inference() and noted != tensor._version


@dataclass(eq=False)
class Pass:
    """What one forward and one backward pass over one physical batch recorded."""

    records: int
    budget: MemoryBudget
    each: int = 1
    """The number of consecutive examples of each record: more than one where a record is a user."""
    trusting: bool = True
    """Whether a tensor of unknown origin counts as a constant because the caller is this library."""
    strangers: bool = False
    """Whether a tensor of unknown origin counts as a constant, although the caller is not this library."""
    assume: bool = False
    """Whether to go on where records may be mixed, and only note why."""
    alone: bool = False
    """Whether the batch is one record, whose gradient autograd computes."""
    uses: list[Use] = field(default_factory=list)
    received: list[Use] = field(default_factory=list)
    derived: list[Tensor] = field(default_factory=list)
    closed: bool = False
    token: Token = field(default_factory=lambda: Token(None))
    """Distinguishes the marks of this pass from older ones and from those of other recorders."""
    public: bool = False
    """Whether there is no batch, and anything that depends on a record is refused."""
    reduction: Literal["mean", "sum"] | None = None
    """How the loss combines its records; known when its backward pass reaches the model."""
    pending: Literal["mean", "sum"] | PrivetError | None = None
    """The reduction of the running backward pass, or why it is unknown, before it is clear whether the pass concerns the model.
    """
    divisors: list[float] = field(default_factory=list)
    """The numbers by which sums over the records were divided, in order."""
    escaped: str = ""
    """How a value of the records became a Python number, if one has: from then on it cannot be followed."""
    ragged: dict[int, tuple[Tensor, int]] = field(default_factory=dict)
    """Tensors with a different number of rows for each record (`ROWS`, `STARTS`, `PACKED`), by id."""
    packed: dict[int, Any] = field(default_factory=dict)
    """What packed sequences were made of, by the id of their data."""
    reordered: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Tensors that were sorted to be packed, by id, with the tensors in the order of the records."""
    aliased: set[int] = field(default_factory=set)
    """Memory that has a name, from ``tensor.data``, through which autograd does not notice a write."""
    overwritten: str = ""
    """Why what the backward pass uses may mix records, although the loss does not: it was overwritten through such a name."""
    tainted: dict[int, str] = field(default_factory=dict)
    """Memory in which a write may have mixed records, and why."""
    copied: list[Any] = field(default_factory=list)
    """Nodes of the autograd graph that followed writes into parts of tensors have made."""
    over: bool = False
    """Whether its gradients were taken. The loop's body may go on using the batch."""
    read: bool = False
    """Whether the body of the loop has read a value of the records, before or after the loss."""
    doubts: dict[str, None] = field(default_factory=dict)
    """Why records may have been mixed, in a pass that goes on in spite of that."""

    def unknown(self, why: str) -> Mark:
        return Mark(self.token, UNKNOWN, why)
