"""How a loss joins its records: by their sum or their mean. Read off the graph that autograd built, never guessed."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from privet.errors import PrivetError

Reduction = Literal["mean", "sum"]


class UnknownReductionError(PrivetError):
    """The reduction of the loss cannot be read off its graph."""


_STATE_IT = (
    "State how the loss joins its records with loss_reduction='mean' or 'sum': the sum over records of each record's own "
    "loss, divided by their number or not."
)
_REDUCTIONS: dict[int, Reduction] = {1: "mean", 2: "sum"}
_PASSING = {"ViewBackward0", "SqueezeBackward0", "UnsqueezeBackward0", "ReshapeAliasBackward0", "ToCopyBackward0"}
_SAMPLED = 8
_CALLS = {torch.autograd.backward.__code__: "tensors", torch.autograd.grad.__code__: "outputs"}
"""What starts a backward pass, and the argument that holds the loss."""


@dataclass
class SampledOutput:
    """A few rows of the model's output with their gradients: enough to see what a cross-entropy divided by."""

    logits: Tensor
    gradients: Tensor | None = None

    @classmethod
    def of(cls, out: Tensor) -> SampledOutput:
        return cls(_sampled_rows(out.detach()).clone())

    def receive(self, gradient: Tensor) -> None:
        self.gradients = _sampled_rows(gradient)

    def divisor(self) -> float | None:
        """What a cross-entropy of the output divided each row's loss by, or None if these are not its gradients."""
        if self.gradients is None or self.logits.element_size() < 4:
            return None  # in half precision a divisor of 600 and one of 599 look alike
        # In plain Python: for one small row, a call of any library takes longer than the work.
        rows = self.gradients.tolist()
        told = min((i for i, row in enumerate(rows) if math.isfinite(sum(row))), key=lambda i: min(rows[i]), default=-1)
        if told < 0 or not any(rows[told]):
            return None
        # The gradient of a row is (softmax - onehot) / divisor; the row furthest from its target says it best.
        gradient, logits = rows[told], self.logits[told].tolist()
        top = max(logits)
        powers = [math.exp(logit - top) for logit in logits]
        whole = sum(powers)
        errors = [power / whole for power in powers]
        errors[gradient.index(min(gradient))] -= 1
        size = max(map(abs, errors))
        divisor = sum(map(abs, errors)) / sum(map(abs, gradient))
        furthest = max(abs(g * divisor - error) for g, error in zip(gradient, errors, strict=True))
        return divisor if furthest <= 1e-3 * size else None


def _sampled_rows(out: Tensor) -> Tensor:
    rows = out if out.ndim == 2 else (out.movedim(1, -1) if out.ndim > 3 else out).flatten(0, -2)
    return rows[:: max(len(rows) // _SAMPLED, 1)]


def reduction_of(loss: Tensor, records: int, output: SampledOutput | None) -> Reduction:
    """The reduction of a scalar loss, or of a vector of losses (then "sum": backward adds them up)."""
    if loss.numel() != 1 or loss.grad_fn is None:
        return "sum"
    return _of_node(loss.grad_fn, records, output)


def _of_node(node: Any, records: int, output: SampledOutput | None) -> Reduction:
    name: str = node.name()
    if name in _PASSING:
        return _of_node(node.next_functions[0][0], records, output)
    if name.startswith("MeanBackward"):
        return "mean"
    if name.startswith("SumBackward"):
        return "sum"
    saved = getattr(node, "_saved_reduction", None)
    if saved in _REDUCTIONS:
        if name.startswith("NllLoss") and saved == 1:
            _refuse_data_dependent_mean(node, records, output)
        return _REDUCTIONS[saved]
    if name in ("AddBackward0", "SubBackward0"):
        found = {_of_node(parent, records, output) for parent, _ in node.next_functions if parent is not None}
        if len(found) == 1:
            return found.pop()
    raise UnknownReductionError(f"The loss ends in {name}, from which its reduction cannot be read. {_STATE_IT}")


def _refuse_data_dependent_mean(node: Any, records: int, output: SampledOutput | None) -> None:
    """A cross-entropy's mean divides by the weights of the targets that are not ignored: other records decide it."""
    way_out = (
        "Use reduction='none', average over each record's own targets, then take the mean over the records; "
        "or state loss_reduction if every target counts."
    )
    if _has_class_weights(node):
        raise UnknownReductionError(f"A class-weighted mean divides by a number that other records decide. {way_out}")
    shape = node.next_functions[0][0]._input_metadata[0].shape
    targets = math.prod(shape) // shape[1 if len(shape) > 1 else 0]
    divisor = output.divisor() if output is not None else None
    if divisor is None or targets % records:
        raise UnknownReductionError(f"It cannot be seen whether the cross-entropy ignores targets. {way_out}")
    if round(divisor) != targets and abs(divisor - targets) > 1e-4 * targets:
        raise UnknownReductionError(
            f"The cross-entropy divides by {divisor:.1f} for {targets} targets: some are ignored (ignore_index), and how "
            f"many is decided by all records together. {way_out}"
        )


def _has_class_weights(node: Any) -> bool:
    try:
        return node._saved_weight is not None
    except RuntimeError:  # it was there, and is freed by now
        return True


def loss_being_differentiated() -> Tensor:
    """The tensor on which the running backward pass was called, from inside that pass."""
    frame = sys._getframe(1)
    while frame is not None:
        argument = _CALLS.get(frame.f_code)
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
