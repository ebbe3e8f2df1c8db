"""The privacy profile: delta at every epsilon, both directions, and epsilon near delta(0)."""

import math
import time
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from privet.errors import InputError
from privet.privacy import (
    ApproximateDP,
    Gaussian,
    Laplace,
    NotPrivate,
    PaddedPoisson,
    PoissonSampled,
    PureEpsilon,
    accountant_named,
    accountant_names,
)
from privet.privacy.accountants.rdp import gdp_delta

PLD = accountant_named("pld")
STEPS = PoissonSampled(0.01, Gaussian(1.1)) * 1500


def test_delta_zero_is_the_total_variation():
    """It was .963 once, and took six seconds."""
    begin = time.process_time()
    assert 0.17146 < PLD.delta(STEPS, 0.0) < 0.1716
    assert time.process_time() - begin < 1
    assert PLD.delta(Gaussian(1000.0) * 10**6, 0.0) == pytest.approx(gdp_delta(1.0, 0.0), rel=1e-9)


def test_epsilon_near_delta_zero():
    """.673 was stated for .1242."""
    assert PLD.epsilon(Gaussian(1000.0) * 10**6, 0.345) == pytest.approx(0.124232573, rel=1e-8)
    start = PLD.delta(STEPS, 0.0)
    for share in (1.001, 2.0):
        assert PLD.epsilon(STEPS, share * start) == 0
    assert PLD.epsilon(STEPS, 1.0) == 0
    assert PLD.epsilon(NotPrivate(), 1.0) == 0
    below = PLD.epsilon(STEPS, 0.99 * start)
    assert 0 < below < 0.01
    assert PLD.delta(STEPS, below) == pytest.approx(0.99 * start, rel=1e-3)


@pytest.mark.parametrize(
    "event",
    [
        STEPS,
        PureEpsilon(0.3) * 40,
        Laplace(2.0) * 3 + Gaussian(3.0),
        PoissonSampled(0.2, Laplace(1.0)) * 25,
        ApproximateDP(0.2, 1e-4) * 10,
        PaddedPoisson(0.01, 1000, 30, Gaussian(1.0)) * 20,
    ],
    ids=str,
)
def test_single_answers_are_in_order_and_agree_with_the_curve(event):
    deltas = np.concatenate((np.geomspace(1e-12, 0.9, 60), PLD.delta(event, 0.0) * np.array([0.9, 0.99, 1.0, 1.001])))
    epsilons = [PLD.epsilon(event, float(delta)) for delta in np.sort(deltas)]
    assert all(one >= other for one, other in pairwise(epsilons))
    finite = np.array([epsilon for epsilon in epsilons if math.isfinite(epsilon)])
    curve = PLD.deltas(event, finite)
    assert (np.diff(PLD.deltas(event, np.sort(finite))) <= 0).all()
    singles = np.array([PLD.delta(event, float(epsilon)) for epsilon in finite])
    assert singles == pytest.approx(curve, rel=3e-4, abs=1e-14)
    # Asking for delta at the stated epsilon never gives more than was asked for, but for the two grids' difference.
    stated = np.array(
        [delta for delta, epsilon in zip(np.sort(deltas), epsilons, strict=True) if math.isfinite(epsilon)]
    )
    assert (curve <= stated * 1.001 + 1e-14).all()


def test_a_thousand_epsilons_take_as_long_as_a_few():
    begin = time.process_time()
    PLD.delta(STEPS, 1.3)
    one = time.process_time() - begin
    begin = time.process_time()
    PLD.deltas(STEPS, np.linspace(0.0, 3.5, 1000))
    assert time.process_time() - begin < 2 + 20 * one


def test_both_directions_of_a_sampled_release():
    """By formula, for one release: removing the record, and adding it."""
    rate, sigma, points = 0.3, 0.8, np.array([0.0, 0.1, 0.3, 1.0])
    removed, added = PLD.directions(PoissonSampled(rate, Gaussian(sigma)), points)
    for epsilon, one, other in zip(points, removed, added, strict=True):
        assert one == pytest.approx(rate * gdp_delta(1 / sigma, math.log1p(math.expm1(epsilon) / rate)), rel=1e-9)
        left = 1 - math.exp(epsilon) * (1 - rate)
        inner = math.log(math.exp(epsilon) * rate / left) if left > 0 else 0.0
        gain = (
            gdp_delta(1 / sigma, inner)
            if inner >= 0
            else -math.expm1(inner) + math.exp(inner) * gdp_delta(1 / sigma, -inner)
        )
        assert other == pytest.approx(left * gain if left > 0 else 0.0, rel=1e-9, abs=1e-15)
    replaced = PLD.directions(PoissonSampled(rate, Gaussian(sigma)) * 3, points, "replace-one")
    assert (replaced[0] == replaced[1]).all()


