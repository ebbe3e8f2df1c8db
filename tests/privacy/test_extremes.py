"""Small and large regimes: a finite, non-negative epsilon, soon, and on the right side of what is known there."""

import itertools
import math
import time

import pytest

from privet.privacy import (
    Gaussian,
    IsotropicL2,
    Laplace,
    NotPrivate,
    PaddedPoisson,
    PoissonSampled,
    PureEpsilon,
    Schedule,
    accountant_named,
    accountant_names,
)
from privet.privacy.accountants import pld

PLD, RDP, GDP, OPTIMAL = (accountant_named(name) for name in ("pld", "rdp", "gdp", "optimal"))
CORNERS = list(itertools.product((1e-6, 1e-3, 0.9, 1.0), (0.3, 1.0, 200.0), (1, 1000, 10**6), (1e-3, 1e-12)))


@pytest.mark.parametrize("part", range(4))
def test_every_corner_has_an_epsilon_in_time(part):
    for rate, sigma, steps, delta in CORNERS[part::4]:
        begin = time.process_time()
        epsilon = PLD.epsilon(PoissonSampled(rate, Gaussian(sigma)) * steps, delta)
        assert time.process_time() - begin < 20
        assert 0 <= epsilon < math.inf, (rate, sigma, steps, delta)
        # Without the sampling it would be a Gaussian, which is exact.
        unsampled = GDP.epsilon(Gaussian(sigma) * steps, delta)
        assert epsilon <= unsampled * 1.001 + 1e-12
        if rate == 1:
            assert epsilon >= unsampled * (1 - 1e-6)


def test_large_noise_is_the_central_limit():
    """mu = q sqrt(T (e^(1/sigma^2) - 1)), for a million steps with much noise."""
    for rate, sigma, delta in ((1e-3, 50.0, 1e-6), (0.1, 200.0, 1e-9), (0.5, 200.0, 1e-12)):
        mu = rate * math.sqrt(1e6 * math.expm1(1 / sigma**2))
        limit = GDP.epsilon(Gaussian(1 / mu), delta)
        assert PLD.epsilon(PoissonSampled(rate, Gaussian(sigma)) * 10**6, delta) == pytest.approx(limit, rel=2e-3)


def test_finer_grids_come_down_to_the_same_value():
    """The bound is from above, so a smaller tolerance may only lower it."""
    for rate, sigma, steps, delta in (
        (0.01, 0.3, 50, 1e-12),
        (0.2, 5.0, 3000, 1e-8),
        (1e-4, 4.0, 3, 1e-5),
    ):
        event = PoissonSampled(rate, Gaussian(sigma)) * steps
        coarse, fine = pld.PLD(3e-3).epsilon(event, delta), pld.PLD(3e-5).epsilon(event, delta)
        normal = PLD.epsilon(event, delta)
        assert fine * (1 - 1e-6) <= normal <= fine * 1.0008
        assert fine * (1 - 1e-6) <= coarse <= fine * 1.02


def test_a_delta_that_pays_for_everything_costs_nothing():
    assert PLD.epsilon(PoissonSampled(1e-6, Gaussian(200.0)), 1e-3) == 0
    assert PLD.epsilon(PoissonSampled(1e-6, Gaussian(0.3)) * 10, 1e-4) == 0
    assert PLD.epsilon(Gaussian(1.0), 0.9) == 0


@pytest.mark.parametrize("name", accountant_names())
def test_nothing_costs_nothing_and_no_noise_costs_everything(name):
    accountant = accountant_named(name)
    assert accountant.epsilon(Gaussian(1.0) * 0, 1e-5) == 0
    assert accountant.delta(Gaussian(1.0) * 0, 0.0) == 0
    assert accountant.epsilon(NotPrivate(), 1e-5) == math.inf
    assert accountant.delta(NotPrivate() + Gaussian(1.0), 5.0) == 1
    assert accountant.epsilon(Gaussian(0.0), 1e-5) == math.inf
    assert 0 < accountant.epsilon(Gaussian(3.0), 1e-5) < 10


def test_no_sampling_at_all_costs_nothing():
    for name in ("pld", "rdp", "moments", "strong", "optimal"):
        assert accountant_named(name).epsilon(PoissonSampled(0.0, Gaussian(1.0)) * 100, 1e-5) == 0


def test_tiny_noise_does_not_overflow():
    for sigma in (0.01, 0.03, 0.1):
        event = PoissonSampled(0.01, Gaussian(sigma)) * 10
        epsilon = PLD.epsilon(event, 1e-5)
        assert 1 / sigma < epsilon <= GDP.epsilon(Gaussian(sigma) * 10, 1e-5)


