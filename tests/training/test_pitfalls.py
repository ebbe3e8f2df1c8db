"""What broke in the field (shared in the project's list of pitfalls), as far as a training loop can break it. One test each."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

import privet
from privet.clipping import AdaptiveClipping, AutomaticClipping, EllipticalClipping, PerLayerClipping
from privet.errors import InputError, PrivetError
from privet.privacy import CovarianceRelease, Gaussian, Ledger, PoissonSampled
from privet.randomness import Randomness
from privet.training import BudgetExhausted, Performance, RunFolder
from tests.training.conftest import KNOWN, data, flat, make, network, run


def private_for(model: nn.Module, dataset: Any, lr: float = 1.0, **settings: Any) -> tuple[nn.Module, Any, Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return model, optimizer, privet.make_private(model, optimizer, dataset, **{**KNOWN, **settings})


# --- privacy bugs that shipped somewhere ------------------------------------------------------------------------------


def test_normaliser_does_not_come_from_the_private_size() -> None:
    """Neighbouring data sets have one divisor and one rate where the public size is stated."""
    plans = [make(dataset=data(size), public_size=200)[2].plan for size in (199, 200, 201)]
    assert plans[0] == plans[1] == plans[2] and plans[0].expected_batch_size == 40


def test_normaliser_does_not_come_from_the_realised_batch() -> None:
    """With next to no noise, a step is the clipped sum over 40, whoever was drawn."""
    for seed in range(3):
        model, optimizer, private = make(seed=seed, noise_multiplier=1e-7, steps=1, lr=1.0)
        start, sizes = flat(model).clone(), []
        for x, y in private.batches():
            sizes.append(len(x))
            with private.paused():
                summed = clipped_sum(network(), x, y)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        torch.testing.assert_close(start - flat(model), summed / 40, atol=1e-6, rtol=1e-4)
        assert sizes != [40]


def clipped_sum(model: nn.Module, x: Tensor, y: Tensor, norm: float = 1.0) -> Tensor:
    total = torch.zeros(sum(p.numel() for p in model.parameters()))
    for i in range(len(x)):
        gradients = torch.autograd.grad(F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]), list(model.parameters()))
        row = torch.cat([g.flatten() for g in gradients])
        total += row / max(1.0, float(row.norm()) / norm)
    return total


CLIPPINGS = {
    "flat": {},
    "per layer": {"max_grad_norm": None, "clipping": PerLayerClipping(1.0)},
    "automatic": {"max_grad_norm": None, "clipping": AutomaticClipping(1.0)},
    "adaptive": {"max_grad_norm": None, "clipping": AdaptiveClipping(1.0)},
    "elliptical": {
        "max_grad_norm": None,
        "clipping": EllipticalClipping({n: torch.full_like(p, 1.0) for n, p in network().named_parameters()}),
    },
}


@pytest.mark.parametrize("physical", [None, 1, 3])
@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_one_record_moves_a_step_by_no_more_than_the_norm(clipping: str, physical: int | None) -> None:
    """Clipping norm ignored, bias norms wrong, micro-batches that double the sensitivity: each would show here.

    The same noise with and without a record whose gradient is enormous.
    """
    x, y = data(20).tensors
    x = x.clone()
    x[7] *= 1000.0
    ends = []
    for kept in (range(20), [i for i in range(20) if i != 7]):
        dataset = TensorDataset(x[list(kept)], y[list(kept)])
        settings = {**CLIPPINGS[clipping], "batch_size": 20, "public_size": 20, "steps": 1}
        ends.append(
            run(*private_for(network(), dataset, performance=Performance(physical_batch_size=physical), **settings))
        )
    moved = float((ends[0] - ends[1]).norm())
    assert 0.02 < moved <= (1 / 20) * (1 + 1e-3)


def test_layers_that_are_clipped_apart_are_one_release() -> None:
    """One sampling and one noise on the joint sensitivity, not a sampling for each layer (the first DP-SGD code)."""
    settings: dict[str, Any] = {"max_grad_norm": None, "clipping": PerLayerClipping(1.0)}
    run(*(made := make(**settings)))
    assert list(made[2].ledger) == [(PoissonSampled(0.2, Gaussian(1.0)), 6)]
    model, zeros = (
        nn.Sequential(*(nn.Linear(100, 100, bias=False) for _ in range(2))),
        TensorDataset(torch.zeros(100, 100)),
    )
    model, optimizer, private = private_for(model, zeros, steps=1, **settings)
    start = flat(model).clone()
    for (x,) in private.batches():
        model(x).sum().backward()
        optimizer.step()
    # Two layers of norm 1 / sqrt(2): the noise on each coordinate is that of the whole norm. Chi-square, false-alarm rate 1e-6.
    chi = float(((flat(model) - start) * 40).double().square().sum())
    assert 1e-6 < stats.chi2.cdf(chi, len(start)) < 1 - 1e-6


@pytest.mark.parametrize("physical", [None, 3])
def test_masked_losses_keep_the_bound_and_a_masked_record_has_no_say(physical: int | None) -> None:
    """Tokens without a label; a mean over those that have one would mix records, and is refused."""
    x = torch.randn(20, 4, 5, generator=torch.Generator().manual_seed(1))
    y = torch.randint(2, (20, 4), generator=torch.Generator().manual_seed(2))
    y[:, 3] = y[7:9] = -100
    x[5] *= 1000.0

    def ended(kept: list[int], reduction: str = "sum") -> Tensor:
        model, optimizer, private = private_for(
            network(),
            TensorDataset(x[kept], y[kept]),
            batch_size=20,
            public_size=20,
            steps=1,
            performance=Performance(physical_batch_size=physical),
        )
        for inputs, labels in private.batches():
            F.cross_entropy(
                model(inputs).flatten(0, 1), labels.flatten(), ignore_index=-100, reduction=reduction
            ).backward()
            optimizer.step()
        return flat(model)

    whole = ended(list(range(20)))
    assert 0.02 < float((whole - ended([i for i in range(20) if i != 5])).norm()) <= (1 / 20) * (1 + 1e-3)
    torch.testing.assert_close(whole, ended([i for i in range(20) if i not in (7, 8)]), atol=1e-7, rtol=1e-5)
    mean = ended(list(range(20)), "mean")  # over each record's own targets
    assert 0.02 < float((mean - ended([i for i in range(20) if i != 5], "mean")).norm()) <= (1 / 20) * (1 + 1e-3)


def test_batches_are_poisson_sampled_and_not_shuffled() -> None:
    """Every record joins with the rate, sizes vary as a binomial, and a record may come twice in an epoch.

    False-alarm rate: 1e-6 for each test.
    """
    numbered = TensorDataset(torch.arange(50.0).view(50, 1), torch.zeros(50, dtype=torch.long))
    model, optimizer, private = private_for(nn.Linear(1, 2), numbered, lr=0.0, batch_size=10, steps=1500)
    joined = torch.zeros(1500, 50)
    for x, y in private.batches():
        joined[private.steps_done, x.flatten().long()] = 1
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    chi = float(((joined.sum(0) - 300) ** 2 / (300 * 0.8)).sum())
    assert stats.chi2.sf(chi, 50) > 1e-6
    z = (float(joined.sum(1).var()) / (50 * 0.2 * 0.8) - 1) * (1500 / 2) ** 0.5
    assert abs(z) < 6
    assert private.plan.step_event(0) == PoissonSampled(0.2, Gaussian(1.0))


def test_the_same_data_pushed_through_twice_is_one_record() -> None:
    x, y = data(20).tensors
    ends = []
    for kept in (20, 19):
        model, optimizer, private = private_for(
            network(), TensorDataset(50 * x[:kept], y[:kept]), batch_size=20, public_size=20, steps=1
        )
        for inputs, labels in private.batches():
            F.cross_entropy(model(torch.cat([inputs, -inputs])), torch.cat([labels, labels])).backward()
            optimizer.step()
        ends.append(flat(model))
    assert 0.01 < float((ends[0] - ends[1]).norm()) <= 1 / 20 * (1 + 1e-3)
    model, optimizer, private = make()
    with pytest.raises(PrivetError, match="before the gradients"):
        for x, y in private.batches():
            F.cross_entropy(model(x), y).backward()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


def test_a_batch_of_the_loop_s_own_is_refused() -> None:
    """Other records than were drawn: as many as there are in all, say."""
    model, optimizer, private = make()
    everything = data().tensors
    with pytest.raises(PrivetError, match="belongs to no record"):
        for _ in private.batches():
            F.cross_entropy(model(everything[0]), everything[1]).backward()
            optimizer.step()


@pytest.mark.parametrize("seed", [0, None])
def test_noise_is_that_of_the_sum_divided_once(seed: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard deviation of a step on no gradient: lr * sigma * C / batch size. Chi-square, false-alarm rate 1e-6.

    Of a seeded run, and of a release whose keys are known for once.
    """
    monkeypatch.setattr("secrets.token_bytes", lambda count: bytes(range(count)))
    model, zeros = nn.Linear(3000, 1, bias=False), TensorDataset(torch.zeros(100, 3000))
    made = private_for(model, zeros, noise_multiplier=3.0, max_grad_norm=0.5, steps=1, seed=seed)
    start = model.weight.detach().clone()
    for (x,) in made[2].batches():
        model(x).sum().backward()
        made[1].step()
    chi = float(((model.weight.detach() - start) / (3.0 * 0.5 / 40)).double().square().sum())
    assert 1e-6 < stats.chi2.cdf(chi, 3000) < 1 - 1e-6


