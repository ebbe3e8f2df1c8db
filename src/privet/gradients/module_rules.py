"""Rules that users register for modules of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from privet.gradients.use import Budget, Use

if TYPE_CHECKING:
    from privet.gradients.recorder import Recorder

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
    """

    def register(per_example: PerExample) -> PerExample:
        MODULE_RULES[kind] = OwnRule(kind.__name__, per_example)
        return per_example

    return register


@dataclass(frozen=True)
class OwnRule:
    name: str
    per_example: PerExample

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

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: Budget) -> None:
        from privet.errors import PrivetError

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
