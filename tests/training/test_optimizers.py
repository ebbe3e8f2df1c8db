"""Every first-order method is an optimizer of torch's that is given the private gradient; Adam corrected for the noise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import privet
from privet.errors import InputError
from privet.privacy import Schedule
from privet.training import CorrectedAdam, Performance
from tests.training.conftest import flat, make, network, run

OPTIMIZERS = {
    "momentum": lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9),
    "nesterov": lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9, nesterov=True),
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "corrected": CorrectedAdam,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizer_sees_the_private_gradient_and_nothing_else(name: str) -> None:
    """Replayed on a copy: what the optimizer was given as gradients explains every parameter."""
    model, optimizer, private = make(OPTIMIZERS[name], performance=Performance(physical_batch_size=11))
    copy = network()
    replay = OPTIMIZERS[name](copy.parameters(), 0.1)
    given: list[Any] = []

    def note(*_: Any) -> None:
        if next(model.parameters()).grad is not None:
            given.append([p.grad.clone() for p in model.parameters()])

    optimizer.register_step_post_hook(note)
    run(model, optimizer, private)
    assert len(given) == 6
    for gradients in given:
        for parameter, gradient in zip(copy.parameters(), gradients, strict=True):
            parameter.grad = gradient
        if isinstance(replay, CorrectedAdam):
            replay.expect_noise(dict.fromkeys(copy.parameters(), 1.0 / 40))
        replay.step()
    assert torch.equal(flat(model), flat(copy))


def test_without_noise_it_is_adam() -> None:
    models = [network(), network()]
    pair = [CorrectedAdam(models[0].parameters(), 0.05), torch.optim.Adam(models[1].parameters(), 0.05)]
    for step in range(20):
        x = torch.randn(8, 5, generator=torch.Generator().manual_seed(step))
        for model, optimizer in zip(models, pair, strict=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(flat(models[0]), flat(models[1]), rtol=1e-4, atol=1e-6)


def test_the_noise_is_taken_off_the_second_moment() -> None:
    """A constant gradient under noise three times as large: the moment is the gradient's own, where Adam sees ten times it."""
    generator, gradient, deviation = torch.Generator().manual_seed(0), 0.5, 1.5
    parameter = nn.Parameter(torch.zeros(50_000))
    optimizer = CorrectedAdam([parameter], lr=0.0, floor=0.0)
    for _ in range(100):
        parameter.grad = gradient + deviation * torch.randn(50_000, generator=generator)
        optimizer.expect_noise({parameter: deviation})
        optimizer.step()
    state = optimizer.state[parameter]
    square = state["square"] / (1 - 0.999 ** state["step"])
    assert float(square.mean()) == pytest.approx(gradient**2 + deviation**2, rel=0.02)
    # One more step that can be seen: the mean over the root of the corrected moment.
    optimizer.param_groups[0]["lr"] = 1.0
    parameter.grad = gradient + deviation * torch.randn(50_000, generator=generator)
    optimizer.expect_noise({parameter: deviation})
    optimizer.step()
    mean = state["mean"] / (1 - 0.9 ** state["step"])
    seen = state["square"] / (1 - 0.999 ** state["step"]) - deviation**2
    positive = seen > 0.1 * gradient**2
    assert float(positive.double().mean()) > 0.5
    torch.testing.assert_close(parameter.detach()[positive], (-mean / seen.sqrt())[positive], rtol=1e-3, atol=1e-4)


def test_the_plan_tells_it_the_noise_of_each_step() -> None:
    model, optimizer, private = make(
        CorrectedAdam, noise_multiplier=Schedule.linear(2.0, 1.0, 6), max_grad_norm=Schedule.linear(1.0, 0.5, 6)
    )
    run(model, optimizer, private)
    expected = 0.0
    for sigma, norm in zip([2.0, 1.8, 1.6, 1.4, 1.2, 1.0], [1.0, 0.9, 0.8, 0.7, 0.6, 0.5], strict=True):
        expected = 0.999 * expected + 0.001 * (sigma * norm / 40) ** 2
    for parameter in model.parameters():
        noise = optimizer.state[parameter]["noise"]
        torch.testing.assert_close(noise, torch.full_like(noise, expected), rtol=1e-4, atol=0)


def test_it_gets_further_at_the_same_learning_rate() -> None:
    """Two groups of features, one twentyfold smaller, under noise that drowns the second moments."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 20, generator=generator) * torch.cat([torch.full((10,), 1.0), torch.full((10,), 0.05)])
    y = ((x[:, :10].sum(1) + 20 * x[:, 10:].sum(1)) > 0).long()
    losses = {}
    for name, optimizer in (("adam", torch.optim.Adam), ("corrected", CorrectedAdam)):
        model = nn.Linear(20, 2)
        nn.init.zeros_(model.weight)
        chosen = optimizer(model.parameters(), lr=0.05)
        private = privet.make_private(
            model, chosen, TensorDataset(x, y), batch_size=500, steps=60, noise_multiplier=1.0, delta=1e-5, max_grad_norm=0.5,
            seed=0,
        )  # fmt: skip
        run(model, chosen, private)
        losses[name] = float(nn.functional.cross_entropy(model(x), y).detach())
    assert losses["corrected"] < losses["adam"] - 0.03


def test_impossible_settings_are_refused() -> None:
    for settings in ({"lr": -1.0}, {"betas": (0.9, 1.0)}, {"floor": -0.1}):
        with pytest.raises(InputError):
            CorrectedAdam([nn.Parameter(torch.zeros(1))], **settings)
