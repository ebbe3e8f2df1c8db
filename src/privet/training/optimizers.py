"""Optimizers that hold the right parameters, and step on nothing but private gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from privet.errors import InputError, PrivetError

Hook = Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]

_GUARDS: WeakKeyDictionary[Optimizer, ExitStack] = WeakKeyDictionary()
"""The hooks of the plan that each optimizer belongs to."""
_LAST: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
"""The hook of each optimizer that must be the last one before its step."""
_PLANS: WeakKeyDictionary[Any, _Plan] = WeakKeyDictionary()
"""Who trains which parameters privately."""
_LISTENING: list[Any] = []
"""The hook on all optimizers, once there is a plan."""


def check_optimizers(optimizers: Iterable[Optimizer], parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise unless the optimizers together hold the parameters, and no others that are trained."""
    held = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    known = {id(p) for p in held}
    missing = [name for name, p in parameters.items() if id(p) not in known]
    if missing:
        raise InputError(
            f"The optimizer does not hold the trainable parameter '{missing[0]}': give it all of them, or freeze "
            f"the others with requires_grad_(False)."
        )
    if {id(p) for p in held if p.requires_grad} - {id(p) for p in parameters.values()}:
        raise InputError(
            "The optimizer holds trainable parameters of another model: give each model its own optimizer, and "
            "make_private all models that learn from the records."
        )


def guard(owner: object, optimizers: Sequence[Optimizer], before: Hook, after: Hook) -> None:
    """Run `before` and `after` around every step from now on, in the place of an earlier plan's.

    A step of any other optimizer on the same parameters raises, as long as `owner` lives.
    """
    for optimizer in optimizers:
        unguard([optimizer])
        hooks = _GUARDS[optimizer] = ExitStack()
        handle = optimizer.register_step_pre_hook(before)
        _LAST[optimizer] = handle.id
        hooks.callback(handle.remove)
        hooks.callback(optimizer.register_step_post_hook(after).remove)
    held = {id(p): ref(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    _PLANS[owner] = _Plan({id(optimizer) for optimizer in optimizers}, held)
    if not _LISTENING:
        _LISTENING.append(register_optimizer_step_pre_hook(_refuse_others))


def check_last_hook(optimizer: Optimizer) -> None:
    """Raise where something else would run between the private gradient and the step that uses it."""
    hooks = list(optimizer._optimizer_step_pre_hooks)
    if optimizer in _LAST and hooks and hooks[-1] != _LAST[optimizer]:
        raise PrivetError(
            "A hook that was registered on the optimizer after make_private would run between the private gradient and its "
            "use: register it before make_private."
        )


def unguard(optimizers: Iterable[Optimizer]) -> None:
    for optimizer in optimizers:
        if optimizer in _GUARDS:
            _GUARDS.pop(optimizer).close()


def release(owner: object) -> None:
    """The plan of `owner` is over: other optimizers may step on its parameters."""
    _PLANS.pop(owner, None)


def is_planned(parameters: Iterable[nn.Parameter]) -> bool:
    """Whether a plan that has begun and is not over holds one of the parameters."""
    given = {id(p): p for p in parameters}
    return any(plan.holds(given) for owner, plan in _PLANS.items() if getattr(owner, "steps_done", 0))


@dataclass(frozen=True, eq=False)
class _Plan:
    optimizers: set[int]
    held: dict[int, ref[Tensor]]

    def holds(self, parameters: Mapping[int, Tensor]) -> bool:
        return any(key in self.held and self.held[key]() is p for key, p in parameters.items())


def _refuse_others(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for owner, plan in list(_PLANS.items()):
        if id(optimizer) not in plan.optimizers and not getattr(owner, "is_paused", False):
            held = {id(p): p for group in optimizer.param_groups for p in group["params"]}
            if plan.holds(held):
                raise PrivetError(
                    "Another optimizer steps on parameters that are trained privately, outside the clipped gradient: give "
                    "all optimizers to make_private, or step inside `with private.paused()` on public data."
                )
