"""`accelerator.prepare` before or after `make_private`: the loop is the plain one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import privet
from privet.errors import InputError, PrivetError

pytest.importorskip("accelerate")
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
KNOWN = {"steps": 6, "noise_multiplier": 1e-6, "delta": 1e-3, "max_grad_norm": 0.1, "seed": 0}


def data() -> TensorDataset:
    x = torch.randn(48, 5, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x.sum(1) > 0).long())


def parts() -> tuple[nn.Module, torch.optim.Optimizer, DataLoader]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.5), DataLoader(data(), batch_size=12, shuffle=True)


def accelerator(**given: object) -> Accelerator:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    return Accelerator(cpu=True, **given)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def expected() -> Tensor:
    model, optimizer, loader = parts()
    private = privet.make_private(model, optimizer, loader, **KNOWN)
    for x, y in private.batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return flat(model)


def train(
    tool: Accelerator, model: nn.Module, optimizer: torch.optim.Optimizer, private: privet.training.Private, clip=None
):
    for x, y in private.batches():
        with tool.accumulate(model):
            optimizer.zero_grad()
            tool.backward(F.cross_entropy(model(x.to(tool.device)), y.to(tool.device)))
            if clip is not None:
                tool.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()


@pytest.mark.parametrize("first", ["prepare", "make_private"])
def test_the_loop_is_the_plain_one(first):
    tool = accelerator()
    model, optimizer, loader = parts()
    if first == "prepare":
        model, optimizer, loader = tool.prepare(model, optimizer, loader)
        private = privet.make_private(model, optimizer, loader, **KNOWN)
    else:
        private = privet.make_private(model, optimizer, loader, **KNOWN)
        model, optimizer = tool.prepare(model, optimizer)
    train(tool, model, optimizer, private)
    assert private.steps_done == 6
    assert (flat(model) - flat(parts()[0])).norm() > 0.01, "nothing was trained"
    assert torch.equal(flat(model), expected())


def test_a_loss_may_be_printed_before_the_backward_pass():
    """`accelerator.backward` divides by 1, which is no new loss."""
    tool = accelerator()
    model, optimizer, loader = tool.prepare(*parts())
    private = privet.make_private(model, optimizer, loader, **KNOWN)
    seen = []
    for x, y in private.batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        seen.append(loss.item())
        tool.backward(loss)
        optimizer.step()
    assert len(seen) >= 6 and str(private.spent().guarantee) == "proved"
    assert torch.equal(flat(model), expected())


def test_a_step_on_the_prepared_loader_is_refused():
    tool = accelerator()
    model, optimizer, loader = tool.prepare(*parts())
    privet.make_private(model, optimizer, loader, **KNOWN)
    x, y = next(iter(loader))
    tool.backward(F.cross_entropy(model(x), y))
    before = flat(model)
    with pytest.raises(PrivetError, match="would train without privacy"):
        optimizer.step()
    assert torch.equal(flat(model), before)


def test_accumulation_is_refused():
    tool = accelerator(gradient_accumulation_steps=3)
    model, optimizer, loader = tool.prepare(*parts())
    with pytest.raises(InputError, match="gradient_accumulation_steps would join several batches"):
        privet.make_private(model, optimizer, loader, **KNOWN)
    assert torch.equal(flat(model), flat(parts()[0]))


def test_clipping_of_the_batch_is_refused():
    tool = accelerator()
    model, optimizer, loader = tool.prepare(*parts())
    private = privet.make_private(model, optimizer, loader, **KNOWN)
    with pytest.raises(PrivetError, match="clipping is done by max_grad_norm"):
        train(tool, model, optimizer, private, clip=1.0)
    assert torch.equal(flat(model), flat(parts()[0]))


def test_bfloat16_is_close_to_the_plain_loop():
    tool = accelerator(mixed_precision="bf16")
    model, optimizer, loader = tool.prepare(*parts())
    private = privet.make_private(model, optimizer, loader, **KNOWN)
    train(tool, model, optimizer, private)
    torch.testing.assert_close(flat(model), expected(), rtol=0, atol=0.02)
