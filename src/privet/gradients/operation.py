"""Rules for operations and modules: how they are registered, and what a rule is given.

A tap is an identity node in the autograd graph that hands the gradient flowing through it to a rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from privet.errors import PrivetError
from privet.gradients.following import Moved, follow
from privet.gradients.following.moved import TRUSTED, taken_on_trust
from privet.gradients.marks import UNKNOWN, position
from privet.gradients.use import MemoryBudget, Use

if TYPE_CHECKING:
    from privet.gradients.recorder import Recorder

Receive = Callable[[tuple[Tensor, ...], Tensor], None]
"""Called in the backward pass with what was saved and the gradient of the tapped tensor."""

_ANCHOR = torch.empty((), requires_grad=True)
"""Makes a tapped tensor part of the graph even if no input requires a gradient, so that the first layer of a network need not
compute a gradient of its input. It never receives a gradient itself."""


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, _anchor: Tensor, receive: Receive, *saved: Tensor) -> Tensor:
        # With save_for_backward, activation checkpointing also applies to the tensors that we keep, and autograd notices
        # if somebody changes them in place.
        ctx.save_for_backward(*saved)
        ctx.receive = receive
        # An alias and not a view, so that an in-place activation after it stays legal.
        return out.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_second_derivatives()
        saved = ctx.saved_tensors  # read once, because activation checkpointing recomputes them here
        ctx.receive(saved, grad)
        return grad, None, None, *(None for _ in saved)


def tap(out: Tensor, receive: Receive, *saved: Tensor) -> Tensor:
    """`out`, with `receive` called when the backward pass reaches it."""
    tapped: Tensor = _apply(_Tap)(out, _ANCHOR, receive, *saved)
    return tapped


class _Copies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, tensor: Tensor, shape: tuple[int, ...], receive: Receive) -> Tensor:
        ctx.receive = receive
        return tensor.expand(shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_second_derivatives()
        ctx.receive((), grad)
        return None, None, None, None


def copies(tensor: Tensor, shape: tuple[int, ...], receive: Receive) -> Tensor:
    """`tensor` expanded to `shape`; `receive` gets the gradient of the expanded tensor, not its sum."""
    expanded: Tensor = _apply(_Copies)(_ANCHOR, tensor.detach(), shape, receive)
    return expanded


def _refuse_second_derivatives() -> None:
    """Raise because second derivatives would bypass the tap. This check is cheaper and earlier than ``once_differentiable``."""
    if torch.is_grad_enabled():
        raise PrivetError(
            "A backward pass with create_graph=True went through the model: the engine has no second derivatives. Take a "
            "gradient penalty inside engine.paused()."
        )


def _apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` without its support for ``torch.func``, which takes longer than the tap itself."""
    applied: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return applied


Rule = Callable[["Operation"], Any]

RULES: dict[str, Rule] = {}
"""The rule for each operation of torch, by the operation's name."""
REFUSED: dict[str, str] = {}
"""Why an operation on records is refused even if none of its parameters is trained, by the operation's name."""


