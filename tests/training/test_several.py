"""Several models and optimizers in one plan: a GAN's discriminator, an encoder with its head, two optimizers for one model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import privet
from privet.errors import InputError, PrivetError
from privet.training import Performance
from tests.training.conftest import KNOWN, data, flat, network, run


def sgd(*models: nn.Module, lr: float = 0.1) -> Any:
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=lr)


def test_two_models_are_clipped_as_one() -> None:
    """An encoder and a head, each with its optimizer, against the same layers in one model."""
    whole = network()
    optimizer = sgd(whole)
    expected = run(whole, optimizer, privet.make_private(whole, optimizer, data(), **KNOWN))
    parts = network()
    encoder, head = parts[0], parts[2]
    optimizers = [sgd(encoder), sgd(head)]
    private = privet.make_private([encoder, head], optimizers, data(), **KNOWN)
    for x, y in private.batches():
        F.cross_entropy(head(encoder(x).tanh()), y).backward()
        for each in optimizers:
            each.step()
    torch.testing.assert_close(flat(parts), expected, atol=1e-6, rtol=1e-5)
    assert len(private.ledger) == 6


def test_two_optimizers_for_one_model_each_step_once() -> None:
    model = network()
    optimizers = [sgd(model[0]), torch.optim.Adam(model[2].parameters(), lr=0.1)]
    private = privet.make_private(model, optimizers, data(), **{**KNOWN, "batch_size": 1, "steps": 20})
    for x, y in private.batches():
        F.cross_entropy(model(x), y).backward()
        optimizers[1].step()
        optimizers[0].step()
    assert private.steps_done == len(private.ledger) == 20  # the empty ones too
    assert all(int(state["step"]) == 20 for state in optimizers[1].state.values())
    private = privet.make_private(model, optimizers, data(), **KNOWN)
    with pytest.raises(PrivetError, match="1 of 2 optimizers did not step"):
        for x, y in private.batches():
            F.cross_entropy(model(x), y).backward()
            optimizers[0].step()
    private = privet.make_private(model, optimizers, data(), **KNOWN)
    with pytest.raises(PrivetError, match="without a batch"):
        for x, y in private.batches():
            F.cross_entropy(model(x), y).backward()
            optimizers[0].step()
            optimizers[0].step()
    with pytest.raises(InputError, match="does not hold"):
        privet.make_private(model, optimizers[:1], data(), **KNOWN)


class Gan:
    """One-dimensional data around 2; generator and discriminator are small."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.generator = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
        self.discriminator = nn.Sequential(nn.Linear(1, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
        self.g_optimizer = torch.optim.Adam(self.generator.parameters(), lr=0.02)
        self.d_optimizer = torch.optim.Adam(self.discriminator.parameters(), lr=0.02)
        records = 2 + 0.3 * torch.randn(400, 1)
        self.private = privet.make_private(
            self.discriminator, self.d_optimizer, TensorDataset(records), batch_size=80, steps=60, noise_multiplier=0.8,
            delta=1e-5, max_grad_norm=1.0, seed=0,
        )  # fmt: skip

    def fool(self, rows: int) -> torch.Tensor:
        judged = self.discriminator(self.generator(torch.randn(rows, 2)))
        return F.binary_cross_entropy_with_logits(judged, torch.ones_like(judged))


def judge(scores: torch.Tensor, real: bool) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(real)))


def test_a_gan_whose_discriminator_is_private() -> None:
    """Real rows are clipped and noised; generated rows join as they are; the generator's step is an ordinary one."""
    gan = Gan()
    gan.private.public(lambda: judge(gan.discriminator(gan.generator(torch.randn(80, 2)).detach()), real=False))

    def teach(_: Any) -> None:
        with gan.private.paused():
            gan.g_optimizer.zero_grad()
            gan.fool(80).backward()
            gan.g_optimizer.step()

    for (x,) in gan.private.batches(on_step=teach):
        judge(gan.discriminator(x), real=True).backward()
        gan.d_optimizer.step()
    assert len(gan.private.ledger) == 60
    with torch.no_grad():
        made = gan.generator(torch.randn(1000, 2))
    assert float(made.mean()) > 1.0  # it began near 0, and was taught where the records are


def test_the_generator_s_step_leaves_nothing_in_the_discriminator() -> None:
    gan = Gan()
    for (x,) in gan.private.batches():
        judge(gan.discriminator(x), real=True).backward()
        with gan.private.paused():
            gan.fool(10).backward()
        with gan.private.paused():
            before = [p.grad for p in gan.discriminator.parameters()]
        gan.d_optimizer.step()
        assert before == [None] * len(before)
        break


def test_public_gradients_are_added_as_they_are() -> None:
    """Noise so small that the sum can be seen: the step is the clipped mean and the public gradient."""
    settings = {
        **KNOWN,
        "noise_multiplier": 1e-6,
        "steps": 1,
        "batch_size": 200,
        "performance": Performance(physical_batch_size=64),
    }
    model = network()
    optimizer = sgd(model, lr=1.0)
    private = privet.make_private(model, optimizer, data(), **settings)
    start, public = flat(model).clone(), torch.randn(7, 5)
    plain = network()
    alone = sgd(plain, lr=1.0)
    without = run(plain, alone, privet.make_private(plain, alone, data(), **settings))
    copy = network()
    copy(public).square().mean().backward()
    expected = torch.cat([p.grad.flatten() for p in copy.parameters()])
    private.public(lambda: model(public).square().mean())
    for x, y in private.batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(flat(model) - start, without - start - expected, atol=1e-4, rtol=1e-3)


def test_the_private_batch_is_refused_as_public() -> None:
    model = network()
    optimizer = sgd(model)
    private = privet.make_private(model, optimizer, data(), **KNOWN)
    kept: list[Any] = []
    private.public(lambda: F.cross_entropy(model(kept[-1][0][:3]), kept[-1][1][:3]))
    with pytest.raises(PrivetError, match="nothing may come from a record"):
        for x, y in private.batches():
            kept.append((x, y))
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    with pytest.raises(PrivetError, match="before the loop"):
        private.public()


def test_an_ordinary_backward_between_batches_is_refused_and_never_used() -> None:
    model = network()
    optimizer = sgd(model)
    private = privet.make_private(model, optimizer, data(), **KNOWN)
    with pytest.raises(PrivetError, match="belongs to no record"):
        for _, _ in private.batches():
            F.cross_entropy(model(torch.zeros(10, 5)), torch.zeros(10, dtype=torch.long)).backward()
            optimizer.step()
    assert len(private.ledger) == 0 and all(p.grad is None for p in model.parameters())
