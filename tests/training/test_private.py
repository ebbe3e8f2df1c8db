"""`make_private`: an ordinary loop, with everything that must not happen refused."""

from __future__ import annotations

import io
from typing import Any

import numpy
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

import privet
from privet.clipping import AdaptiveClipping
from privet.errors import InputError, PrivetError
from privet.randomness import Randomness
from privet.training import BudgetExhausted, Performance
from tests.training.conftest import KNOWN, flat, make, network


def data(records: int = 200) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(records, 5, generator=generator)
    return TensorDataset(x, (x.sum(1) > 0).long())


def setup(optimizer: Any = torch.optim.SGD, **settings: Any) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    chosen = optimizer(model.parameters(), lr=0.1)
    known = {"batch_size": 40, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-5, "max_grad_norm": 1.0, "seed": 0}
    return model, chosen, privet.make_private(model, chosen, data(), **{**known, **settings})


def run(model: nn.Module, optimizer: Any, private: Any) -> Tensor:
    for x, y in private.batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adagrad, torch.optim.RMSprop])
def test_any_optimizer(optimizer: Any) -> None:
    model, chosen, private = setup(optimizer)
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    after = run(model, chosen, private)
    assert not torch.equal(before, after) and after.isfinite().all()
    assert (private.steps_done, len(private.ledger)) == (6, 6)
    assert "epsilon = " in str(private.spent()) and "proved" in str(private.spent())


def test_a_step_is_the_clipped_noisy_sum_over_the_expected_batch() -> None:
    model, optimizer, private = setup(steps=1)
    start = [p.detach().clone() for p in model.parameters()]
    streams = Randomness.of(0)
    drawn = private.plan.sampling.draw(200, streams.sampling)
    x, y = (t[drawn] for t in data().tensors)
    summed = [torch.zeros_like(p) for p in start]
    for i in range(len(x)):
        gradient = torch.autograd.grad(F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters()))
        norm = torch.sqrt(sum(g.square().sum() for g in gradient))
        for total, g in zip(summed, gradient, strict=True):
            total += g / max(1.0, float(norm))
    run(model, optimizer, private)
    for before, total, after in zip(start, summed, model.parameters(), strict=True):
        drawn_noise = torch.empty_like(total).normal_(generator=streams.noise)
        torch.testing.assert_close(after.detach(), before - 0.1 * (total + drawn_noise) / 40, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("physical", [1, 7, 16, 1000])
def test_physical_batches_do_not_change_the_step(physical: int) -> None:
    whole = run(*setup())
    parts = run(*setup(performance=Performance(physical_batch_size=physical)))
    torch.testing.assert_close(whole, parts, atol=1e-5, rtol=1e-4)


def test_physical_batches_from_a_memory_budget() -> None:
    from privet.training.drawing import records_within

    model = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU(), nn.Linear(1000, 10))
    few, many = (records_within(model, torch.zeros(1000), mebibytes * 2**20) for mebibytes in (20, 40))
    # Two activations of 4000 bytes are saved for each record, and as much again in the backward pass.
    assert many - few == pytest.approx(20 * 2**20 / 16_000, rel=0.1)
    with pytest.raises(PrivetError, match=r"more than the 1\.0 MiB allowed"):
        records_within(model, torch.zeros(1000), 2**20)
    whole = run(*setup())
    parts = run(*setup(performance=Performance("auto", 4000)))
    torch.testing.assert_close(whole, parts, atol=1e-5, rtol=1e-4)


def test_views_of_one_record_are_averaged_before_clipping() -> None:
    model, optimizer, private = setup(views=3, steps=1)
    again, other, plain = setup(steps=1)
    for x, y in private.batches():
        rows, labels = x.repeat_interleave(3, 0), y.repeat_interleave(3, 0)
        F.cross_entropy(model(rows), labels).backward()
        optimizer.step()
    run(again, other, plain)
    for one, two in zip(model.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-4)


def test_seeded_runs_repeat_bit_for_bit_and_others_do_not() -> None:
    assert torch.equal(run(*setup()), run(*setup()))
    assert not torch.equal(run(*setup(seed=None)), run(*setup(seed=None)))