def test_the_accounted_batch_is_the_whole_one_not_the_physical() -> None:
    small, whole = make(performance=Performance(physical_batch_size=4))[2], make()[2]
    assert small.plan == whole.plan
    run(*(made := make(performance=Performance(physical_batch_size=4))))
    assert made[2].ledger.event == whole.plan.event


def test_adaptive_clipping_moves_once_a_step_by_the_whole_batch() -> None:
    """Not by the last physical batch, and the count is inside the accounted release."""
    settings: dict[str, Any] = {"max_grad_norm": None, "clipping": AdaptiveClipping(3.0)}
    moved = []
    for physical in (None, 7, 1):
        model, optimizer, private = make(performance=Performance(physical_batch_size=physical), **settings)
        run(model, optimizer, private)
        moved.append(private.state.clipping)
    assert moved[0] == pytest.approx(moved[1], rel=1e-5) == pytest.approx(moved[2], rel=1e-5)
    assert private.ledger.event == make()[2].plan.event


def test_the_noise_of_the_adaptive_count_has_its_scale() -> None:
    """At C the noise on count and gradient is sigma on the joint sensitivity. Chi-square over 400 steps, rate 1e-6."""
    clipping = AdaptiveClipping(1.0, share=0.04, rate=1.0)
    model, optimizer, private = private_for(
        nn.Linear(5, 2),
        data(),
        lr=0.0,
        max_grad_norm=None,
        clipping=clipping,
        batch_size=200,
        steps=400,
        noise_multiplier=4.0,
    )
    norms = [1.0]
    for x, y in private.batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        norms.append(private.state.clipping)
    # The model stays, so that the count of records below each norm can be computed without noise.
    with torch.no_grad():
        own = per_record_norms(model, *data().tensors)
    errors = []
    for before, after in pairwise(norms):
        fraction = 0.5 - math.log(after / before)
        if 0.0 < fraction < 1.0:
            errors.append((fraction - float((own <= before).double().mean())) * 200 / (4.0 * 0.5 / math.sqrt(0.04)))
    chi = sum(e * e for e in errors)
    assert len(errors) > 380 and 1e-6 < stats.chi2.cdf(chi, len(errors)) < 1 - 1e-6


