"""The oracle of the gradient tests: a Python loop over single examples in float64, and the comparison with it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from privet.gradients import Engine

Loss = Callable[[Tensor], Tensor]
TOLERANCE = 2e-5


def projected(out: Tensor) -> Tensor:
    """A loss for each row: a fixed random projection of its output, bent so that gradients differ between examples."""
    flat = out.reshape(out.shape[0], -1)
    direction = torch.sin(torch.arange(1, flat.shape[1] + 1, dtype=torch.float64) * 1.7).to(flat.dtype)
    return torch.tanh(flat @ direction / flat.shape[1] ** 0.5) + 0.5 * (flat @ direction / flat.shape[1] ** 0.5)


def _double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def loop(model: nn.Module, inputs: tuple[Tensor, ...], losses: Loss = projected) -> dict[str, Tensor]:
    """Per-example gradients, one example at a time, in float64."""
    double = copy.deepcopy(model).double()
    parameters = {name: p for name, p in double.named_parameters() if p.requires_grad}
    rows = []
    for i in range(inputs[0].shape[0]):
        out = double(*(_double(x)[i : i + 1] for x in inputs))
        double.zero_grad(set_to_none=True)
        losses(out).sum().backward()
        rows.append([torch.zeros_like(p) if p.grad is None else p.grad for p in parameters.values()])
    return {name: torch.stack([row[i] for row in rows]) for i, name in enumerate(parameters)}


def check(
    model: nn.Module, *inputs: Tensor, losses: Loss = projected, tolerance: float = TOLERANCE, **engine: Any
) -> Engine:
    """Compare norms, instances and weighted sums of the engine with the loop; with mean and with sum of the losses."""
    expected = loop(model, inputs, losses)
    scale = max(float(g.abs().max()) for g in expected.values()) + 1e-30
    weights = torch.linspace(0.1, 1.0, inputs[0].shape[0], dtype=torch.float64)
    listening = Engine(model, **engine)
    for reduce in (torch.mean, torch.sum):
        with listening:
            reduce(losses(model(*inputs))).backward()
            gradients = listening.gradients()
            norms, summed, instances = (
                gradients.squared_norms(),
                gradients.weighted_sum(weights),
                gradients.instantiate(),
            )
        assert set(norms) == set(expected)
        for name, oracle in expected.items():
            flat = oracle.reshape(len(oracle), -1)
            torch.testing.assert_close(
                norms[name].sqrt(),
                flat.norm(dim=1),
                atol=tolerance * scale * flat.shape[1] ** 0.5,
                rtol=1e-3,
                msg=lambda m, n=name: f"norm of {n}: {m}",
            )
            torch.testing.assert_close(
                instances[name].double(),
                oracle,
                atol=tolerance * scale,
                rtol=1e-3,
                msg=lambda m, n=name: f"instances of {n}: {m}",
            )
            torch.testing.assert_close(
                summed[name].double(),
                torch.einsum("b,b...->...", weights, oracle),
                atol=tolerance * scale * len(weights),
                rtol=1e-3,
                msg=lambda m, n=name: f"sum of {n}: {m}",
            )
        assert all(p.grad is None for p in model.parameters())
    return listening