def test_empty_batches_are_steps() -> None:
    model, optimizer, private = setup(batch_size=1, steps=30)
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    seen = 0
    for x, y in private.batches():
        assert len(x)
        seen += 1
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert seen < 30 and len(private.ledger) == private.steps_done == 30
    assert not torch.equal(before, torch.cat([p.detach().flatten() for p in model.parameters()]))


def test_adaptive_clipping_trains_and_moves() -> None:
    model, optimizer, private = setup(max_grad_norm=None, clipping=AdaptiveClipping(50.0), steps=20)
    run(model, optimizer, private)
    assert private.state.clipping < 50 and private.plan.clipping.max_grad_norm == 50


def test_bad_records_are_counted_and_the_model_survives() -> None:
    dataset = data()
    dataset.tensors[0][3] = float("nan")
    model = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = privet.make_private(
        model, optimizer, dataset, batch_size=200, steps=3, noise_multiplier=1.0, delta=1e-5, max_grad_norm=1.0
    )
    after = run(model, optimizer, private)
    assert private.bad_records == 3 and after.isfinite().all()


def test_no_step_is_lost_to_rounding() -> None:
    for records in range(2, 400):
        assert _one_epoch(records).plan.steps == records


def _sgd(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=1)


def _one_epoch(records: int) -> Any:
    model = nn.Linear(1, 2)
    return privet.make_private(
        model, _sgd(model), TensorDataset(torch.zeros(records, 1)), batch_size=1, epochs=1, noise_multiplier=1.0, delta=1e-5,
        max_grad_norm=1.0,
    )  # fmt: skip


def test_the_budget_ends_before_data_is_touched() -> None:
    model, optimizer, private = setup()
    run(model, optimizer, private)
    with pytest.raises(BudgetExhausted, match="6 steps are done: epsilon"):
        next(iter(private.batches()))


def test_a_budget_is_kept() -> None:
    model, optimizer, private = setup(noise_multiplier=None, epsilon=2.0)
    run(model, optimizer, private)
    assert 1.9 < private.spent().epsilon <= 2.0


def test_leaving_early_spends_what_was_used() -> None:
    model, optimizer, private = setup()
    for x, y in private.batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if not private.rehearsing:
            break
    assert len(private.ledger) == 1
    with pytest.raises(PrivetError, match="would train without privacy"):
        optimizer.step()
    for x, y in private.batches():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert len(private.ledger) == 6


def test_a_loop_that_an_error_has_left_can_be_run_again() -> None:
    """In a notebook the traceback keeps the old loop alive."""
    model, optimizer, private = setup()
    held = iter(private.batches())
    x, y = next(held)
    F.cross_entropy(model(x), y).backward()
    run(model, optimizer, private)
    assert len(private.ledger) == private.steps_done == 6
    assert next(held, None) is None


