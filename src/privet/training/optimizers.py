"""Optimizers that hold the right parameters, and step on nothing but private gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim import Optimizer

from privet.errors import InputError

Hook = Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]

_GUARDS: WeakKeyDictionary[Optimizer, ExitStack] = WeakKeyDictionary()
"""The hooks of the plan that each optimizer belongs to."""


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


def guard(optimizers: Iterable[Optimizer], before: Hook, after: Hook) -> None:
    """Run `before` and `after` around every step from now on, in the place of an earlier plan's."""
    for optimizer in optimizers:
        unguard([optimizer])
        hooks = _GUARDS[optimizer] = ExitStack()
        hooks.callback(optimizer.register_step_pre_hook(before).remove)
        hooks.callback(optimizer.register_step_post_hook(after).remove)


def unguard(optimizers: Iterable[Optimizer]) -> None:
    for optimizer in optimizers:
        if optimizer in _GUARDS:
            _GUARDS.pop(optimizer).close()
