"""The operations that are known to keep records apart, and how each one is followed.

`follows` registers a follower, and with it where a constant beside the records has an entry for each of them.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from privet.gradients.following.joined import joined
from privet.gradients.following.moved import Follow, Moved
from privet.gradients.layout import UNKNOWN, Position, position

FOLLOWERS: dict[str, Follow] = {}
"""The operations that are known to keep records apart, by name; the in-place form of each is known with it."""
Beside = Callable[[Moved, Tensor, Position], int | None]
"""The dimension of a constant that has an entry for each place in the batch; None where the operation has no such one."""
BESIDE: dict[str, Beside] = {}
"""The operations that take a constant entry by entry along the records, by name."""


_RESHAPED_IN_PLACE = frozenset("transpose_ t_ swapaxes_ swapdims_".split())
"""What changes the order of a tensor's dimensions in place: its shape before, by which its stride is read, is gone."""


def by_broadcasting(moved: Moved, constant: Tensor, at: Position) -> int | None:
    return at.dim + constant.ndim - moved.out.ndim


def in_front(moved: Moved, constant: Tensor, at: Position) -> int | None:
    return 0


def follows(*names: str, beside: Beside | None = None) -> Callable[[Follow], Follow]:
    """Register a follower for operations of torch; `beside` says how they take constants."""

    def register(follow: Follow) -> Follow:
        each = " ".join(names).split()
        FOLLOWERS.update(dict.fromkeys(each, follow))
        if beside is not None:
            BESIDE.update(dict.fromkeys(each, beside))
        return follow

    return register


def is_known(name: str) -> bool:
    """Whether an operation is known to keep records apart, at least where its follower finds them."""
    return follower(name) is not None


def takes_entries(name: str) -> bool:
    """Whether an operation takes its other tensors entry by entry, so that none of them is a size."""
    return name in BESIDE or _listed(name) in BESIDE


def follower(name: str) -> Follow | None:
    return FOLLOWERS.get(_listed(name))


def _listed(name: str) -> str:
    """The name under which an operation is listed, if it is: ``add`` for ``add_`` and ``__iadd__``."""
    if name in FOLLOWERS:
        return name
    plain = name.strip("_") if name.startswith("__") else name.removesuffix("_")
    if name.startswith("__") and plain[:1] in "ri" and plain[1:] in FOLLOWERS:
        return plain[1:]  # __radd__, __iadd__
    return plain


def follow(name: str, moved: Moved) -> int:
    """Where the records are in ``moved.out`` after the operation `name`, or `UNKNOWN`."""
    if any(stride is not None and stride < 0 for _, stride in moved.tensors):
        return joined(name, moved)
    known = follower(name)
    if known is None:
        return UNKNOWN
    if moved.records == 1:  # one record owns everything, wherever it lies
        return moved.stride
    if name in _RESHAPED_IN_PLACE or not moved.out.numel():
        return UNKNOWN
    stride = known(moved)
    return stride if stride < UNKNOWN or position(moved.out.shape, stride, moved.records) else UNKNOWN


def dim_beside_records(name: str, moved: Moved, constant: Tensor, at: Position) -> int | None:
    """The dimension of a constant that has an entry for each place in the batch, where the operation has one; `at` says where
    the records are in its result."""
    beside = BESIDE.get(name) or BESIDE.get(_listed(name))
    dim = None if beside is None else beside(moved, constant, at)
    fits = dim is not None and 0 <= dim < constant.ndim and constant.shape[dim] == moved.out.shape[at.dim]
    return dim if fits else None
