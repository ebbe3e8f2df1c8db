"""A naive engine that trusts every operation, to show that a trap bites: whoever asks no questions is wrong on it.

The gradient of "record i" is what the input and the output gradient of row i say, for each linear layer, as hooks see them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.harness import Trap, clipped_sum, fresh, norm_of, tensors_of


def naive_sum(trap: Trap, changed: int | None, bound: float) -> Tensor:
    """The clipped sum of the linear layers' gradients, one for each row of the batch."""
    assert trap.loss is not None
    model, batch = fresh(trap), tensors_of(trap, changed)
    records, seen = len(batch[0]), []

    def after(module: nn.Module, inputs: Any, out: Tensor) -> None:
        given = inputs[0].detach()
        out.register_hook(lambda gradient: seen.append((given, gradient)))

    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(after)
    torch.manual_seed(11)
    loss = trap.loss(model, batch)
    (loss * records if loss.numel() == 1 else loss.sum()).backward()
    rows = [torch.zeros(records, 0)]
    for given, gradient in seen:
        if len(given) == records == len(gradient):
            given, gradient = (
                given.reshape(records, -1, given.shape[-1]),
                gradient.reshape(records, -1, gradient.shape[-1]),
            )
            rows += [torch.einsum("bti,bto->boi", given, gradient).flatten(1), gradient.sum(1)]
    return clipped_sum(list(torch.cat(rows, 1).double().nan_to_num(nan=math.inf)), bound)


def naive_change(trap: Trap) -> float:
    """How far one record moves the naive engine's clipped sum, in C."""
    bound = norm_of(trap)
    whole = naive_sum(trap, None, bound)
    return max(float((whole - naive_sum(trap, i, bound)).norm()) / bound for i in trap.left_out)
