"""An intercepted operation, as a rule sees it, and the registry of rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from privet.gradients.following import Moved, follow
from privet.gradients.layout import UNKNOWN, position
from privet.gradients.tap import Receive
from privet.gradients.use import Use

if TYPE_CHECKING:
    from privet.gradients.recorder import Recorder

Rule = Callable[["Operation"], Any]

RULES: dict[str, Rule] = {}
"""The rule for each operation of torch, by the operation's name."""
REFUSED: dict[str, str] = {}
"""Why an operation on records is refused even where no parameter of it is trained, by the operation's name."""


def operation(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for torch operations: it returns the operation's result, recorded with ``op.record``."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


@dataclass(slots=True, eq=False)
class Operation:
    """One operation in the forward pass that combines records with parameters."""

    recorder: Recorder
    name: str
    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def module(self) -> str:
        return self.recorder.module

    @property
    def records(self) -> int:
        return self.recorder.records

    def argument(self, index: int, name: str, default: Any = None) -> Any:
        return self.args[index] if len(self.args) > index else self.kwargs.get(name, default)

    def tracks(self, value: object) -> bool:
        """Whether `value` is a trainable parameter or was computed from such parameters alone."""
        return isinstance(value, Tensor) and self.recorder.tracks(value)

    def stride(self, tensor: Tensor) -> int:
        """Where the records are in a batched tensor; raises where that is not known."""
        return self.recorder.known_stride(tensor, self.name)

    def stride_after(self, source: Tensor, out: Tensor) -> int:
        """Where the records are in `out`, which this operation made of `source`."""
        stride = self.stride(source)
        moved = Moved(self.args, self.kwargs, source, stride, ((source, stride),), out, self.records)
        after = follow(self.name, moved)
        if after == UNKNOWN or position(out.shape, after, self.records) is None:
            raise self.recorder.refusal(f"the records cannot be followed through `{self.name}`")
        return after

    def record(self, out: Tensor, use: Use, *saved: Tensor, stride: int | None = None) -> Tensor:
        """`out`, tapped: in the backward pass `use` receives what was saved and the gradient of `out`.

        Where the rule knows the stride of the records in `out` already, it need not be found again.
        """
        tapped = self.recorder.record(out, use, saved)
        if stride is not None:
            self.recorder.set_stride(tapped, stride)
        return tapped

    def receiver(self, use: Use) -> Receive:
        """What an ``autograd.Function`` calls in its backward pass so that `use` receives its inputs and gradient."""
        return self.recorder.receiver(use)

    def copies(self, tensor: Tensor, shape: tuple[int, ...], use: Use) -> Tensor:
        """`tensor` expanded to `shape`; in the backward pass `use` receives the gradient of the copies."""
        return self.recorder.copies(tensor, shape, use)

    def derive(self, compute: Callable[[], Tensor], *sources: Tensor) -> Tensor:
        """A tensor computed from tracked tensors alone; it can stand in a slot as a parameter does."""
        with torch.enable_grad():
            tensor = compute()
        self.recorder.note_derived(tensor, sources)
        return tensor

    def replaced(self, func: Callable[..., Any], args: tuple[Any, ...], **kwargs: Any) -> Operation:
        """The same operation written as another one."""
        name: str = getattr(func, "__name__", self.name)
        return Operation(self.recorder, name, func, args, kwargs)

    def generic(self) -> Any:
        """What happens to an operation that no rule covers: per-example gradients by ``torch.func``."""
        from privet.gradients.rules.generic import generic

        return generic(self)