def test_progress_on_a_terminal_and_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run(*setup())
    from rich.console import Console

    for terminal in (False, True):
        monkeypatch.setattr(Console, "is_terminal", property(lambda self, terminal=terminal: terminal))
        model, optimizer, private = setup()
        for x, y in private.batches(progress=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        assert torch.equal(torch.cat([p.detach().flatten() for p in model.parameters()]), expected)


def test_a_batch_without_backward_or_step_is_refused() -> None:
    model, optimizer, private = setup()
    with pytest.raises(PrivetError, match="A batch was not used"):
        for x, _ in private.batches():
            model(x)
    model, optimizer, private = setup()
    with pytest.raises(PrivetError, match="no gradients yet"):
        for x, _ in private.batches():
            model(x)
            optimizer.step()
    assert len(private.ledger) == 0


def test_the_same_batch_twice_is_refused() -> None:
    model, optimizer, private = setup()
    with pytest.raises(PrivetError, match="before the gradients"):
        for x, y in private.batches():
            F.cross_entropy(model(x), y).backward()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    model, optimizer, private = setup()
    with pytest.raises(PrivetError, match="without a batch"):
        for x, y in private.batches():
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.step()


def test_freezing_after_the_plan_was_made_is_refused() -> None:
    model, _, private = setup()
    model[0].weight.requires_grad_(False)
    with pytest.raises(InputError, match=r"'0\.weight' was .*frozen or unfrozen"):
        next(iter(private.batches()))
    with pytest.raises(InputError, match="at least one step"):
        private.batches(steps=0)


def test_closures_are_refused() -> None:
    model, optimizer, private = setup()
    with pytest.raises(PrivetError, match="closure"):
        for x, y in private.batches():
            F.cross_entropy(model(x), y).backward()
            optimizer.step(lambda: 0.0)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"batch_size": 201}, "from 1 to the number of records"),
        ({"epochs": 1}, "either epochs or steps"),
        ({"noise_multiplier": None}, "either epsilon"),
        ({"noise_multiplier": -1.0}, "noise multiplier"),
        ({"max_grad_norm": None}, "either max_grad_norm or clipping"),
        ({"max_grad_norm": -1.0}, "positive"),
        ({"loss_reduction": "max"}, "loss_reduction"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        setup(**settings)


def test_the_optimizer_must_hold_the_model_s_parameters() -> None:
    model, other = nn.Linear(5, 2), nn.Linear(5, 2)
    known = {"batch_size": 40, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-5, "max_grad_norm": 1.0}
    with pytest.raises(InputError, match="'weight'"):
        privet.make_private(model, _sgd(other), data(), **known)
    both = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=1)
    with pytest.raises(InputError, match="another model"):
        privet.make_private(model, both, data(), **known)


def test_digits_above_ninety_percent_under_a_real_budget() -> None:
    digits = privet.data.load("digits")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    private = privet.make_private(
        model, optimizer, digits.train, batch_size=256, epochs=20, epsilon=8.0, delta=1e-5, max_grad_norm=1.0, seed=0
    )
    run(model, optimizer, private)
    x, y = digits.test.tensors
    assert float((model(x).argmax(1) == y).double().mean()) > 0.9
    assert private.spent().epsilon <= 8.0


@pytest.mark.parametrize("loss", ["mean", "divided", "sum", "vector"])
def test_half_precision_does_not_let_the_size_of_a_batch_round_all_gradients(loss: str) -> None:
    """Records that are all alike are rounded alike: were it by the size of the batch, one of 2,000 would move the sum by twice
    its own length."""

    def total(records: int) -> Tensor:
        model = nn.Linear(4, 3)
        nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=2000.0)
        private = privet.make_private(
            model,
            optimizer,
            TensorDataset(torch.full((records, 4), 0.7), torch.zeros(records, dtype=torch.int64)),
            batch_size=2000,
            public_size=2000,
            steps=1,
            delta=1e-9,
            noise_multiplier=1e-9,
            max_grad_norm=2.0,
            seed=0,
        )
        for x, y in private.batches():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                losses = nn.functional.cross_entropy(model(x), y, reduction="none")
            if loss == "vector":
                private.step(losses)
                continue
            divisor = len(x) if loss == "divided" else 1
            (losses.mean() if loss == "mean" else losses.sum() / divisor).backward()
            optimizer.step()
        return torch.cat([p.detach().double().flatten() for p in model.parameters()])

    whole = total(2000)
    assert all(
        float((whole - total(2000 - less)).norm()) / less < 1.001 * float(whole.norm()) / 2000 for less in (1, 2, 3)
    )


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: F.cross_entropy(out, y),
        lambda out, y: F.cross_entropy(out, y).float(),
        lambda out, y: F.cross_entropy(out, y, reduction="none").mean().float(),
        lambda out, y: F.cross_entropy(out, y, reduction="sum") / len(y),
        lambda out, y: F.mse_loss(out, torch.zeros_like(out)),
    ],
)
def test_a_mean_in_half_precision_is_refused(loss: Any) -> None:
    model = nn.Linear(4, 3).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.rand(20, 4).bfloat16(), torch.zeros(20, dtype=torch.int64))
    settings = {"batch_size": 10, "steps": 1, "delta": 1e-3, "noise_multiplier": 1.0, "max_grad_norm": 1.0}
    private = privet.make_private(model, optimizer, data, **settings)
    with pytest.raises(PrivetError, match="mean over the records in half precision"):
        for x, y in private.batches():
            loss(model(x), y).backward()
            optimizer.step()
    assert len(private.ledger) == 0


