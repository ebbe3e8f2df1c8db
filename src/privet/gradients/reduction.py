"""How a loss joins its records: by their sum or their mean. Read off the graph that autograd built, never guessed."""

from __future__ import annotations

import sys
from typing import Any, Literal

import torch
from torch import Tensor

from privet.errors import PrivetError

Reduction = Literal["mean", "sum"]


class UnknownReductionError(PrivetError):
    """The reduction of the loss cannot be read off its graph."""


_STATE_IT = (
    "State how the loss joins its records: loss_reduction='mean' or 'sum' (the sum over records of each record's own loss, "
    "divided by their number or not)."
)
_REDUCTIONS: dict[int, Reduction] = {1: "mean", 2: "sum"}
_PASSING = {
    "ViewBackward0",
    "SqueezeBackward0",
    "UnsqueezeBackward0",
    "ReshapeAliasBackward0",
    "ToCopyBackward0",
    "AliasBackward0",
}


def reduction_of(loss: Tensor) -> Reduction:
    """The reduction of a scalar loss, or of a vector of losses (then "sum": backward adds them up)."""
    if loss.numel() != 1 or loss.grad_fn is None:
        return "sum"
    return _of_node(loss.grad_fn)


def _of_node(node: Any) -> Reduction:
    name: str = node.name()
    if name in _PASSING:
        return _of_node(node.next_functions[0][0])
    if name.startswith("MeanBackward"):
        return "mean"
    if name.startswith("SumBackward"):
        return "sum"
    if name.startswith("NllLoss"):
        _refuse_ignored_targets(node)
    saved = getattr(node, "_saved_reduction", None)
    if saved in _REDUCTIONS:
        return _REDUCTIONS[saved]
    if name in ("AddBackward0", "SubBackward0"):
        found = {_of_node(parent) for parent, _ in node.next_functions if parent is not None}
        if len(found) == 1:
            return found.pop()
    raise UnknownReductionError(f"The loss ends in {name}, from which its reduction cannot be read. {_STATE_IT}")


def _refuse_ignored_targets(node: Any) -> None:
    """A mean over the targets that are not ignored divides by a number that other records decide."""
    if getattr(node, "_saved_reduction", None) != 1:
        return
    if node._saved_weight is not None:
        raise UnknownReductionError(
            "A class-weighted mean divides by the weights of the whole batch's targets, so that one record changes the "
            "gradients of all others. Use reduction='none', and average each record's own losses."
        )
    target: Tensor = node._saved_target
    if (target == node._saved_ignore_index).any():
        raise UnknownReductionError(
            "The mean over targets that are not ignored (ignore_index) divides by a number that other records decide. Use "
            "reduction='none', average over each record's own targets, then take the mean over the records."
        )


def loss_being_differentiated() -> Tensor:
    """The tensor on which the running backward pass was called, from inside that pass."""
    codes = {torch.autograd.backward.__code__: "tensors", torch.autograd.grad.__code__: "outputs"}
    frame = sys._getframe(1)
    while frame is not None:
        argument = codes.get(frame.f_code)
        if argument is not None:
            roots = frame.f_locals[argument]
            roots = [roots] if isinstance(roots, Tensor) else list(roots)
            if len(roots) == 1:
                found: Tensor = roots[0]
                return found
            raise UnknownReductionError(f"Several losses were differentiated at once. {_STATE_IT}")
        if frame.f_back is None:
            break
        frame = frame.f_back
    raise UnknownReductionError(f"The call of backward cannot be seen from here. {_STATE_IT}")
