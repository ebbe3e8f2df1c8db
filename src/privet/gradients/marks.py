"""What the engine notes on a tensor: whether it depends on records, and where they are in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from privet.errors import PrivetError
from privet.gradients.layout import UNKNOWN
from privet.gradients.use import Budget, Use

_MARK = "_privet_mark"


@dataclass(frozen=True)
class Derived:
    """A tensor computed from parameters alone."""

    sources: tuple[Tensor, ...]
    """The tracked tensors that it was computed from, in one step."""
    expanded: Tensor | None = None
    """The tracked tensor that it repeats along new or single dimensions, if it only does that."""


class Token:
    """Stands for one pass of one recorder."""

    __slots__ = ("owner",)

    def __init__(self, owner: object) -> None:
        self.owner = owner


class Mark:
    """A note on a tensor, made in the pass that `token` stands for.

    `stride` says where the records are (see `layout`), None if the tensor does not depend on them; `why` says why the
    tensor cannot be trusted to keep records apart, and is empty where it can; `derived` how it came from parameters.
    """

    __slots__ = ("derived", "stride", "token", "why")

    def __init__(self, token: Token | None, stride: int | None, why: str = "", derived: Derived | None = None) -> None:
        self.token, self.stride, self.why, self.derived = token, stride, why, derived

    def __deepcopy__(self, memo: object) -> Mark:
        return self


FREE = Mark(None, None)
"""The tensor does not depend on records or parameters."""
RANDOM = Mark(None, None)
"""Nor does this one: its numbers were drawn, each independently of its place."""


def mark_of(tensor: Tensor) -> Mark | None:
    """An attribute of the tensor, because every operation of the forward pass asks for it; a dictionary with weak keys takes
    twenty times as long."""
    return getattr(tensor, _MARK, None)


def set_mark(tensor: Tensor, mark: Mark) -> None:
    setattr(tensor, _MARK, mark)


@dataclass(eq=False)
class Pass:
    """What one forward and one backward pass over one physical batch recorded."""

    records: int
    budget: Budget
    each: int = 1
    """How many examples of each record are in the batch, one after the other: more than one where a record is a user."""
    trusting: bool = True
    """Whether a tensor of unknown origin counts as a constant: it does where the caller is this library."""
    strangers: bool = False
    """Whether a tensor of unknown origin counts as a constant, although the caller is not this library."""
    assume: bool = False
    """Whether to go on where records may meet, and only to note why."""
    alone: bool = False
    """Whether the batch is one record, whose gradient autograd computes, whatever is done with it."""
    uses: list[Use] = field(default_factory=list)
    received: list[Use] = field(default_factory=list)
    derived: list[Tensor] = field(default_factory=list)
    closed: bool = False
    token: Token = field(default_factory=lambda: Token(None))
    """Tells the marks of this pass from older ones, and from those of other recorders."""
    public: bool = False
    """Whether there is no batch, and everything that depends on a record is refused."""
    reduction: Literal["mean", "sum"] | None = None
    """How the loss joins its records, known when its backward pass reaches the model."""
    pending: Literal["mean", "sum"] | PrivetError | None = None
    """The same of the backward pass that runs, or why it cannot be told, before it is known whether it concerns the model."""
    divisors: list[float] = field(default_factory=list)
    """The numbers by which sums over the records were divided, in order."""
    escaped: str = ""
    """How a value of the records has left the tensors in which it is followed, if one has."""
    tainted: dict[int, str] = field(default_factory=dict)
    """Memory in which records may have met through a write, and why."""
    doubts: dict[str, None] = field(default_factory=dict)
    """Why records may have met, where the pass goes on all the same."""

    def unknown(self, why: str) -> Mark:
        return Mark(self.token, UNKNOWN, why)