@pytest.mark.parametrize("float_first", [True, False])
def test_other_losses_of_a_model_in_half_precision_are_trained(float_first: bool) -> None:
    model = nn.Linear(4, 3).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.rand(20, 4).bfloat16(), torch.zeros(20, dtype=torch.int64))
    settings = {"batch_size": 10, "steps": 2, "delta": 1e-3, "noise_multiplier": 1.0, "max_grad_norm": 1.0}
    private = privet.make_private(model, optimizer, data, **settings)
    for x, y in private.batches():
        losses = F.cross_entropy(model(x), y, reduction="none")
        (losses.float().mean() if float_first else losses.sum()).backward()
        optimizer.step()
    assert len(private.ledger) == 2


def test_tied_weights_are_saved(tmp_path):
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    records = TensorDataset(torch.arange(40) % 7, torch.arange(40) % 5)
    private = privet.make_private(model, optimizer, records, **{**KNOWN, "batch_size": 10}, folder=tmp_path)
    run(model, optimizer, private)
    private.close()
    weights = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert torch.equal(weights["0.weight"], weights["1.weight"]) and torch.equal(weights["0.weight"], model[0].weight)


class Wrapped(torch.optim.Optimizer):
    """A wrapper without hooks of its own, as accelerate makes one."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def step(self, closure=None):
        self.optimizer.step(closure)


def test_the_optimizer_in_a_wrapper_is_trained_privately():
    expected = run(*make())
    model = network()
    wrapped = Wrapped(torch.optim.SGD(model.parameters(), lr=0.1))
    private = privet.make_private(model, wrapped, data(), **KNOWN)
    with pytest.raises(PrivetError, match="would train without privacy"):
        wrapped.step()
    for x, y in private.batches():
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        wrapped.step()
    assert torch.equal(flat(model), expected)


@pytest.mark.parametrize("sampler", [WeightedRandomSampler([1.0] * 200, 200), SubsetRandomSampler(range(50))])
def test_a_loader_that_chooses_records_is_refused(sampler):
    loader = DataLoader(data(), batch_size=40, sampler=sampler)
    with pytest.raises(InputError, match="decides which records are drawn"):
        make(dataset=loader, batch_size=None)


def test_a_state_saved_in_the_body_is_read_by_torch_load() -> None:
    model, _, private = setup(steps=1)
    file = io.BytesIO()
    for x, y in private.batches():
        losses = F.cross_entropy(model(x), y, reduction="none")
        private.step(losses)
        file.seek(0)
        torch.save({"model": model.state_dict(), "losses": losses.detach()}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded["model"].items())
    assert (loaded["losses"] + 1).isfinite().all()


class Lion(torch.optim.Optimizer):
    """An optimizer that is not torch's, with a state of its own."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                    p.add_(mean.lerp(p.grad, 0.1).sign(), alpha=-group["lr"])
                    mean.lerp_(p.grad, 0.01)


def test_an_optimizer_of_ones_own_is_listened_to_and_works() -> None:
    model, optimizer, private = setup(Lion, steps=3)
    hooked = []
    optimizer.register_step_post_hook(lambda *_: hooked.append(float(next(model.parameters()).detach().norm())))
    after = run(model, optimizer, private)
    assert after.isfinite().all() and hooked and "proved" in str(private.spent())


def test_weights_may_be_read_by_numpy_clamped_and_evaluated_in_a_pause() -> None:
    model, _, private = setup(steps=3)
    x, y = data().tensors
    for batch in private.batches():
        private.step(F.cross_entropy(model(batch[0]), batch[1], reduction="none"))
        assert all(numpy.isfinite(p.detach().numpy()).all() for p in model.parameters())
        for p in model.parameters():
            p.data.clamp_(-1, 1)
    with private.paused(), torch.no_grad():
        assert float((model(x).argmax(1) == y).float().mean()) >= 0
    assert "proved" in str(private.spent())
