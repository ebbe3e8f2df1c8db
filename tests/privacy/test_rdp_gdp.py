"""RDP from dp-accounting and GDP where it is exact."""

import math

import pytest
from dp_accounting import gaussian_mechanism

from privet.privacy import (
    ApproximateDP,
    CovarianceRelease,
    FixedSizeSampled,
    Gaussian,
    GroupedL2,
    Laplace,
    NoisyVotes,
    PaddedPoisson,
    PoissonSampled,
    PureEpsilon,
    RandomizedResponse,
    UnsupportedEventError,
    accountant_named,
)
from privet.privacy.accountants.rdp import gdp_delta

RDP, GDP, PLD = (accountant_named(name) for name in ("rdp", "gdp", "pld"))


@pytest.mark.parametrize(
    ("sigma", "steps", "epsilon"),
    [(4.0, 10_000, 1.0355), (4.0, 40_000, 2.2097), (4.0, 100, 0.0897), (1.0, 1000, 2.1014)],
)
def test_rdp_of_the_paper_s_settings(sigma, steps, epsilon):
    assert RDP.epsilon(PoissonSampled(0.01, Gaussian(sigma)) * steps, 1e-5) == pytest.approx(epsilon, abs=6e-5)


@pytest.mark.parametrize(
    "event",
    [
        Gaussian(3.0) * 10,
        Laplace(4.0) * 30,
        PureEpsilon(0.2) * 50,
        GroupedL2((0.1,) * 25) * 20,
        PoissonSampled(0.05, PureEpsilon(0.5)) * 1000,
        PoissonSampled(0.05, Laplace(2.0)) * 1000,
        PaddedPoisson(0.01, 1000, 40, Gaussian(1.0)) * 300,
        CovarianceRelease(5.0) + NoisyVotes(30.0) * 20,
    ],
    ids=str,
)
def test_rdp_is_above_pld_and_not_far(event):
    tight, loose = PLD.epsilon(event, 1e-6), RDP.epsilon(event, 1e-6)
    if any(isinstance(leaf, GroupedL2) for leaf, _ in event.leaves()):
        # zCDP knows more of grouped noise than its pure epsilon, which is all that the PLD has.
        assert loose < 0.5 * tight
    else:
        assert tight * 0.9999 < loose < tight * 1.35


def test_replacing_one_record_doubles_the_sensitivity_here_too():
    """dp-accounting's RDP does not double it for a Gaussian while its PLD does."""
    assert RDP.epsilon(Gaussian(2.0), 1e-5, "replace-one") == RDP.epsilon(Gaussian(1.0), 1e-5)
    assert GDP.epsilon(Gaussian(2.0), 1e-5, "replace-one") == GDP.epsilon(Gaussian(1.0), 1e-5)
    response = RandomizedResponse(0.5, 4)
    assert RDP.epsilon(response, 1e-5, "replace-one") <= math.log(1 + 0.5 * 4 / 0.5) * 1.01


def test_fixed_size_sampling_by_rdp_is_above_its_pld():
    event = FixedSizeSampled(100, 10_000, Gaussian(2.0)) * 1000
    assert PLD.epsilon(event, 1e-5, "replace-one") < RDP.epsilon(event, 1e-5, "replace-one")


@pytest.mark.parametrize("sigma", [0.3, 1.0, 7.0, 50.0, 200.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-12])
def test_gdp_is_the_exact_gaussian(sigma, delta):
    truth = gaussian_mechanism.get_epsilon_gaussian(sigma, delta)
    assert GDP.epsilon(Gaussian(sigma), delta) == pytest.approx(truth, rel=1e-6, abs=1e-9)
    assert truth * (1 - 1e-7) <= PLD.epsilon(Gaussian(sigma), delta) <= truth * 1.001 + 1e-12


def test_gdp_delta_is_the_paper_s_formula():
    assert gdp_delta(1.0, 1.0) == pytest.approx(0.12693674, rel=1e-6)
    assert GDP.delta(Gaussian(2.0) * 4, 1.0) == gdp_delta(1.0, 1.0)


def test_gdp_composes_exactly():
    """One-shot moments: 1/sp^2 + 1/sm^2 = mu^2."""
    both = CovarianceRelease(4.0) + Gaussian(3.0)
    assert GDP.epsilon(both, 1e-5) == pytest.approx(GDP.epsilon(Gaussian(1 / math.hypot(1 / 4, 1 / 3)), 1e-5))


@pytest.mark.parametrize(
    ("accountant", "event", "relation"),
    [
        (GDP, PoissonSampled(0.1, Gaussian(1.0)), "add-remove"),
        (GDP, Laplace(1.0), "add-remove"),
        (RDP, ApproximateDP(1.0, 1e-6), "add-remove"),
        (RDP, PoissonSampled(0.1, Gaussian(1.0)), "replace-one"),
        (RDP, RandomizedResponse(0.5, 3), "add-remove"),
    ],
)
def test_what_they_cannot_bound_raises_with_both_names(accountant, event, relation):
    with pytest.raises(UnsupportedEventError, match=f"{accountant.name} cannot bound {type(event).__name__}"):
        accountant.epsilon(event, 1e-5, relation)
    assert not accountant.supports(event, relation)
