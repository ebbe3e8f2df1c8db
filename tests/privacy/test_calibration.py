"""Calibration: any one unknown from the others, never past the target, and within a thousandth of it."""

import random

import pytest

from privet.errors import InputError
from privet.privacy import (
    Budget,
    Gaussian,
    Ledger,
    NotPrivate,
    PoissonSampled,
    Schedule,
    accountant_named,
    calibrate_batch_size,
    calibrate_noise,
    calibrate_schedule,
    calibrate_steps,
    steps_of,
)

PLD = accountant_named("pld")


def fits(epsilon, target):
    return target * 0.999 <= epsilon <= target


@pytest.mark.parametrize("seed", range(12))
def test_noise_for_random_budgets(seed):
    chance = random.Random(seed)
    epsilon, delta = 10 ** chance.uniform(-1.5, 1.7), 10 ** chance.uniform(-9, -4)
    rate, steps = 10 ** chance.uniform(-3, 0), int(10 ** chance.uniform(0, 4))
    sigma = calibrate_noise(epsilon, delta, rate, steps)
    assert fits(PLD.epsilon(PoissonSampled(rate, Gaussian(sigma)) * steps, delta), epsilon)


@pytest.mark.parametrize("accountant", ["rdp", "moments", "strong", "strong-published", "basic"])
def test_noise_by_other_accountants(accountant):
    sigma = calibrate_noise(3.0, 1e-5, 0.01, 1000, accountant=accountant)
    assert fits(accountant_named(accountant).epsilon(PoissonSampled(0.01, Gaussian(sigma)) * 1000, 1e-5), 3.0)


def test_noise_with_a_record_replaced():
    sigma = calibrate_noise(2.0, 1e-5, 0.01, 1000, relation="replace-one")
    assert fits(PLD.epsilon(PoissonSampled(0.01, Gaussian(sigma)) * 1000, 1e-5, "replace-one"), 2.0)


@pytest.mark.parametrize(
    ("epsilon", "rate", "sigma"), [(2.0, 0.01, 1.1), (0.5, 0.001, 0.7), (8.0, 0.2, 2.0), (1.0, 1.0, 20.0)]
)
def test_the_most_steps(epsilon, rate, sigma):
    steps = calibrate_steps(epsilon, 1e-5, rate, sigma)
    step = PoissonSampled(rate, Gaussian(sigma))
    assert PLD.epsilon(step * steps, 1e-5) <= epsilon < PLD.epsilon(step * (steps + 1), 1e-5)


@pytest.mark.parametrize("length", [{"steps": 1000}, {"epochs": 15}])
def test_the_largest_batch(length):
    size = calibrate_batch_size(2.0, 1e-5, 60_000, 1.1, **length)

    def cost(size):
        steps = length.get("steps") or steps_of(60_000, size, length["epochs"])
        return PLD.epsilon(PoissonSampled(size / 60_000, Gaussian(1.1)) * steps, 1e-5)

    assert cost(size) <= 2.0 < cost(size + 1) * 1.002
    assert cost(size + 5) > 2.0


def test_a_batch_may_be_everything():
    assert calibrate_batch_size(1.0, 1e-5, 100, 50.0, steps=10) == 100


def test_a_budget_of_which_part_is_spent():
    ledger = Ledger()
    ledger.record(PoissonSampled(0.02, Gaussian(2.0)), 1500)
    ledger.record(Gaussian(10.0))
    budget = Budget(3.0, 1e-5).after(ledger, fixed_beforehand=True)
    sigma = budget.noise_multiplier(0.01, 1000)
    for _ in range(1000):
        ledger.record(PoissonSampled(0.01, Gaussian(sigma)))
    assert fits(ledger.spent(1e-5).epsilon, 3.0)
    # Composed, not subtracted: less noise than for what is left of epsilon.
    spent = Budget(3.0, 1e-5).spent(budget.before).epsilon
    assert sigma < calibrate_noise(3.0 - spent, 1e-5, 0.01, 1000)
    assert budget.allows(PoissonSampled(0.01, Gaussian(sigma)) * 1000)
    assert not budget.allows(PoissonSampled(0.01, Gaussian(sigma)) * 1100)
    steps = budget.steps(0.01, sigma)
    assert 1000 <= steps <= 1010


