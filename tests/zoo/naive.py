"""A naive engine that trusts every operation, to show that a trap bites: whoever asks no questions is wrong on it.

The gradient of "record i" is what the input and the output gradient of row i say, for each linear layer, as hooks see them.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.harness import Trap, clipped_sum, fresh, norm_of, tensors_of


def naive_rows(trap: Trap, changed: int | None) -> list[Tensor]:
    """The gradients of the linear layers, one for each row of the batch."""
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = trap.loss(model, batch)
        (loss * records if loss.numel() == 1 else loss.sum()).backward()
    rows = [torch.zeros(records, 0)]
    for given, gradient in seen:
        if len(given) == records == len(gradient):
            a = given.reshape(records, -1, given.shape[-1])
            g = gradient.reshape(records, -1, gradient.shape[-1])
            rows += [torch.einsum("bti,bto->boi", a, g).flatten(1), g.sum(1)]
    return list(torch.cat(rows, 1).detach().double().nan_to_num(nan=math.inf))


def _changes(trap: Trap, bounds: list[float]) -> list[float]:
    whole, others = naive_rows(trap, None), [naive_rows(trap, i) for i in trap.left_out]
    return [max(float((clipped_sum(whole, c) - clipped_sum(other, c)).norm()) / c for other in others) for c in bounds]


def naive_change(trap: Trap) -> float:
    """How far one record moves the naive engine's clipped sum, in C."""
    return _changes(trap, [norm_of(trap)])[0]


def worst_norm(trap: Trap) -> float:
    """The C at which the naive engine is most wrong."""
    norms = sorted(float(row.norm()) for i in (None, *trap.left_out) for row in naive_rows(trap, i))
    bounds = [0.01, *(n for n in norms[:: max(len(norms) // 8, 1)] if 1e-4 < n < 1e4)]
    found = _changes(trap, bounds)
    return bounds[found.index(max(found))]