def per_record_norms(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    error = model(x).softmax(1) - F.one_hot(y, 2)
    return (error.square().sum(1) * (x.square().sum(1) + 1)).sqrt()


class Poisoned(Dataset[tuple[Tensor, Tensor]]):
    """Record 0 would be seen from afar."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.asked.append(index)
        return torch.full((5,), float("inf") if index == 0 else 1.0), torch.tensor(0)


def test_no_fake_example_is_in_an_empty_batch() -> None:
    """An empty step is noise alone, bit for bit."""
    model, optimizer, private = private_for(network(), Poisoned(), batch_size=1, steps=1, seed=4, delta=1e-6)
    source = Randomness.of(4)
    assert len(private.plan.sampling.draw(100_000, source.sampling)) == 0
    start = [p.detach().clone() for p in model.parameters()]
    run(model, optimizer, private)
    for before, after in zip(start, model.parameters(), strict=True):
        assert torch.equal(after.detach(), before - torch.empty_like(before).normal_(generator=source.noise))
    assert private.bad_records == 0 and len(private.ledger) == 1


def test_an_empty_history_costs_nothing() -> None:
    assert make()[2].spent().epsilon == 0.0


# --- seen in other libraries when run ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_one_bad_record_does_not_destroy_the_model(clipping: str, bad: float) -> None:
    dataset = data(50)
    dataset.tensors[0][3, 1] = bad
    settings = {**CLIPPINGS[clipping], "batch_size": 50, "steps": 2, "performance": Performance(physical_batch_size=20)}
    made = private_for(network(), dataset, **settings)
    assert run(*made).isfinite().all() and made[2].bad_records == 2
    without = [t[[i for i in range(50) if i != 3]] for t in data(50).tensors]
    other = private_for(network(), TensorDataset(*without), public_size=50, **settings)
    torch.testing.assert_close(flat(made[0]), run(*other), atol=1e-5, rtol=1e-4)


def test_adaptive_clipping_survives_empty_batches() -> None:
    settings = {"max_grad_norm": None, "clipping": AdaptiveClipping(1.0), "batch_size": 1, "steps": 25}
    made = make(**settings)
    assert run(*made).isfinite().all() and made[2].steps_done == 25


def test_no_step_is_lost_to_floating_point() -> None:
    """int(1 / (1 / n)) is not n for many n."""
    lost = [n for n in range(2, 2000) if int(1 / (1 / n)) != n]
    assert lost
    for records in lost[:60]:
        made = private_for(nn.Linear(1, 2), TensorDataset(torch.zeros(records, 1)), batch_size=1, steps=None, epochs=1)
        assert made[2].plan.steps == records and made[2].steps_per_epoch == records


def test_a_batch_of_300_of_1000_is_that() -> None:
    plan = private_for(nn.Linear(5, 2), data(1000), batch_size=300, steps=None, epochs=3)[2].plan
    assert (plan.sampling.rate, plan.expected_batch_size, plan.steps) == (0.3, 300.0, 10)


def test_tied_weights_train_and_keep_the_bound() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.into, self.out = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)
            self.out.weight = self.into.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.out(torch.tanh(self.into(x)))

    x, y = data(20).tensors
    ends = []
    for kept in (20, 19):
        made = private_for(
            Tied(), TensorDataset(100 * x[:kept], y[:kept]), batch_size=20, public_size=20, steps=1, max_grad_norm=0.5
        )
        ends.append(run(*made))
    assert 0.01 < float((ends[0] - ends[1]).norm()) <= 0.5 / 20 * (1 + 1e-3)


def test_a_batch_norm_is_refused_before_anything_is_spent_and_its_repair_trains() -> None:
    broken = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 2))
    model, optimizer, private = private_for(broken, data())
    with pytest.raises(PrivetError, match=r"privet\.fix"):
        run(model, optimizer, private)
    assert len(private.ledger) == 0
    run(*(made := private_for(privet.fix(broken), data())))
    assert made[2].steps_done == 6 and bool(flat(made[0]).isfinite().all())


# --- what users ask for again and again -------------------------------------------------------------------------------


def test_gradient_accumulation_is_physical_batches_and_one_noise() -> None:
    """So many physical batches, one event, one noise; a loop that accumulates itself is told."""
    whole, parts = run(*make()), run(*(made := make(performance=Performance(physical_batch_size=6))))
    torch.testing.assert_close(whole, parts, atol=1e-5, rtol=1e-4)
    assert len(made[2].ledger) == 6
    model, optimizer, private = make()
    with pytest.raises(PrivetError, match="A batch was not used"):
        for number, (x, y) in enumerate(private.batches()):
            F.cross_entropy(model(x), y).backward()
            if number % 2:
                optimizer.step()


def test_several_losses_of_one_batch_are_added_before_backward() -> None:
    model, optimizer, private = make(steps=2, loss_reduction="mean")
    for x, y in private.batches():
        out = model(x)
        (F.cross_entropy(out, y) + 0.1 * out.square().sum(1).mean()).backward()
        optimizer.step()
    assert private.steps_done == 2


def test_the_length_of_the_batches_is_the_number_of_steps() -> None:
    """Under Poisson sampling and physical batches, as progress bars ask for it."""
    for settings in ({}, {"performance": Performance(physical_batch_size=3)}, {"batch_size": 1}):
        private = make(**settings)[2]
        assert len(private.batches()) == 6 and len(private.batches(steps=4)) == 4
    model, optimizer, private = make(epochs=2, steps=None)
    for epoch in range(2):
        run(model, optimizer, private, steps=private.steps_per_epoch)
        assert private.steps_done == 5 * (epoch + 1)


def test_bfloat16_autocast() -> None:
    """Gradients are clipped and noised in the parameters' precision; the bound holds."""
    x, y = data(20).tensors
    ends = []
    for kept in (20, 19):
        model, optimizer, private = private_for(
            network(),
            TensorDataset(50 * x[:kept], y[:kept]),
            batch_size=20,
            public_size=20,
            steps=2,
            loss_reduction="mean",
            self_check=False,
        )
        for inputs, labels in private.batches():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            break
        assert flat(model).dtype == torch.float32 and private.steps_done == 1
        ends.append(flat(model))
    assert 0.01 < float((ends[0] - ends[1]).norm()) <= 1 / 20 * (1 + 1e-3)
    model, optimizer, private = make(loss_reduction="sum")
    with pytest.raises(PrivetError, match="state what it is"):
        for inputs, labels in private.batches():
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(inputs), labels)
            loss.backward()