def operation(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for torch operations. It returns the operation's result, recorded with ``op.record``."""

    def register(rule: Rule) -> Rule:
        TRUSTED.update(dict.fromkeys(taken_on_trust(", ".join(names), rule)))
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
        """Where the records are in a batched tensor; raises if that is not known."""
        return self.recorder.known_stride(tensor, self.name)

    def stride_after(self, source: Tensor, out: Tensor) -> int:
        """Where the records are in `out`, which this operation computed from `source`."""
        stride = self.stride(source)
        moved = Moved(self.args, self.kwargs, source, stride, ((source, stride),), out, self.records)
        after = follow(self.name, moved)
        if after == UNKNOWN or position(out.shape, after, self.records) is None:
            raise self.recorder.refusal(f"the records cannot be followed through `{self.name}`")
        return after

    def record(self, out: Tensor, use: Use, *saved: Tensor, stride: int | None = None) -> Tensor:
        """`out`, tapped: in the backward pass `use` receives the saved tensors and the gradient of `out`.

        `stride` says where the records are in `out`, if the rule knows it already.
        """
        tapped = self.recorder.record(out, use, saved)
        if stride is not None:
            self.recorder.set_stride(tapped, stride)
        return tapped

    def receiver(self, use: Use) -> Receive:
        """The function that an ``autograd.Function`` calls in its backward pass to give `use` its inputs and gradient."""
        return self.recorder.receiver(use)

    def copies(self, tensor: Tensor, shape: tuple[int, ...], use: Use) -> Tensor:
        """`tensor` expanded to `shape`; in the backward pass `use` receives the gradient of the copies."""
        return self.recorder.copies(tensor, shape, use)

    def derive(self, compute: Callable[[], Tensor], *sources: Tensor) -> Tensor:
        """A tensor computed from tracked tensors alone; it can be in a slot like a parameter."""
        with torch.enable_grad():
            tensor = compute()
        self.recorder.note_derived(tensor, sources)
        return tensor

    def replaced(self, func: Callable[..., Any], args: tuple[Any, ...], **kwargs: Any) -> Operation:
        """The same operation written as another one."""
        name: str = getattr(func, "__name__", self.name)
        return Operation(self.recorder, name, func, args, kwargs)

    def generic(self) -> Any:
        """Handle an operation that has no rule: per-example gradients by ``torch.func``."""
        from privet.gradients.rules.generic import generic

        return generic(self)


PerExample = Callable[[Any, tuple[Tensor, ...], Tensor], dict[str, Tensor]]
"""``(module, inputs, grad_output) -> {parameter name: per-example gradients}``, records in front."""

MODULE_RULES: dict[type[nn.Module], OwnRule] = {}


def rule(kind: type[nn.Module]) -> Callable[[PerExample], PerExample]:
    """Register the per-example gradients of a module class:

        @privet.gradients.rule(Scale)
        def scale(module, inputs, grad_output):
            return {"factor": (inputs[0] * grad_output).flatten(1).sum(1)}

    The function returns, for every trainable parameter of the module, the gradient of each record's loss: a tensor of
    shape ``(records, *parameter.shape)``. The module's output must be one tensor with the records in front.

    Neither the module nor the rule is followed, so a statement about a model that uses the rule assumes that it is right: the
    module keeps records apart, and the rule returns each record's own gradient. Register it before `make_private`. With
    ``isolation="each"`` autograd computes the gradient, and the rule is not used.
    """

    def register(per_example: PerExample) -> PerExample:
        MODULE_RULES[kind] = OwnRule(kind.__name__, per_example)
        return per_example

    return register


def rule_for(module: nn.Module) -> OwnRule | None:
    """The rule that was registered for the class of a module, if any of its parameters is trained."""
    own = next((MODULE_RULES[kind] for kind in type(module).__mro__ if kind in MODULE_RULES), None)
    return own if own is not None and any(p.requires_grad for p in module.parameters()) else None


def trusted_rules(model: nn.Module) -> tuple[str, ...]:
    """What a statement about the model assumes: that the rules of other packages, which nobody has proved, are right."""
    own = filter(None, map(rule_for, model.modules()))
    return tuple(dict.fromkeys([*TRUSTED, *(text for each in own for text in each.trusted)]))


@dataclass(frozen=True)
class OwnRule:
    name: str
    per_example: PerExample

    @property
    def trusted(self) -> tuple[str, ...]:
        """The assumption that the rule is right."""
        return taken_on_trust(self.name, self.per_example)

    def record(self, recorder: Recorder, module: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> Tensor:
        slots = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not slots:
            return out
        tensors = tuple(t for t in inputs if isinstance(t, Tensor))
        use = Own(recorder.module, recorder.records, dict(slots))
        use.rule, use.owner = self, module
        recorder.set_stride_like(out, tensors)
        tapped = recorder.record(out, use, tensors)
        recorder.set_stride_like(tapped, tensors)
        return tapped


class Own(Use):
    rule: OwnRule
    owner: nn.Module

    @property
    def kind(self) -> str:
        return f"{self.rule.name} (own rule)"

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: MemoryBudget) -> None:
        formed = self.rule.per_example(self.owner, saved, grad)
        for name, tensor in self.slots.items():
            expected = (self.records, *tensor.shape)
            if name not in formed or tuple(formed[name].shape) != expected:
                found = tuple(formed[name].shape) if name in formed else "nothing"
                raise PrivetError(
                    f"The rule for {self.rule.name} (module '{self.module}') returned {found} for '{name}'; "
                    f"it must return per-example gradients of shape {expected}."
                )
        budget.take(self.instance_bytes())
        self.hold({name: formed[name] for name in self.slots})
