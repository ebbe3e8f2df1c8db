"""What a follower is given, and what most of them ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from privet.gradients.layout import UNKNOWN, Position, position, stride_at

Follow = Callable[["Moved"], int]
"""Where the records are in the operation's result: a stride, `SUM`, `MEAN` or `UNKNOWN`."""


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

    def shared(self) -> Position | None:
        """The place of the records, where every batched argument has them in the same one."""
        places = {position(tensor.shape, s, self.records) for tensor, s in self.tensors if s is not None}
        return places.pop() if len(places) == 1 else None

    def single(self) -> bool:
        """Whether one argument alone holds records."""
        return sum(stride is not None for _, stride in self.tensors) == 1


def place(moved: Moved, dim: int) -> int:
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


def outside(moved: Moved, inside: int) -> int:
    """The operation works inside the last `inside` dimensions of its first argument; the others stay."""
    at = moved.at
    if at is None or not moved.only_first() or at.dim >= moved.source.ndim - inside:
        return UNKNOWN
    return place(moved, at.dim)


def inside(dims: int) -> Follow:
    return lambda moved: outside(moved, dims)


def front(moved: Moved) -> int:
    """Every batched argument has its records in front, and so has the result."""
    at = moved.shared()
    return UNKNOWN if at is None or at.dim != 0 else place(moved, 0)


def dims(moved: Moved, index: int, default: Any, *names: str) -> set[int] | None:
    """The dimensions that an operation names, counted from the left; None where it names none."""
    found = moved.args[index] if len(moved.args) > index else default
    for name in (*names, "dim", "dims", "axis", "dimension"):
        found = moved.kwargs.get(name, found)
    if found is None or isinstance(found, bool):
        return None
    each = found if isinstance(found, (tuple, list)) else (found,)
    return {d % max(moved.source.ndim, 1) for d in each} if all(type(d) is int for d in each) and each else None


def is_along(moved: Moved, index: int, default: Any) -> int:
    """Works along dimensions that it names; every batched argument has its records in one other dimension."""
    gone = dims(moved, index, default)
    at = moved.shared()
    if at is None or gone is None or at.dim in gone:
        return UNKNOWN
    return place(moved, at.dim)


def along(index: int, default: Any = None) -> Follow:
    return lambda moved: is_along(moved, index, default)


def without(moved: Moved, shape: Sequence[int], gone: Iterable[int]) -> int:
    """Broadcasting to `shape`, then some dimensions are gone."""
    at = position(tuple(shape), aligned(moved, shape), moved.records)
    if at is None or at.dim in gone:
        return UNKNOWN
    dim = at.dim if moved.out.ndim == len(shape) else at.dim - sum(d < at.dim for d in gone)
    return stride_at(moved.out.shape, dim, at.inner) if moved.out.shape[dim] == shape[at.dim] else UNKNOWN
