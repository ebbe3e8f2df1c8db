"""Dominating pairs: the delta of one use of each, against an independent formula or integral."""

import math
import random
from itertools import pairwise

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as google
from scipy.integrate import quad
from scipy.special import gammainc
from scipy.stats import norm

from privet.privacy import (
    ApproximateDP,
    FixedSizeSampled,
    Gaussian,
    GroupedL2,
    IsotropicL2,
    Laplace,
    NoisyVotes,
    PaddedPoisson,
    PoissonSampled,
    PureEpsilon,
    RandomizedResponse,
    ShuffledEpoch,
    UnsupportedEventError,
    accountant_named,
)
from privet.privacy.accountants.rdp import gdp_delta
from privet.privacy.pld.pairs import IsotropicPair

PLD = accountant_named("pld")
EPSILONS = (0.0, 0.01, 0.1, 0.4, 0.9)


def close(value, truth):
    """Not below the truth, and above it by no more than the discretisation."""
    assert truth * (1 - 1e-6) - 1e-13 <= value <= truth * (1 + 2e-3) + 1e-12


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.0), (0.3, 0.7), (0.9, 3.0)])
def test_poisson_sampled_gaussian(rate, sigma, epsilon):
    def removed(x):
        base = norm.pdf(x, 0, sigma)
        return max(0.0, (1 - rate) * base + rate * norm.pdf(x, 1, sigma) - math.exp(epsilon) * base)

    def added(x):
        base = norm.pdf(x, 0, sigma)
        return max(0.0, base - math.exp(epsilon) * ((1 - rate) * base + rate * norm.pdf(x, 1, sigma)))

    span = (-15 * sigma, 1 + 15 * sigma)
    truth = max(quad(f, *span, limit=500, epsabs=1e-14, points=(0, 0.5, 1))[0] for f in (removed, added))
    close(PLD.delta(PoissonSampled(rate, Gaussian(sigma)), epsilon), truth)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.0), (0.3, 1.2)])
def test_poisson_sampled_gaussian_with_a_record_replaced(rate, sigma, epsilon):
    def mixture(x, sign):
        return (1 - rate) * norm.pdf(x, 0, sigma) + rate * norm.pdf(x, sign, sigma)

    def gain(x):
        return max(0.0, mixture(x, 1) - math.exp(epsilon) * mixture(x, -1))

    truth = quad(gain, -15 * sigma - 1, 1 + 15 * sigma, limit=500, epsabs=1e-14, points=(-1, 0, 1))[0]
    close(PLD.delta(PoissonSampled(rate, Gaussian(sigma)), epsilon, "replace-one"), truth)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_sampling_without_replacement(epsilon):
    """delta'(ln(1 + q(e^epsilon - 1))) = q delta(epsilon), with the sensitivity 2 of a replaced record (Balle et al. 2018)."""
    rate, sigma = 0.02, 1.5
    inner = math.log1p(math.expm1(epsilon) / rate)
    close(
        PLD.delta(FixedSizeSampled(20, 1000, Gaussian(sigma)), epsilon, "replace-one"),
        rate * gdp_delta(2 / sigma, inner),
    )


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_laplace_and_votes(epsilon):
    scale = 0.8
    close(PLD.delta(Laplace(scale), epsilon), max(0.0, -math.expm1((epsilon - 1 / scale) / 2)))
    close(PLD.delta(NoisyVotes(2.0, "laplace"), epsilon), max(0.0, -math.expm1((epsilon - 1.0) / 2)))
    close(PLD.delta(NoisyVotes(2.0), epsilon), gdp_delta(math.sqrt(2) / 2, epsilon))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_sampled_laplace_is_dp_accounting_s(epsilon):
    pld = google.from_laplace_mechanism(0.8, sampling_prob=0.2, value_discretization_interval=1e-5)
    close(PLD.delta(PoissonSampled(0.2, Laplace(0.8)), epsilon), pld.get_delta_for_epsilon(epsilon))


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_stated_epsilons_are_randomised_response(epsilon):
    pure, delta = 0.7, 1e-3
    response = max(0.0, (math.exp(pure) - math.exp(epsilon)) / (1 + math.exp(pure)))
    close(PLD.delta(PureEpsilon(pure), epsilon), response)
    close(PLD.delta(GroupedL2((0.7 * 0.6, 0.7 * 0.8)), epsilon), response)
    close(PLD.delta(ApproximateDP(pure, delta), epsilon), delta + (1 - delta) * response)
    noise, buckets = 0.5, 4
    right, wrong = 1 - noise + noise / buckets, noise / buckets
    truth = max(0.0, right - math.exp(epsilon) * wrong)
    close(PLD.delta(RandomizedResponse(noise, buckets), epsilon, "replace-one"), truth)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_sampling_amplifies_an_approximate_mechanism(epsilon):
    """delta'(ln(1 + q(e^epsilon - 1))) = q delta(epsilon), and no more than the stated delta is revealed."""
    rate, stated, delta = 0.1, 1.0, 1e-3
    inner = math.exp(math.log1p(math.expm1(epsilon) / rate))
    response = max(0.0, (math.exp(stated) - inner) / (1 + math.exp(stated)))
    close(
        PLD.delta(PoissonSampled(rate, ApproximateDP(stated, delta)), epsilon), rate * (delta + (1 - delta) * response)
    )


