"""The description of an operation that a follower is given, helpers that most followers use, and the registry of followers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from privet.gradients.marks import UNKNOWN, Position, position, stride_at
from privet.io.registry import plugin_name

Follow = Callable[["Moved"], int]
"""Where the records are in the operation's result: a stride, `SUM`, `MEAN` or `UNKNOWN`."""


@dataclass(slots=True, eq=False)
class Moved:
    """One operation on batched tensors: everything that a follower may look at."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    source: Tensor
    """The first batched argument."""
    stride: int
    """Its stride."""
    tensors: Sequence[tuple[Tensor, int | None]]
    """Every tensor argument with its stride (None if it does not depend on the batch)."""
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
        """The position of the records, if it is the same in every batched argument."""
        places = {position(tensor.shape, s, self.records) for tensor, s in self.tensors if s is not None}
        return places.pop() if len(places) == 1 else None

    def single(self) -> bool:
        """Whether exactly one argument holds records."""
        return sum(stride is not None for _, stride in self.tensors) == 1


def place(moved: Moved, dim: int) -> int:
    """The stride if the records are in dimension `dim` of the output, with the inner size that they had; UNKNOWN if the size
    changed."""
    at = moved.at
    if at is None or not 0 <= dim < moved.out.ndim or moved.out.shape[dim] != moved.source.shape[at.dim]:
        return UNKNOWN
    return stride_at(moved.out.shape, dim, at.inner)


def aligned(moved: Moved, shape: Sequence[int]) -> int:
    """The stride after broadcasting to `shape`: the records of all batched arguments must be in one dimension, counted from the
    right."""
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
    """The stride if the operation works inside the last `inside` dimensions of its first argument and leaves the others as they
    are."""
    at = moved.at
    if at is None or not moved.only_first() or at.dim >= moved.source.ndim - inside:
        return UNKNOWN
    return place(moved, at.dim)


def inside(dims: int) -> Follow:
    return lambda moved: outside(moved, dims)


def front(moved: Moved) -> int:
    """The stride if every batched argument has its records in front, and so has the result."""
    at = moved.shared()
    return UNKNOWN if at is None or at.dim != 0 else place(moved, 0)


def dims(moved: Moved, index: int, default: Any, *names: str) -> set[int] | None:
    """The dimensions that an operation is given, counted from the left; None if it is given none."""
    found = moved.args[index] if len(moved.args) > index else default
    for name in (*names, "dim", "dims", "axis", "dimension"):
        found = moved.kwargs.get(name, found)
    if found is None or isinstance(found, bool):
        return None
    each = found if isinstance(found, (tuple, list)) else (found,)
    return {d % max(moved.source.ndim, 1) for d in each} if all(type(d) is int for d in each) and each else None


def is_along(moved: Moved, index: int, default: Any) -> int:
    """The stride if the operation works along the dimensions that it is given, and the records are in another one."""
    gone = dims(moved, index, default)
    at = moved.shared()
    if at is None or gone is None or at.dim in gone:
        return UNKNOWN
    return place(moved, at.dim)


def along(index: int, default: Any = None) -> Follow:
    return lambda moved: is_along(moved, index, default)


def without(moved: Moved, shape: Sequence[int], gone: Iterable[int]) -> int:
    """The stride after broadcasting to `shape` and removing some dimensions."""
    at = position(tuple(shape), aligned(moved, shape), moved.records)
    if at is None or at.dim in gone:
        return UNKNOWN
    dim = at.dim if moved.out.ndim == len(shape) else at.dim - sum(d < at.dim for d in gone)
    return stride_at(moved.out.shape, dim, at.inner) if moved.out.shape[dim] == shape[at.dim] else UNKNOWN


_LINEAR = frozenset(
    "sum mean view reshape flatten ravel unflatten squeeze unsqueeze contiguous clone detach alias to float double neg "
    "negative __neg__ positive expand select unbind getitem __getitem__ half bfloat16 type atleast_1d cpu cuda".split()
)
_SCALING = frozenset("mul multiply div divide true_divide __mul__ __rmul__ __truediv__ __imul__ __itruediv__".split())
_ADDING = frozenset(
    "add sub subtract __add__ __radd__ __sub__ __rsub__ __iadd__ __isub__ stack cat concat concatenate hstack".split()
)


def joined(name: str, moved: Moved) -> int:
    """The stride of a linear operation on a sum or mean over the records: with constants, it stays a sum or a mean."""
    kinds = {stride for _, stride in moved.tensors if stride is not None}
    if len(kinds) != 1 or UNKNOWN in kinds:
        return UNKNOWN
    (kind,) = kinds
    if any(
        stride is not None and any(tensor is value for value in moved.kwargs.values())
        for tensor, stride in moved.tensors
    ):
        return UNKNOWN  # torch.add(one, other, alpha=a_sum) is a product of sums
    batched = [tensor for tensor, stride in moved.tensors if stride is not None]
    plain = name.removesuffix("_") if not name.startswith("__") else name
    if plain in _ADDING or (plain in _LINEAR and len(batched) == 1 and moved.args and moved.args[0] is batched[0]):
        return kind
    if plain in _SCALING and len(batched) == 1:
        divides = "div" in plain and plain != "__rtruediv__"
        numerator = moved.args[0] if moved.args else None
        return kind if not divides or numerator is batched[0] else UNKNOWN
    return UNKNOWN


FOLLOWERS: dict[str, Follow] = {}
"""The operations that are known to keep records apart, by name. The in-place form of each is known as well."""
Beside = Callable[[Moved, Tensor, Position], int | None]
"""The dimension of a constant that has an entry for each place in the batch; None if the operation has none."""
BESIDE: dict[str, Beside] = {}
"""The operations that take a constant entry by entry along the records, by name."""


_RESHAPED_IN_PLACE = frozenset("transpose_ t_ swapaxes_ swapdims_".split())
"""Operations that reorder the dimensions of a tensor in place: the old shape, to which its stride refers, is lost."""


def by_broadcasting(moved: Moved, constant: Tensor, at: Position) -> int | None:
    return at.dim + constant.ndim - moved.out.ndim


def in_front(moved: Moved, constant: Tensor, at: Position) -> int | None:
    return 0


TRUSTED: dict[str, None] = {}
"""What is assumed of followers and rules for operations that other packages have registered; they hold for every model."""


def taken_on_trust(what: str, function: Callable[..., Any]) -> tuple[str, ...]:
    """The assumption that a function that was registered for `what` is right; none for Privet's own functions."""
    module = str(function.__module__)
    if module.startswith("privet."):
        return ()
    return (f"the rule for {what}, which {plugin_name(module) or module} registered, is right",)


