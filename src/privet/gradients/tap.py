"""Taps: identity nodes in the autograd graph that hand the gradient flowing through them to the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from privet.errors import PrivetError

Receive = Callable[[tuple[Tensor, ...], Tensor], None]
"""Called in the backward pass with what was saved and the gradient of the tapped tensor."""

_ANCHOR = torch.empty((), requires_grad=True)
"""Makes a tapped tensor part of the graph even where no input requires a gradient, so that the first layer of a network
costs no gradient of its input. It never receives a gradient itself."""


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, _anchor: Tensor, receive: Receive, *saved: Tensor) -> Tensor:
        # Through save_for_backward, so that activation checkpointing applies to what we keep as well, and so that
        # autograd notices when somebody changes it in place.
        ctx.save_for_backward(*saved)
        ctx.receive = receive
        # An alias and not a view: an in-place activation after it stays legal.
        return out.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_second_derivatives()
        saved = ctx.saved_tensors  # once: activation checkpointing recomputes them at this point
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
    """A gradient of a gradient would not come by here. Sooner said, and cheaper, than by ``once_differentiable``."""
    if torch.is_grad_enabled():
        raise PrivetError(
            "A backward pass with create_graph=True went through the model: the engine has no second derivatives. Take a "
            "gradient penalty inside engine.paused()."
        )


def _apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` without what it does for ``torch.func``, which takes longer than the tap itself."""
    applied: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return applied