@pytest.mark.parametrize("seed", range(4))
def test_one_step_of_any_scale_is_exact(seed):
    """For removal, delta'(epsilon') = q delta(epsilon) is the truth; tiny rates with small noise have very heavy tails."""
    chance = random.Random(seed)
    for _ in range(15):
        rate, delta = 10 ** chance.uniform(-6, 0), 10 ** chance.uniform(-12, -2)
        sigma = 10 ** chance.uniform(math.log10(0.3), math.log10(200))

        def truth(epsilon, rate=rate, sigma=sigma):
            inner = math.log1p(math.expm1(epsilon) / rate) if epsilon < 500 else epsilon - math.log(rate)
            return rate * gdp_delta(1 / sigma, inner)

        found = PLD.epsilon(PoissonSampled(rate, Gaussian(sigma)), delta)
        if found > 1e-8:
            assert truth(found) <= delta * (1 + 1e-9) < truth(found * 0.999)
        else:
            assert truth(1e-8) <= delta


def isotropic_delta(shift, dimension, epsilon):
    """The hockey-stick divergence by a midpoint sum over the axis and the distance from it."""
    axis = np.linspace(-25, 25 + shift, 2001)
    away = np.linspace(0, 25, 1001)[1:] - 0.0125
    x, y = np.meshgrid(axis, away, indexing="ij")
    here, there = np.exp(-np.hypot(x - shift, y)), np.exp(-np.hypot(x, y))
    area = y ** (dimension - 2)
    return float((np.maximum(0.0, here - math.exp(epsilon) * there) * area).sum() / (there * area).sum())


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 0.5])
@pytest.mark.parametrize("dimension", [2, 3, 6])
def test_isotropic_noise_is_exact(dimension, epsilon):
    value = PLD.delta(IsotropicL2(1.0, dimension), epsilon)
    assert value == pytest.approx(isotropic_delta(1.0, dimension, epsilon), rel=4e-3)


@pytest.mark.parametrize(("shift", "dimension"), [(0.3, 2), (3.0, 2), (3.0, 3), (3.0, 10), (0.3, 650), (60.0, 40)])
def test_the_quadrature_of_isotropic_noise_is_within_its_rounding(shift, dimension):
    """Against an integral over the angle instead of the radius: at each angle the loss is above t up to some radius."""
    wide = 12 / math.sqrt(dimension)
    cuts = [cut for cut in math.pi / 2 + wide * np.linspace(-1, 1, 9) if 0 < cut < math.pi]

    def integral(function, t):
        ends = sorted({0.0, *cuts, math.acos(t / shift), math.pi})
        return math.fsum(quad(function, a, b, epsabs=1e-16, epsrel=1e-12)[0] for a, b in pairwise(ends))

    def share(t):
        def within(angle):
            radius = (shift**2 - t**2) / max(2 * (t - shift * math.cos(angle)), 1e-300)
            return math.sin(angle) ** (dimension - 2) * gammainc(dimension, radius)

        return integral(within, t) / integral(lambda angle: math.sin(angle) ** (dimension - 2), t)

    at = shift * np.array([-0.99, -0.5, 0.0, 1 / math.sqrt(dimension), 0.99])
    found = IsotropicPair(shift, dimension)._above(at)
    assert found == pytest.approx(np.array([share(t) for t in at]), rel=0, abs=1e-13)


def test_isotropic_noise_in_one_dimension_is_laplace_and_in_many_is_gaussian():
    assert PLD.epsilon(IsotropicL2(0.5, 1), 1e-3) == PLD.epsilon(Laplace(0.5), 1e-3)
    # |z| ~ Gamma(d) concentrates at d with sqrt(d) to spare: a coordinate is nearly N(0, d), and an even larger noise is safer.
    dimension = 10_000
    near = PLD.epsilon(IsotropicL2(1 / 50, dimension), 1e-5)
    assert near == pytest.approx(accountant_named("gdp").epsilon(Gaussian(math.sqrt(dimension) / 50), 1e-5), rel=0.03)


def test_isotropic_noise_costs_no_more_than_its_pure_epsilon():
    for steps in (1, 10):
        for dimension in (2, 50):
            assert (
                PLD.epsilon(IsotropicL2(2.0, dimension) * steps, 1e-5)
                <= PLD.epsilon(PureEpsilon(0.5) * steps, 1e-5) * 1.0003
            )


def test_overflow_of_padded_samples_is_added_to_delta():
    plain = PoissonSampled(0.01, Gaussian(1.0)) * 100
    padded = PaddedPoisson(0.01, 1000, 30, Gaussian(1.0))
    assert 0 < padded.overflow < 1e-6
    close(PLD.delta(padded * 100, 0.5), PLD.delta(plain, 0.5) + 100 * padded.overflow)
    assert PLD.epsilon(PaddedPoisson(0.01, 1000, 12, Gaussian(1.0)) * 100, 1e-5) == math.inf
    assert PaddedPoisson(0.01, 1000, 1000, Gaussian(1.0)).overflow == 0


def test_shuffling_earns_nothing_and_only_a_replaced_record_is_covered():
    epoch = ShuffledEpoch(100, Gaussian(2.0))
    assert PLD.epsilon(epoch * 3, 1e-5, "replace-one") == PLD.epsilon(Gaussian(2.0) * 3, 1e-5, "replace-one")
    for event in (epoch, FixedSizeSampled(1, 10, Gaussian(1.0)), RandomizedResponse(0.5, 2)):
        with pytest.raises(UnsupportedEventError, match=f"PLD cannot bound {type(event).__name__}"):
            PLD.epsilon(event, 1e-5)


def test_delta_zero_is_the_pure_epsilon():
    assert PLD.epsilon(PureEpsilon(0.25) * 8 + Laplace(2.0), 0.0) == pytest.approx(2.5)
    assert PLD.epsilon(Gaussian(1.0), 0.0) == math.inf
    sampled = PLD.epsilon(PoissonSampled(0.1, PureEpsilon(1.0)), 0.0)
    assert sampled == pytest.approx(math.log1p(0.1 * math.expm1(1.0)))
