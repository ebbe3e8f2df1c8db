"""What users' loops do beside training: copies, files, scalers, compilers, checkpointed activations. Each is right or refused."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import privet
from privet.errors import PrivetError

CLIP, RECORDS, CLOSE = 0.05, 6, 1e-3
X = torch.randn(RECORDS, 5, generator=torch.Generator().manual_seed(0))
Y = torch.arange(RECORDS) % 3
Body = Callable[[nn.Module, torch.optim.Optimizer, Tensor, Tensor], None]


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def plain(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def step(model: nn.Module, body: Body = plain) -> tuple[Tensor, str]:
    """The clipped sum of one step over all records, and the guarantee."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    private = privet.make_private(
        model, optimizer, TensorDataset(X, Y), batch_size=RECORDS, steps=1, noise_multiplier=1e-6, delta=1e-5,
        max_grad_norm=CLIP, seed=0,
    )  # fmt: skip
    for x, y in private.batches():
        body(model, optimizer, x, y)
    guarantee = str(private.spent().guarantee)
    private.close()
    moved = [(was - p.detach()).flatten() for was, p in zip(before, parameters, strict=True)]
    return RECORDS * torch.cat(moved).double(), guarantee


def by_a_loop(model: nn.Module) -> Tensor:
    """The same by a loop over single records in float64."""
    double = copy.deepcopy(model).double()
    total = torch.zeros(sum(p.numel() for p in double.parameters()), dtype=torch.float64)
    for x, y in zip(X.double(), Y, strict=True):
        double.zero_grad()
        F.cross_entropy(double(x[None]), y[None]).backward()
        found = torch.cat([p.grad.flatten() for p in double.parameters() if p.grad is not None])
        assert found.norm() > CLIP
        total += found * (CLIP / found.norm())
    return total


def check(model: nn.Module, body: Body = plain, oracle: nn.Module | None = None, close: float = CLOSE) -> None:
    expected = by_a_loop(model if oracle is None else oracle)
    found, guarantee = step(model, body)
    assert guarantee == "proved"
    assert (found - expected).norm() < close * CLIP