def test_augmentation_multiplicity_keeps_the_bound() -> None:
    """Eight views of one record are one record: its influence is that of one."""
    x, y = data(20).tensors
    ends = []
    for kept in (20, 19):
        model, optimizer, private = private_for(
            network(), TensorDataset(50 * x[:kept], y[:kept]), batch_size=20, public_size=20, steps=1, views=8,
            performance=Performance(physical_batch_size=6),
        )  # fmt: skip
        for inputs, labels in private.batches():
            many = inputs.repeat_interleave(8, 0) + torch.linspace(-1, 1, 8).repeat(len(inputs)).unsqueeze(1)
            F.cross_entropy(model(many), labels.repeat_interleave(8, 0)).backward()
            optimizer.step()
        ends.append(flat(model))
    assert 0.01 < float((ends[0] - ends[1]).norm()) <= 1 / 20 * (1 + 1e-3)


def test_views_and_augmentation_in_a_method() -> None:
    from privet.methods import dpsgd

    digits = privet.data.load("digits")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    seen = []

    def shifted(x: Tensor) -> Tensor:
        seen.append(len(x))
        return x.roll(1, -1)

    trained = dpsgd.train(
        model, torch.optim.SGD(model.parameters(), lr=1.0), digits.train.select(range(200)), batch_size=50, steps=3,
        noise_multiplier=1.0, delta=1e-5, max_grad_norm=1.0, views=4, augment=shifted, seed=0,
    )  # fmt: skip
    assert trained.steps == 3 and all(size % 4 == 0 for size in seen)


