"""Adam whose second moment is corrected for the noise (DP-AdamBC, Tang et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from privet.errors import InputError


class CorrectedAdam(Optimizer):
    """Adam that subtracts the noise's variance from its second moment.

    In the square of a private gradient there is the variance of the noise beside the square of the gradient, and it is
    usually the larger part: Adam's steps become those of SGD with momentum. That variance is public, so it can be taken off:
    ``m / (sqrt(max(v - noise, floor * noise)) + eps)``, all three bias-corrected. Without noise it is Adam.

    Formal guarantees: it is post-processing of the private gradient and public numbers.

    Args:
        params, lr, betas, eps, weight_decay: as in ``torch.optim.Adam``.
        floor: the least second moment, as a part of the noise's variance: below it there is no signal to be seen. The
            variance of v itself is about ``(1 - betas[1]) * noise**2``, so a floor under a few hundredths says nothing.
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
        """The standard deviation of the noise in the gradient of each parameter, in the next step; `make_private` says it."""
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
        # Averaged as the squares are: the noise may change from step to step.
        state["noise"].mul_(second).add_((1 - second) * self._deviations.get(parameter, 0.0) ** 2)
        noise = state["noise"] / corrected_second
        moment = (state["square"] / corrected_second).sub_(noise).maximum(group["floor"] * noise)
        parameter.addcdiv_(state["mean"], moment.sqrt_().add_(group["eps"]), value=-group["lr"] / corrected_first)