def test_mixed_scales_compose():
    event = PoissonSampled(1e-4, Gaussian(0.5)) * 10_000 + Gaussian(100.0) + PureEpsilon(0.01) * 5 + Laplace(50.0)
    event += PaddedPoisson(0.01, 1000, 60, Gaussian(3.0)) * 100 + PoissonSampled(0.1, IsotropicL2(10.0, 5)) * 10
    parts = [PLD.epsilon(leaf * count, 1e-5) for leaf, count in event.leaves()]
    assert max(parts) < PLD.epsilon(event, 1e-5) < sum(parts)


def test_one_release_of_known_loss_costs_exactly_that():
    """Not a grid's width more: 4e-4 too much before the largest loss was taken as a bound."""
    for release, epsilon in ((PureEpsilon(1.16), 1.16), (Laplace(4.0), 0.25), (PureEpsilon(0.3) * 3, 0.9)):
        assert PLD.epsilon(release, 1e-12) <= epsilon * (1 + 1e-12)
        assert PLD.delta(release, epsilon * (1 + 1e-12)) == 0


def test_a_tiny_delta_does_not_make_isotropic_noise_infinite():
    """It was, by an allowance for rounding that was counted as infinite loss."""
    for event in (IsotropicL2(10.0, 100) * 1000, PoissonSampled(0.01, IsotropicL2(10.0, 100)) * 1000):
        assert 0 < PLD.epsilon(event, 1e-12) <= OPTIMAL.epsilon(event, 1e-12) < 30
    assert PLD.epsilon(IsotropicL2(10.0, 2), 0.0) == pytest.approx(0.1)


def test_isotropic_noise_in_many_dimensions_is_soon_known():
    """Half a minute, when a fine grid was filled where there is no loss."""
    begin = time.process_time()
    epsilon = PLD.epsilon(IsotropicL2(0.5, 100_000), 1e-9)
    assert time.process_time() - begin < 15
    assert epsilon == pytest.approx(GDP.epsilon(Gaussian(0.5 * math.sqrt(100_000)), 1e-9), rel=1e-3)


def test_a_million_tiny_responses_are_nearly_gaussian():
    """Too fine a grid has more points than are composed, and twice the epsilon was stated for fear of it."""
    for event, mu in (
        (PureEpsilon(1.5e-6) * 10**6, 1.5e-3),
        (PureEpsilon(1.2e-6) * 10**6 + PureEpsilon(3e-6) * 1000, math.sqrt(1.449) * 1e-3),
    ):
        truth = GDP.epsilon(Gaussian(1 / mu), 3.6e-4)
        assert PLD.epsilon(event, 3.6e-4) == pytest.approx(truth, rel=1e-3)


def test_optimal_composition_does_not_hang():
    """Half a minute, when each division of delta was composed in full."""
    event = PoissonSampled(1e-6, Gaussian(4.0)) * 10**6 + PaddedPoisson(1e-6, 10**6, 14, PureEpsilon(1.4)) * 974
    begin = time.process_time()
    assert 0 < OPTIMAL.epsilon(event, 4e-4) < 1e-3
    assert time.process_time() - begin < 15


def test_three_hundred_different_sigmas_at_once():
    schedule = Schedule.of([0.8 + 0.4 * i / 300 for i in range(300)])
    begin = time.process_time()
    epsilon = PLD.epsilon(schedule.event(0.01), 1e-5)
    assert time.process_time() - begin < 5  # a loose bound for slow machines; the benchmark measures it
    lowest, highest = (PLD.epsilon(PoissonSampled(0.01, Gaussian(sigma)) * 300, 1e-5) for sigma in (1.2, 0.8))
    assert lowest < epsilon < highest


def test_delta_never_leaves_the_unit_interval():
    event = PoissonSampled(0.3, Gaussian(0.4)) * 50
    deltas = [PLD.delta(event, epsilon) for epsilon in (0.0, 1.0, 10.0, 50.0, 100.0)]
    assert deltas == sorted(deltas, reverse=True)
    assert all(0 <= delta <= 1 for delta in deltas)
    assert PLD.delta(event, PLD.epsilon(event, 1e-6)) == pytest.approx(1e-6, rel=0.05)


def test_rdp_never_says_zero_for_a_costly_run():
    """An order near 1 made another library answer 0."""
    assert RDP.epsilon(PoissonSampled(0.01, Gaussian(0.5)) * 1000, 1e-5) > 10


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_losses_too_small_for_a_grid_are_added_up(relation):
    """Epsilon rose with delta, from 4e-9 at 1e-15 to 7e-6 at 0.5, where it is 0."""
    event = PoissonSampled(1e-6, Gaussian(1e6)) * 10**6
    assert PLD.epsilon(event, 1e-15, relation) < 2e-8
    assert [PLD.epsilon(event, delta, relation) for delta in (1e-5, 0.5, 0.999)] == [0, 0, 0]
    assert PLD.delta(event, 0.0, relation) <= 1e-5