@pytest.mark.parametrize("number", [1, 1.0])
def test_a_loss_that_was_read_may_be_divided_by_one(number: float) -> None:
    def body(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        assert loss.item() > 0
        (loss / number * number).backward()
        optimizer.step()

    check(perceptron(), body)


@pytest.mark.parametrize("how", ["number", "rounded", "in place", "tensor"])
def test_a_loss_that_was_read_is_not_scaled(how: str) -> None:
    """By a number of the records, for instance."""

    def body(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
        loss = F.cross_entropy(model(x), y)
        number = loss.item()
        if how == "number":
            loss = loss / number
        elif how == "rounded":
            loss = torch.div(loss, 1, rounding_mode="floor")
        elif how == "in place":
            loss /= number
        else:
            loss = loss * torch.tensor(number)
        loss.backward()
        optimizer.step()

    with pytest.raises(PrivetError, match="reads a value of the records"):
        step(perceptron(), body)


def test_copies_and_files_are_made_in_the_loop() -> None:
    averages: list[AveragedModel] = []
    files: list[nn.Module] = []

    def body(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
        if not averages:
            averages.append(AveragedModel(model))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        files[:] = [torch.load(file, weights_only=False), copy.deepcopy(model)]
        assert list(model.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
        optimizer.step()
        averages[0].update_parameters(model)

    check(perceptron(), body)
    for made in files:
        assert made(X).shape == (RECORDS, 3)
        plain(made, torch.optim.SGD(made.parameters(), lr=0.1), X, Y)  # an ordinary model: nothing listens to it


def test_a_file_written_in_the_loop_needs_no_privet() -> None:
    written: list[bytes] = []

    def body(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
        file = io.BytesIO()
        torch.save(model, file)
        written.append(file.getvalue())
        plain(model, optimizer, x, y)

    step(perceptron(), body)
    assert written and b"privet." not in written[0]


@pytest.mark.parametrize("unscaled", [False, True])
def test_a_scaler_changes_no_private_gradient(unscaled: bool) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def body(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        if unscaled:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    check(perceptron(), body)


def test_bfloat16_is_as_close_as_its_digits() -> None:
    def body(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    check(perceptron(), body, close=3e-2)


def test_a_compiled_model_is_trained_as_it_is() -> None:
    model = perceptron()
    check(torch.compile(model, backend="eager"), oracle=model)  # type: ignore[arg-type]


def test_after_the_loop_the_compiler_works_again() -> None:
    ran: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        ran.append(1)
        return graph.forward

    compiled = torch.compile(perceptron(), backend=backend)
    step(compiled)  # type: ignore[arg-type]
    assert not ran
    compiled(X)
    assert ran


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_scripted_model_is_refused_by_name() -> None:
    with pytest.raises(PrivetError, match=r"torch.jit, which hides its operations: train the model itself"):
        step(nn.Sequential(torch.jit.script(nn.Linear(5, 3))))


class Checkpointed(nn.Module):
    """A part of the forward pass runs again in the backward pass: a module, or a function that is no module."""

    def __init__(self, *, whole: bool, reentrant: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.whole, self.reentrant = whole, reentrant

    def part(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.second(torch.tanh(x)) * x)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        again = self.part if self.whole else self.second
        return self.last(checkpoint(again, x, use_reentrant=self.reentrant))


@pytest.mark.parametrize("whole", [False, True])
def test_checkpointed_activations_are_recorded_once(whole: bool) -> None:
    check(Checkpointed(whole=whole))


@pytest.mark.parametrize("whole", [False, True])
def test_reentrant_checkpoints_are_refused_with_the_way_out(whole: bool) -> None:
    with pytest.raises(PrivetError, match="use_reentrant=False"):
        step(Checkpointed(whole=whole, reentrant=True))


def test_weight_norm_is_right_in_both_forms() -> None:
    check(nn.Sequential(parametrizations.weight_norm(nn.Linear(5, 3))))


def test_spectral_norm_is_right_in_eval_mode_and_refused_where_its_vectors_move() -> None:
    """How often they are moved would tell how many batches there were."""
    check(nn.Sequential(parametrizations.spectral_norm(nn.Linear(5, 3))).eval())
    with pytest.raises(PrivetError, match=r"was changed while a private batch was out.* eval mode"):
        step(nn.Sequential(parametrizations.spectral_norm(nn.Linear(5, 3))))


@pytest.mark.parametrize("late", [True, False])
def test_the_state_of_an_optimizer_is_saved_after_its_step(late: bool) -> None:
    """Before the loss it is refused with the way out: its momentum is not among the tensors that are known to hold no records."""
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    private = privet.make_private(
        model, optimizer, TensorDataset(X, Y), batch_size=RECORDS, steps=2, noise_multiplier=1.0, delta=1e-5,
        max_grad_norm=CLIP, seed=0,
    )  # fmt: skip
    file = io.BytesIO()

    def train() -> None:
        for x, y in private.batches():
            file.seek(0)
            if not late:
                torch.save(optimizer.state_dict(), file)
            plain(model, optimizer, x, y)
            if late:
                torch.save(optimizer.state_dict(), file)

    if late:
        train()
        file.seek(0)
        assert torch.load(file)["state"][0]["momentum_buffer"].shape == (8, 5)
    else:
        with pytest.raises(PrivetError, match=r"saved, loaded or copied .*: do that after optimizer\.step\(\)"):
            train()


class Weighted(nn.Module):
    """A model with a learned weight for its loss, as models of several tasks have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.weight = nn.Linear(5, 3), nn.Parameter(torch.tensor(0.3))

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(-self.weight) * F.cross_entropy(self.layer(x), y, reduction="none") + self.weight


def test_a_learned_weight_of_a_loss_belongs_to_each_record() -> None:
    def joined(model: Any, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        (torch.exp(-model.weight) * F.cross_entropy(model.layer(x), y) + model.weight).backward()
        optimizer.step()

    def each(model: Any, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        model.losses(x, y).mean().backward()
        optimizer.step()

    with pytest.raises(PrivetError, match="multiply the loss of each record by it"):
        step(Weighted(), joined)
    double, expected = Weighted().double(), 0.0
    for x, y in zip(X.double(), Y, strict=True):
        found = torch.cat(
            [g.flatten() for g in torch.autograd.grad(double.losses(x[None], y[None]), [*double.parameters()])]
        )
        expected = expected + found * (CLIP / found.norm())
    found, guarantee = step(Weighted(), each)
    assert guarantee == "proved" and (found - expected).norm() < CLOSE * CLIP
