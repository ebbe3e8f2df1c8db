"""Optimizers that step on private gradients only, Adam corrected for the noise, and an average of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from privet.errors import InputError, PrivetError

Hook = Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]

_GUARDS: WeakKeyDictionary[Optimizer, ExitStack] = WeakKeyDictionary()
"""For each optimizer, the hooks of the plan that it belongs to."""
_LAST: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
"""For each optimizer, the hook that must be the last one before its step."""
_PLANS: WeakKeyDictionary[Any, _Plan] = WeakKeyDictionary()
"""The plans that train parameters privately, by their owners."""
_LISTENING: list[Any] = []
"""The hook on all optimizers, after the first plan was made."""


def check_optimizers(optimizers: Iterable[Optimizer], parameters: Mapping[str, nn.Parameter]) -> None:
    """Raise unless the optimizers together hold exactly the trainable parameters."""
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
    """Run `before` and `after` around every step from now on, in place of the hooks of an earlier plan.

    As long as `owner` lives, a step of any other optimizer on the same parameters raises.
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
    """Raise if another hook would run between the private gradient and the step that uses it."""
    hooks = list(optimizer._optimizer_step_pre_hooks)
    if optimizer in _LAST and hooks and hooks[-1] != _LAST[optimizer]:
        raise PrivetError(
            "A hook that was registered on the optimizer after make_private would run between the private gradient and its "
            "use: register it before make_private."
        )


def is_known_to_step(optimizer: Optimizer) -> bool:
    """Whether a step runs code of torch and of this library only."""
    own = str(type(optimizer).step.__module__).startswith(("torch.optim.", "privet."))
    return own and len(optimizer._optimizer_step_post_hooks) == 1


def unguard(optimizers: Iterable[Optimizer]) -> None:
    """Remove the hooks of `guard`."""
    for optimizer in optimizers:
        if optimizer in _GUARDS:
            _GUARDS.pop(optimizer).close()


def release(owner: object) -> None:
    """End the plan of `owner`: other optimizers may step on its parameters."""
    _PLANS.pop(owner, None)


def is_planned(parameters: Iterable[nn.Parameter]) -> bool:
    """Whether a plan that has begun and has not ended holds one of the parameters."""
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


class CorrectedAdam(Optimizer):
    """Adam that subtracts the variance of the noise from its second moment (DP-AdamBC, Tang et al. 2024).

    The square of a private gradient contains the variance of the noise, which is usually the larger part: Adam's steps become
    those of SGD with momentum. The variance is public, so it can be subtracted:
    ``m / (sqrt(max(v - noise, floor * noise)) + eps)``, all three bias-corrected. Without noise this is Adam.

    Formal guarantees: it is post-processing of the private gradient and public numbers.

    Args:
        params, lr, betas, eps, weight_decay: as in ``torch.optim.Adam``.
        floor: the least second moment, as a fraction of the variance of the noise: a smaller signal cannot be seen. The
            variance of v itself is about ``(1 - betas[1]) * noise**2``, so a floor below a few hundredths has no meaning.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        floor: float = 0.05,
    ) -> None:
        if not (lr >= 0 and eps >= 0 and floor >= 0 and weight_decay >= 0 and all(0 <= beta < 1 for beta in betas)):
            raise InputError("lr, eps, floor and weight_decay must not be negative, and betas must lie in [0, 1).")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "floor": floor})
        self._deviations: Mapping[Tensor, Tensor | float] = {}

    def expect_noise(self, deviations: Mapping[Tensor, Tensor | float]) -> None:
        """Set the standard deviation of the noise in each parameter's gradient for the next step; `make_private` calls this."""
        self._deviations = deviations

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)
        self._deviations = {}
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["mean"], state["square"], state["noise"] = (torch.zeros_like(parameter) for _ in range(3))
        state["step"] += 1
        first, second = group["betas"]
        corrected_first, corrected_second = 1 - first ** state["step"], 1 - second ** state["step"]
        if group["weight_decay"]:
            gradient = gradient.add(parameter, alpha=group["weight_decay"])
        state["mean"].lerp_(gradient, 1 - first)
        state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        # Averaged in the same way as the squares: the noise may change from step to step.
        state["noise"].mul_(second).add_((1 - second) * self._deviations.get(parameter, 0.0) ** 2)
        noise = state["noise"] / corrected_second
        moment = (state["square"] / corrected_second).sub_(noise).maximum(group["floor"] * noise)
        parameter.addcdiv_(state["mean"], moment.sqrt_().add_(group["eps"]), value=-group["lr"] / corrected_first)


class Average:
    """An exponential moving average of the parameters, without a bias toward the first ones. It is less noisy than the last step.

        average = Average(model, decay=0.95)
        ...                                  # in the loop, after each optimizer.step(): average.update()
        with average.applied():              # inside, the model has the averaged parameters
            evaluate(model)

    Formal guarantees: it is post-processing of the released parameters, and costs nothing.

    Args:
        model: its trainable parameters are averaged; buffers and frozen parameters are not.
        decay: the fraction of the average that is kept in each step: it averages over about ``1 / (1 - decay)`` steps.
            Early steps have equal weight until there are that many: ``min(decay, (1 + t) / (10 + t))``.
    """

    def __init__(self, model: nn.Module, decay: float = 0.99) -> None:
        if not 0 <= decay < 1:
            raise InputError(f"The decay of an average must lie in [0, 1), and is {decay}.")
        self.decay = decay
        self.updates = 0
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.values: dict[str, Tensor] = {name: p.detach().clone() for name, p in self._parameters.items()}
        self.writing: Callable[[], AbstractContextManager[None]] = nullcontext
        """What surrounds a write into the model; a private loop allows it after its body has read a value of the records."""

    @torch.no_grad()
    def update(self) -> None:
        """Include the current parameters: call this once after each step."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, parameter in self._parameters.items():
            self.values[name].lerp_(parameter, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averaged parameters; afterward, its own again."""
        own = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        self._put(self.values)
        try:
            yield
        finally:
            self._put(own)

    def keep(self) -> None:
        """Give the averaged parameters to the model permanently: call this at the end of training."""
        self._put(self.values)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "values": dict(self.values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        for name, value in self.values.items():
            value.copy_(state["values"][name])

    @torch.no_grad()
    def _put(self, values: dict[str, Tensor]) -> None:
        with self.writing():
            for name, parameter in self._parameters.items():
                parameter.copy_(values[name])