def test_schedules():
    falling = Schedule.exponential(4.0, 1.0, 1000, pieces=20)
    assert falling.steps == 1000
    assert falling.at(0) == 4.0
    assert falling.at(999) == pytest.approx(1.0)
    found = calibrate_schedule(2.0, 1e-5, 0.02, falling)
    assert fits(PLD.epsilon(found.event(0.02), 1e-5), 2.0)
    assert found.at(0) / found.at(999) == pytest.approx(4.0)
    flat = calibrate_schedule(2.0, 1e-5, 0.02, Schedule.constant(1.0, 1000))
    assert flat.at(5) == pytest.approx(calibrate_noise(2.0, 1e-5, 0.02, 1000), rel=2e-3)
    assert Schedule.of([2.0, 2.0, 1.0]).parts == ((2.0, 2), (1.0, 1))
    assert Schedule.linear(1.0, 3.0, 3).parts == ((1.0, 1), (2.0, 1), (3.0, 1))
    with pytest.raises(InputError, match="3 steps"):
        Schedule.linear(1.0, 3.0, 3).at(3)


def test_a_budget_of_a_million():
    """No protection to speak of, and still no overflow."""
    for epsilon in (1e4, 9e5):
        sigma = calibrate_noise(epsilon, 1e-5, 0.1, 2)
        assert fits(PLD.epsilon(PoissonSampled(0.1, Gaussian(sigma)) * 2, 1e-5), epsilon)


def test_steps_are_not_lost_to_floating_point():
    """int(1 / (1 / n)) != n for 141 of the n up to 2000."""
    assert all(steps_of(n, 1, 1) == n for n in range(1, 2001))
    assert steps_of(60_000, 600, 15) == 1500
    assert steps_of(1000, 300, 1) == 4
    assert steps_of(10, 10, 0.01) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: calibrate_noise(-1.0, 1e-5, 0.01, 10), "epsilon of a budget"),
        (lambda: calibrate_noise(1.0, 0.0, 0.01, 10), "delta of a budget"),
        (lambda: calibrate_noise(1.0, 1e-5, 1.01, 10), "sampling rate"),
        (lambda: calibrate_noise(1.0, 1e-5, 0.01, 0), "at least one step"),
        (lambda: calibrate_noise(1.0, 1e-5, 0.01, 10, accountant="guess"), "no accountant 'guess'"),
        (lambda: calibrate_noise(1.0, 1e-5, 0.01, 10, relation="nearby"), "no relation 'nearby'"),
        (lambda: calibrate_noise(1.0, 1e-5, 0.01, 10, before=Gaussian(1.0)), "is spent already: epsilon = 4.3"),
        (lambda: calibrate_noise(1.0, 1e-5, 0.01, 10, before=NotPrivate()), "spent already: epsilon = inf"),
        (lambda: calibrate_steps(0.01, 1e-5, 0.5, 1.0), "less than one step costs: epsilon"),
        (lambda: calibrate_steps(1.0, 1e-5, 0.0, 1.0), "give a rate above 0"),
        (lambda: calibrate_batch_size(0.01, 1e-9, 10, 0.5, steps=100), "an expected batch of one record"),
        (lambda: calibrate_batch_size(1.0, 1e-5, 10, 0.5), "either steps or epochs"),
        (lambda: calibrate_batch_size(1.0, 1e-5, 0, 0.5, steps=3), "at least one example"),
        (lambda: calibrate_batch_size(1.0, 1e-5, 10, 0.5, steps=0), "at least one step"),
        (lambda: calibrate_batch_size(1.0, 1e-5, 10, 0.5, epochs=-1), "epochs must be positive"),
        (lambda: Schedule.of([]), "at least one step"),
        (lambda: Schedule.linear(1.0, 2.0, 0), "at least one step"),
        (lambda: Schedule.of([1.0, 0.0]), "above 0"),
        (lambda: Schedule.linear(-1.0, 2.0, 10), "above 0"),
        (lambda: Budget(1.0, 1e-5, "replace-one").after(Ledger()), "for replace-one, but the ledger is for add-remove"),
    ],
)
def test_impossible_requests_get_a_sentence(call, message):
    with pytest.raises(InputError, match=message):
        call()
