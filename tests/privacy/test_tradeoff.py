"""The trade-off curve against closed forms, numerical integrals and its own properties."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import integrate, stats

from privet.errors import InputError
from privet.privacy.accountants.rdp import gdp_delta, gdp_epsilon
from privet.privacy.meaning import VACUOUS_FALSE_POSITIVES, TradeOff, epsilons_to

RATES = (0.0, 1e-5, 1e-3, 0.01, 0.1, 0.5, 0.9, 1.0)
statements = st.lists(st.tuples(st.floats(0, 50), st.floats(0, 1)), min_size=1, max_size=12)


def gaussian(mu: float) -> TradeOff:
    return TradeOff([(e, gdp_delta(mu, e)) for e in epsilons_to(gdp_epsilon(mu, 1e-10)).tolist()])


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 1e-5), (3.0, 1e-2), (8.0, 0.0)])
@pytest.mark.parametrize("fpr", [0.0, 0.001, 0.2, 0.9, 1.0])
def test_one_statement_gives_the_tightest_of_its_two_inequalities(epsilon, delta, fpr):
    tpr = TradeOff([(epsilon, delta)]).true_positive_rate(fpr)
    factor = math.exp(epsilon)
    assert tpr <= factor * fpr + delta + 1e-12
    assert 1 - fpr <= factor * (1 - tpr) + delta + 1e-12
    higher = tpr + 1e-6
    assert tpr == 1 or higher > factor * fpr + delta or 1 - fpr > factor * (1 - higher) + delta


@pytest.mark.parametrize("mu", [0.05, 0.5, 1.0, 3.0])
def test_the_profile_of_a_gaussian_gives_its_closed_form(mu):
    curve = gaussian(mu)
    for rate in RATES:
        exact = stats.norm.cdf(stats.norm.ppf(1 - rate) - mu)
        found = curve.false_negative_rate(rate)
        assert found <= exact + 1e-12  # the attacker is never understated
        assert found >= exact - 2e-3 * mu - 1e-4
    assert curve.advantage == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1, rel=1e-9)


@given(statements, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_every_curve_is_convex_falling_below_chance_and_symmetric(pairs, one, two, weight):
    curve = TradeOff(pairs)
    low, high = sorted((one, two))
    f = curve.false_negative_rate
    assert f(low) >= f(high) - 1e-12
    assert 0 <= f(one) <= 1 - one + 1e-12
    middle = weight * low + (1 - weight) * high
    assert f(middle) <= weight * f(low) + (1 - weight) * f(high) + 1e-9
    # A test and its opposite: whoever reaches (a, f(a)) reaches (f(a), a), and nobody reaches more.
    assert f(f(one)) <= one + 1e-9
    assert curve.advantage >= 1 - one - f(one) - 1e-9


@given(statements, statements, st.floats(0, 1))
def test_more_statements_never_help_the_attacker(some, more, rate):
    curve, both = TradeOff(some), TradeOff(some).merged(TradeOff(more))
    assert both.false_negative_rate(rate) >= curve.false_negative_rate(rate) - 1e-12
    assert both.advantage <= curve.advantage + 1e-12


@example(5.0, 1e-13, 5)
@given(st.floats(0, 8), st.floats(0, 0.3), st.integers(1, 5))
def test_a_group_of_one_statement_is_the_general_bound(epsilon, delta, size):
    group = TradeOff([(epsilon, delta)]).group(size)
    grown = sum(math.exp(i * epsilon) for i in range(size)) * delta
    if grown < 1:
        assert group.epsilon(min(1.0, grown * (1 + 1e-9))) <= size * epsilon + 1e-9
    for rate in RATES:
        single = rate
        for _ in range(size):
            single = TradeOff([(epsilon, delta)]).true_positive_rate(single)
        # The chain of neighbors is the exact general bound: the tangents come close to it and never below.
        assert group.true_positive_rate(rate) >= single - 1e-9


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_general_bound_of_a_gaussian_is_a_gaussian_of_that_many_mu(size):
    group = gaussian(0.3).group(size)
    for rate in RATES:
        exact = stats.norm.cdf(stats.norm.ppf(1 - rate) - size * 0.3)
        assert exact - 5e-3 <= group.false_negative_rate(rate) <= exact + 1e-9


@pytest.mark.parametrize("failure", [1e-5, 1e-2])
def test_the_odds_of_a_gaussian_pass_their_factor_no_more_often_than_stated(failure):
    mu = 1.5
    factor = gaussian(mu).odds_factor(failure)
    # L is N(mu^2/2, mu^2) when the record was used.
    passed = stats.norm.sf((math.log(factor) - mu**2 / 2) / mu)
    assert passed <= failure
    exact = math.exp(mu**2 / 2 + mu * stats.norm.isf(failure))
    assert factor <= exact * 2.5


def test_posteriors_follow_the_odds():
    curve = TradeOff([(math.log(3), 0.0)])
    assert curve.posterior(0.5, 1e-9) == pytest.approx(0.75)
    assert curve.posterior(0.0, 1e-9) == 0
    assert curve.posterior(1.0, 1e-9) == 1
    assert TradeOff([(1.0, 1e-5)]).posterior(0.01, 1e-5) == 1  # at delta itself nothing is limited
    assert TradeOff([(1.0, 1e-5)]).odds_factor(2e-5) == pytest.approx(2 * math.e)


def test_the_posterior_of_a_coin_is_what_a_simulation_finds():
    """Randomized response with epsilon ln 3: of those who answer yes, three in four are in."""
    generator = np.random.default_rng(1)
    member = generator.random(200_000) < 0.5
    answer = np.where(generator.random(200_000) < 0.75, member, ~member)
    found = member[answer].mean()
    assert found == pytest.approx(TradeOff([(math.log(3), 0.0)]).posterior(0.5, 1e-9), abs=0.01)  # ten deviations


def test_the_laplace_curve_by_numerical_integration():
    epsilon = 1.3
    profile = TradeOff([(e, max(0.0, 1 - math.exp((e - epsilon) / 2))) for e in np.linspace(0, epsilon, 400)])
    # The most powerful test accepts above a threshold; both of its errors by quadrature of the densities.
    for threshold in (-0.5, 0.2, 0.7, 1.5):
        fpr = integrate.quad(lambda x: stats.laplace.pdf(x), threshold, np.inf)[0]
        fnr = integrate.quad(lambda x: stats.laplace.pdf(x, epsilon), -np.inf, threshold)[0]
        assert fnr - 1e-4 <= profile.false_negative_rate(fpr) <= fnr + 1e-9


@pytest.mark.parametrize(
    ("pairs", "vacuous"),
    [
        ([(10.0, 1e-5)], False),  # the largest epsilon that the literature calls reasonable
        ([(8.0, 0.1)], False),
        ([(10.9, 0.0)], True),
        ([(3000.0, 1e-5)], True),
        ([(math.inf, 1e-5)], True),
        ([(0.0, 0.5)], True),
        ([(0.0, 0.49)], False),
        ([(0.0, 1.0)], True),
        ([], True),
    ],
)
def test_what_promises_nothing(pairs, vacuous):
    assert TradeOff(pairs).vacuous == vacuous


def test_the_rule_is_about_the_curve_and_not_about_epsilon_alone():
    """Redistricting data of the 2020 US census: rho = 2.63, an epsilon above 16 at delta 1e-10, and not vacuous."""
    census, threshold = gaussian(math.sqrt(2 * 2.63)), stats.norm.isf(VACUOUS_FALSE_POSITIVES)
    assert gdp_epsilon(math.sqrt(2 * 2.63), 1e-10) > 16
    assert not census.vacuous
    assert gaussian(threshold + 0.01).vacuous
    assert not gaussian(threshold - 0.05).vacuous


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan])
def test_a_rate_that_is_none_gets_a_sentence(rate):
    with pytest.raises(InputError, match="from 0 to 1"):
        TradeOff([(1.0, 0.0)]).false_negative_rate(rate)


@pytest.mark.parametrize("pair", [(-1.0, 0.0), (math.nan, 0.0), (1.0, 1.5), (1.0, -0.1)])
def test_a_statement_that_is_none_gets_a_sentence(pair):
    with pytest.raises(InputError, match="A statement needs"):
        TradeOff([pair])


def test_a_tiny_rate_times_a_huge_factor_does_not_overflow():
    curve = TradeOff([(3000.0, 1e-6), (5.0, 0.9)])
    assert curve.true_positive_rate(5e-324) == pytest.approx(0.9)  # not 1e-6: e^3000 times that rate is more than 1
    assert curve.true_positive_rate(0.0) == pytest.approx(1e-6)