def follows(*names: str, beside: Beside | None = None) -> Callable[[Follow], Follow]:
    """Register a follower for operations of torch; `beside` says how they take constants."""

    def register(follow: Follow) -> Follow:
        each = " ".join(names).split()
        TRUSTED.update(dict.fromkeys(taken_on_trust(", ".join(each), follow)))
        FOLLOWERS.update(dict.fromkeys(each, follow))
        if beside is not None:
            BESIDE.update(dict.fromkeys(each, beside))
        return follow

    return register


def is_known(name: str) -> bool:
    """Whether an operation is known to keep records apart, if its follower can tell where they are."""
    return follower(name) is not None


def takes_entries(name: str) -> bool:
    """Whether an operation uses its other tensors entry by entry, so that none of them is a size."""
    return name in BESIDE or _listed(name) in BESIDE


def follower(name: str) -> Follow | None:
    return FOLLOWERS.get(_listed(name))


def _listed(name: str) -> str:
    """The name under which an operation is listed: ``add`` for ``add_`` and ``__iadd__``."""
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
    if moved.records == 1:  # everything belongs to the one record
        return moved.stride
    if name in _RESHAPED_IN_PLACE or not moved.out.numel():
        return UNKNOWN
    stride = known(moved)
    return stride if stride < UNKNOWN or position(moved.out.shape, stride, moved.records) else UNKNOWN


def dim_beside_records(name: str, moved: Moved, constant: Tensor, at: Position) -> int | None:
    """The dimension of a constant that has an entry for each place in the batch, or None. `at` says where the records are in
    the result."""
    beside = BESIDE.get(name) or BESIDE.get(_listed(name))
    dim = None if beside is None else beside(moved, constant, at)
    fits = dim is not None and 0 <= dim < constant.ndim and constant.shape[dim] == moved.out.shape[at.dim]
    return dim if fits else None
