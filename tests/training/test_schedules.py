"""Learning rates, noise and clipping norms that change over a run."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau

from privet.errors import InputError, PrivetWarning
from privet.privacy import Gaussian, PoissonSampled, Schedule, calibrate_schedule
from privet.training import Performance
from tests.training.conftest import KNOWN, data, make, network, run

import privet  # isort: skip


def test_a_scheduler_steps_once_for_each_private_step() -> None:
    """Physical batches do not hurry it and empty batches do not stop it."""
    for settings in ({}, {"performance": Performance(physical_batch_size=7)}, {"batch_size": 1, "steps": 20}):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = LambdaLR(optimizer, lambda step: 0.5**step)
        private = privet.make_private(model, optimizer, data(), scheduler=scheduler, **{**KNOWN, **settings})
        run(model, optimizer, private)
        assert optimizer.param_groups[0]["lr"] == 0.5**private.plan.steps


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: CosineAnnealingLR(o, T_max=6),
        lambda o: OneCycleLR(o, max_lr=0.5, total_steps=7),
        lambda o: LambdaLR(o, lambda step: 0.052 + 0.048 * (6 - step) / 6),
    ],
)
def test_torch_s_own_schedulers_in_an_ordinary_loop(schedule: Any) -> None:
    model, optimizer, private = make()
    scheduler, rates = schedule(optimizer), []
    other, plain = network(), torch.optim.SGD(network().parameters(), lr=0.1)
    expected_scheduler, expected = schedule(plain), []
    for x, y in private.batches():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        scheduler.step()
        if private.rehearsing:
            continue
        rates.append(optimizer.param_groups[0]["lr"])
        plain.step()
        expected_scheduler.step()
        expected.append(plain.param_groups[0]["lr"])
    assert rates == expected and len(set(rates)) > 1 and other is not model


def test_a_scheduler_that_follows_a_metric_is_warned_about() -> None:
    model, optimizer, private = make()
    scheduler = ReduceLROnPlateau(optimizer)
    with pytest.warns(PrivetWarning, match="never the loss of the training records"):
        run(model, optimizer, private)
    scheduler.step(1.0)


def test_a_scheduler_of_another_optimizer_is_not_warned_about() -> None:
    model, optimizer, private = make()
    scheduler = ReduceLROnPlateau(torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1))
    run(model, optimizer, private)  # a warning would be an error
    scheduler.step(1.0)


def test_the_event_follows_a_noise_schedule() -> None:
    schedule = Schedule.linear(2.0, 1.0, 6)
    model, optimizer, private = make(noise_multiplier=schedule)
    run(model, optimizer, private)
    assert private.ledger.event == private.plan.event == schedule.event(0.2)
    assert private.plan.step_event(0) == PoissonSampled(0.2, Gaussian(2.0))
    assert private.plan.step_event(5) == PoissonSampled(0.2, Gaussian(1.0))


def test_a_calibrated_noise_schedule_spends_the_budget() -> None:
    schedule = calibrate_schedule(2.0, 1e-5, 0.2, Schedule.exponential(2.0, 1.0, 6))
    model, optimizer, private = make(noise_multiplier=schedule, epsilon=2.0)
    run(model, optimizer, private)
    assert 1.99 < private.spent().epsilon <= 2.0


def test_the_noise_of_each_step_has_the_schedule_s_scale() -> None:
    """Steps on nothing but noise: 2000 coordinates, chi-square, false-alarm rate 1e-6 for each of 4 steps."""
    from scipy import stats

    model = torch.nn.Linear(2000, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    multipliers, norms = [4.0, 1.0, 2.0, 3.0], [0.5, 2.0, 1.0, 1.0]
    private = privet.make_private(
        model, optimizer, torch.utils.data.TensorDataset(torch.zeros(10, 2000)), batch_size=1, delta=1e-5, seed=3,
        noise_multiplier=Schedule.of(multipliers), max_grad_norm=Schedule.of(norms),
    )  # fmt: skip
    before, taken = model.weight.detach().clone(), []
    optimizer.register_step_post_hook(
        lambda *_: None if private.rehearsing else taken.append(model.weight.detach().clone())
    )
    for (x,) in private.batches():
        model(x).sum().backward()
        optimizer.step()
    for after, multiplier, norm in zip(taken, multipliers, norms, strict=True):
        chi = float(((after - before) / (multiplier * norm)).double().square().sum())
        assert 1e-6 < stats.chi2.cdf(chi, 2000) < 1 - 1e-6
        before = after


def test_a_schedule_of_clipping_norms_leaves_the_event_alone() -> None:
    model, optimizer, private = make(max_grad_norm=Schedule.linear(1.0, 0.1, 6))
    seen = []
    for x, y in private.batches():
        if not private.rehearsing:
            seen.append(private.plan.clipping.norms.at(private.state.clipping))
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert seen == pytest.approx([1.0, 0.82, 0.64, 0.46, 0.28, 0.1])
    assert private.spent() == _spent(make())


def _spent(made: Any) -> Any:
    run(*made)
    return made[2].spent()


def test_a_schedule_of_another_length_is_refused() -> None:
    with pytest.raises(InputError, match="noise has 5 steps, and the plan has 6"):
        make(noise_multiplier=Schedule.constant(1.0, 5))
    with pytest.raises(InputError, match="clipping norms has 7 steps"):
        make(max_grad_norm=Schedule.constant(1.0, 7))
    assert make(noise_multiplier=Schedule.constant(1.0, 9), steps=None)[2].plan.steps == 9
    with pytest.raises(InputError, match="noise multiplier"):
        make(noise_multiplier=Schedule.of([1.0, math.inf]), steps=2)