def test_workers_that_draw_ahead_change_nothing() -> None:
    """Leaving the loop and coming back draws what would have been drawn, whatever workers had fetched already."""

    class Rows(Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return 200

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            x, y = data().tensors
            return x[index], y[index]

    expected = run(*make())
    for workers in (0, 1):
        model, optimizer, private = make(dataset=Rows(), performance=Performance(workers=workers))
        for steps in (2, 4):
            run(model, optimizer, private, steps=steps)
        torch.testing.assert_close(flat(model), expected, atol=1e-6, rtol=1e-5)


def test_a_break_in_the_middle_of_a_step_releases_nothing() -> None:
    model, optimizer, private = make(performance=Performance(physical_batch_size=5))
    start = flat(model).clone()
    for x, y in private.batches():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        break
    assert len(private.ledger) == 0 and torch.equal(flat(model), start)
    run(model, optimizer, private)
    assert private.steps_done == len(private.ledger) == 6


# --- the budget -------------------------------------------------------------------------------------------------------


class Counted(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.asked += 1
        x, y = data().tensors
        return x[index], y[index]


def test_a_step_past_the_budget_touches_no_record() -> None:
    """Noise and budget given: the plan's steps end where the budget does, and no record is read for the next one."""
    dataset = Counted()
    model, optimizer, private = make(dataset=dataset, noise_multiplier=2.0, epsilon=2.0, steps=50)
    with pytest.raises(BudgetExhausted, match="would exceed the budget of epsilon 2"):
        run(model, optimizer, private)
    done, asked = private.steps_done, dataset.asked
    assert 0 < done < 50 and private.spent().epsilon <= 2.0
    again = Ledger()
    again.record(private.plan.events(0, done + 1))
    assert again.spent(1e-5).epsilon > 2.0  # one more would indeed have passed it
    with pytest.raises(BudgetExhausted):
        private.batches()
    assert (private.steps_done, dataset.asked) == (done, asked)


def test_as_many_steps_as_the_budget_allows() -> None:
    private = make(noise_multiplier=2.0, epsilon=2.0, steps=None)[2]
    model, optimizer, limited = make(noise_multiplier=2.0, epsilon=2.0, steps=50)
    with pytest.raises(BudgetExhausted):
        run(model, optimizer, limited)
    assert private.plan.steps == limited.steps_done


def test_what_a_ledger_holds_already_counts() -> None:
    ledger = Ledger()
    ledger.record(CovarianceRelease(3.0))
    made = make(noise_multiplier=2.0, epsilon=2.0, steps=50, ledger=ledger)
    with pytest.raises(BudgetExhausted):
        run(*made)
    alone = make(noise_multiplier=2.0, epsilon=2.0, steps=None)[2].plan.steps
    assert made[2].steps_done < alone and made[2].spent().epsilon <= 2.0


def test_a_run_after_other_releases_assumes_a_plan_unless_it_is_stated() -> None:
    ledger = Ledger()
    ledger.record(CovarianceRelease(3.0))
    assumed = make(noise_multiplier=2.0, epsilon=None, steps=2, ledger=ledger)[2]
    stated = make(noise_multiplier=2.0, epsilon=None, steps=2, ledger=ledger, fixed_beforehand=True)[2]
    assert "was planned before the earlier releases" in str(assumed.plan.event.guarantee)
    assert "was planned before" not in str(stated.plan.event.guarantee)
    assert "was planned before" not in str(make(noise_multiplier=2.0, epsilon=None, steps=2)[2].plan.event.guarantee)


@pytest.mark.parametrize("named", [False, True])
def test_releases_in_the_ledger_of_a_run_folder_are_earlier_releases_too(tmp_path: Path, named: bool) -> None:
    """Only a ledger that was named in the call was looked into. A run that is continued says what it said."""

    def begun(path: Path, released: bool, resume: bool) -> str:
        folder = RunFolder(path, resume=resume)
        if released:
            folder.ledger.record(CovarianceRelease(3.0))
        ledger = {"ledger": folder.ledger} if named else {}
        made = make(noise_multiplier=2.0, epsilon=None, steps=3, folder=folder, **ledger)
        if not resume:
            run(*made)
        made[2].close()
        folder.close()
        return str(made[2].plan.event.guarantee)

    assert "was planned before" in begun(tmp_path / "after", True, False)
    assert "was planned before" in begun(tmp_path / "after", False, True)
    assert "was planned before" not in begun(tmp_path / "first", False, False)
    assert "was planned before" not in begun(tmp_path / "first", False, True)


def test_what_others_record_in_the_meantime_counts() -> None:
    model, optimizer, private = make(noise_multiplier=None, epsilon=2.0, steps=10)
    with pytest.raises(BudgetExhausted, match="Step 6 of 10"):
        for x, y in private.batches():
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if private.steps_done == 5:
                private.ledger.record(Gaussian(1.0))
    assert private.steps_done == 5


def test_data_of_another_size_are_refused() -> None:
    dataset = Counted()
    private = make(dataset=dataset)[2]
    dataset.__class__.__len__ = lambda self: 201  # type: ignore[method-assign]
    try:
        with pytest.raises(InputError, match="for 200 records, and the data set has another number of them"):
            next(iter(private.batches()))
    finally:
        dataset.__class__.__len__ = lambda self: 200  # type: ignore[method-assign]
