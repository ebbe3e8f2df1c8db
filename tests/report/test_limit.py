"""The limit of a guarantee against its definition."""

import math

import pytest
from scipy import stats

from privet.report.limit import Limit


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 1e-5), (3.0, 1e-2), (8.0, 0.0)])
@pytest.mark.parametrize("fpr", [0.0, 0.001, 0.2, 0.9, 1.0])
def test_the_limit_is_the_tightest_of_the_two_inequalities(epsilon, delta, fpr):
    tpr = Limit(epsilon, delta)(fpr)
    factor = math.exp(epsilon)
    assert tpr <= factor * fpr + delta + 1e-12
    assert 1 - fpr <= factor * (1 - tpr) + delta + 1e-12
    higher = tpr + 1e-6
    assert tpr == 1 or higher > factor * fpr + delta or 1 - fpr > factor * (1 - higher) + delta


def test_no_attack_on_the_gaussian_mechanism_comes_above_it():
    # Sensitivity 1, sigma 1: the best attack has TPR = Phi(1 + Phi^-1(FPR)); (epsilon, delta) by the exact formula.
    epsilon = 2.0
    delta = stats.norm.cdf(0.5 - epsilon) - math.exp(epsilon) * stats.norm.cdf(-0.5 - epsilon)
    limit = Limit(epsilon, float(delta))
    slack = [limit(f) - stats.norm.cdf(1 + stats.norm.ppf(f)) for f in (1e-4, 0.001, 0.0062, 0.01, 0.1, 0.5, 0.9)]
    assert min(slack) >= 0
    assert min(slack) < 1e-3  # and it touches


@pytest.mark.parametrize("epsilon", [math.inf, 1000.0])
def test_an_epsilon_beyond_all_bounds_limits_nothing(epsilon):
    assert Limit(epsilon, 1e-5)(0.0) == 1
