"""The numbers that a correct implementation reproduces, where they concern accounting; by PLD unless said."""

import math

import pytest
from scipy.special import gammaln

from privet.privacy import (
    Budget,
    CovarianceRelease,
    FixedSizeSampled,
    Gaussian,
    PoissonSampled,
    PureEpsilon,
    accountant_named,
    calibrate_noise,
    steps_of,
)

PLD = accountant_named("pld")


@pytest.mark.parametrize(
    ("sigma", "steps", "epsilon"),
    [(4.0, 10_000, 0.9470), (4.0, 40_000, 2.0334), (4.0, 100, 0.0795), (1.0, 1000, 1.8282)],
)
def test_dp_sgd(sigma, steps, epsilon):
    found = PLD.epsilon(PoissonSampled(0.01, Gaussian(sigma)) * steps, 1e-5)
    assert found == pytest.approx(epsilon, rel=3e-4)


def test_dp_sgd_with_a_record_replaced():
    found = PLD.epsilon(PoissonSampled(0.01, Gaussian(4.0)) * 10_000, 1e-5, "replace-one")
    assert found == pytest.approx(1.9932, rel=2e-4)


def test_dp_pca():
    release = CovarianceRelease(7.0)
    assert accountant_named("moments").epsilon(release, 1e-5) == pytest.approx(0.6965, abs=5e-5)
    assert PLD.epsilon(release, 1e-5) == pytest.approx(0.5025, rel=3e-4)
    assert PLD.epsilon(release, 1e-5, "replace-one") == pytest.approx(
        PLD.epsilon(CovarianceRelease(7.0 / math.sqrt(2)), 1e-5), rel=3e-4
    )


@pytest.mark.parametrize(
    ("examples", "epsilon", "delta", "epochs", "sigma"),
    [
        (60_000, 3.45, 1e-5, 10, 0.5202),
        (60_000, 3.45, 1e-5, 50, 0.5840),
        (60_000, 3.45, 1e-5, 100, 0.6350),
        (73_257, 8.0, 1e-6, 10, 0.4386),
        (73_257, 8.0, 1e-6, 50, 0.4903),
        (73_257, 8.0, 1e-6, 100, 0.5208),
    ],
)
def test_the_padded_noise_layer(examples, epsilon, delta, epochs, sigma):
    found = calibrate_noise(epsilon, delta, 32 / examples, steps_of(examples, 32, epochs))
    assert found == pytest.approx(sigma, rel=5e-4)


@pytest.mark.parametrize(("epochs", "sigma"), [(10, 1.194), (50, 1.354), (100, 1.554)])
def test_the_fixed_size_noise_layer_by_rdp(epochs, sigma):
    event = FixedSizeSampled(32, 60_000, Gaussian(sigma)) * steps_of(60_000, 32, epochs)
    assert accountant_named("rdp").epsilon(event, 1e-5, "replace-one") == pytest.approx(3.45, rel=5e-3)
    assert PLD.epsilon(event, 1e-5, "replace-one") < 3.45


@pytest.mark.parametrize(("nominal", "delivered"), [(0.01, 0.0607), (0.1, 0.2140), (3.45, 1.48)])
def test_the_noise_layer_s_printed_sigma_is_another_epsilon(nominal, delivered):
    sigma = math.sqrt(2 * math.log(1.25 / 1e-5) / nominal)
    assert accountant_named("gdp").epsilon(Gaussian(sigma), 1e-5) == pytest.approx(delivered, rel=3e-3)


def pure_step():
    """The pure epsilon per step that (2, 1e-5) allows for 10^4 steps at rate .01."""
    budget = Budget(2.0, 1e-5)
    return 1 / budget.least(lambda scale: PoissonSampled(0.01, PureEpsilon(1 / scale)) * 10_000, 2.0)


def test_pure_epsilon_through_randomised_response_connects_the_dots():
    """A grid of 1e-4 that rounds up at every step would give .351."""
    assert pure_step() == pytest.approx(0.495, abs=1e-3)


def mean_coordinate(dimension):
    """E|z_i| of noise of density ~ exp(-|z|_2): K(d)."""
    return dimension * math.exp(gammaln(dimension / 2) - gammaln((dimension + 1) / 2)) / math.sqrt(math.pi)


def test_where_pure_noise_beats_a_calibrated_gaussian():
    """One release at (1, 1e-5): up to 13 dimensions. 10^4 steps at (2, 1e-5): never; 300 times the cost in 10^5 dimensions."""
    once = math.sqrt(2 / math.pi) * calibrate_noise(1.0, 1e-5, 1.0, 1)
    assert [dimension for dimension in range(1, 30) if mean_coordinate(dimension) < once][-1] == 13
    often = math.sqrt(2 / math.pi) * calibrate_noise(2.0, 1e-5, 0.01, 10_000)
    assert mean_coordinate(1) / pure_step() > often
    assert mean_coordinate(100_000) / pure_step() / often == pytest.approx(300, rel=0.02)
