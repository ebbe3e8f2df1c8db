"""The exponential moving average of a model's parameters: less noise than the last step, and no further cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from privet.errors import InputError


class Average:
    """An exponential moving average of the parameters, started without a bias toward the first ones.

        average = Average(model, decay=0.95)
        ...                                  # in the loop, after each optimizer.step(): average.update()
        with average.applied():              # inside, the model has the averaged parameters
            evaluate(model)

    Formal guarantees: it is post-processing of the released parameters, and costs nothing.

    Args:
        model: its trainable parameters are averaged; buffers and frozen parameters are the model's own.
        decay: how much of the average stays in each step. The average over the last ``1 / (1 - decay)`` steps, about;
            early steps weigh alike until there are so many: ``min(decay, (1 + t) / (10 + t))``.
    """

    def __init__(self, model: nn.Module, decay: float = 0.99) -> None:
        if not 0 <= decay < 1:
            raise InputError(f"The decay of an average must lie in [0, 1), and is {decay}.")
        self.decay = decay
        self.updates = 0
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.values: dict[str, Tensor] = {name: p.detach().clone() for name, p in self._parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the parameters as they are now: once after each step."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, parameter in self._parameters.items():
            self.values[name].lerp_(parameter, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the model has the averaged parameters; afterwards, its own again."""
        own = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
        self._put(self.values)
        try:
            yield
        finally:
            self._put(own)

    def keep(self) -> None:
        """Give the averaged parameters to the model for good: at the end of training."""
        self._put(self.values)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "values": dict(self.values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        for name, value in self.values.items():
            value.copy_(state["values"][name])

    @torch.no_grad()
    def _put(self, values: dict[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(values[name])