@pytest.mark.parametrize("name", accountant_names())
def test_every_accountant_has_a_curve(name):
    accountant = accountant_named(name)
    curve = accountant.deltas(Gaussian(3.0), [[2.0, 0.5], [1.0, math.inf]])
    assert curve.shape == (2, 2)
    assert curve[0, 1] >= curve[1, 0] >= curve[0, 0] >= curve[1, 1]
    assert accountant.deltas(NotPrivate(), [1.0]) == 1
    assert accountant.deltas(Gaussian(1.0) * 0, [0.0]) == 0
    with pytest.raises(InputError, match="at least 0"):
        accountant.deltas(Gaussian(1.0), [-0.1])


def test_infinite_losses_are_counted_once_and_exactly():
    """A moment's bound was given the whole of delta, also what infinite losses had taken of it."""
    event = ApproximateDP(0.1, 1e-6) * 10
    all_of_it = -math.expm1(10 * math.log1p(-1e-6))
    assert PLD.delta(event, 1.0) == pytest.approx(all_of_it, rel=1e-9)
    assert PLD.epsilon(event, all_of_it + 1e-13) > 0.9
    assert PLD.delta(ApproximateDP(0.1, 0.01) * 10, 5.0) == pytest.approx(1 - 0.99**10, rel=1e-9)


@pytest.mark.parametrize("steps", [2, 30])
def test_from_delta_zero_on_epsilon_is_zero_where_losses_range_over_many_scales(steps):
    event = PoissonSampled(1e-5, Gaussian(0.3)) * steps
    start = PLD.delta(event, 0.0)
    assert PLD.epsilon(event, start) == 0
    assert 0 < PLD.epsilon(event, 0.99 * start) <= PLD.epsilon(event, 0.9 * start) < 1e-3


def test_noise_of_any_size_and_events_that_cost_nothing():
    assert PLD.epsilon(Gaussian(1e-300), 1e-5) == math.inf
    assert PLD.epsilon(Gaussian(1e300), 1e-5) == 0 < PLD.delta(Gaussian(1e300), 0.0) < 1e-14
    assert PLD.epsilon(PoissonSampled(0.1, Gaussian(1e300)) * 5, 1e-5) == 0
    assert PLD.epsilon(PureEpsilon(0.0) * 5 + PoissonSampled(0.1, PureEpsilon(0.0)), 0.0) == 0
    assert PLD.epsilon(STEPS, 5e-324) > 10


@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "count"), [(1.0, 0.3, 0.5, 10), (1.0, 0.1, 0.3, 20), (2.0, 0.05, 0.9, 8)]
)
def test_a_sampled_mechanism_that_may_reveal_everything_is_counted_out(epsilon, delta, rate, count):
    """Where it reveals that the record is absent, the loss is ln(1 - rate): it was put further down, and delta fell by 0.2 %."""
    low, high = (1 - delta) / (1 + math.exp(epsilon)), (1 - delta) / (1 + math.exp(-epsilon))
    absent = np.array([high, low, delta])
    present = (1 - rate) * absent + rate * np.array([low, high, 0.0])
    losses = np.log(present / absent)
    event = PoissonSampled(rate, ApproximateDP(epsilon, delta)) * count
    asked = np.array([0.0, 0.1, 0.5, 1.0, 2.0, 3.0])
    found = PLD.directions(event, asked)
    ways = [
        (first, second, count - first - second) for first in range(count + 1) for second in range(count + 1 - first)
    ]
    for side, (masses, sign) in enumerate([(present, 1), (absent, -1)]):
        odds = stats.multinomial.pmf(ways, count, masses / masses.sum()) * masses.sum() ** count
        sums = sign * np.array(ways) @ losses
        exact = (odds * -np.expm1(np.minimum(asked[:, None] - sums, 0.0))).sum(axis=1) + 1 - masses.sum() ** count
        assert (found[side] >= exact * (1 - 1e-9)).all()
        assert found[side] == pytest.approx(exact, rel=1e-3)


def test_an_overflow_counts_in_both_directions_of_a_single_step():
    """Of one step it was taken off again where a record is added."""
    step = PaddedPoisson(0.1, 100, 15, Gaussian(1.0))
    plain = PLD.directions(PoissonSampled(0.1, Gaussian(1.0)), [0.0, 0.5, 1.0])
    for side, found in enumerate(PLD.directions(step, [0.0, 0.5, 1.0])):
        assert found == pytest.approx(plain[side] + step.overflow, rel=1e-6)
