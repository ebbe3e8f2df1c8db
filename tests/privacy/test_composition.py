"""Composition theorems: the paper's comparison curve, both amplifications, and the optimal theorem's exact formula."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from privet.privacy import (
    ApproximateDP,
    Claimed,
    FixedSizeSampled,
    Gaussian,
    NotPrivate,
    PoissonSampled,
    Proved,
    PureEpsilon,
    ShuffledEpoch,
    UnsupportedEventError,
    accountant_named,
)
from privet.privacy.accountants.composition import Strong

STEP = PoissonSampled(0.01, Gaussian(4.0))
BASIC, STRONG, OPTIMAL = (accountant_named(name) for name in ("basic", "strong", "optimal"))
PUBLISHED = accountant_named("strong-published")


@pytest.mark.parametrize(("steps", "epsilon", "paper"), [(10_000, 9.353, 9.34), (40_000, 24.245, 24.22)])
def test_the_paper_s_curve(steps, epsilon, paper):
    found = PUBLISHED.epsilon(STEP * steps, 1e-5)
    assert found == pytest.approx(epsilon, abs=6e-4)
    assert found == pytest.approx(paper, rel=2e-3)


def test_with_the_correct_amplification_the_curve_is_far_higher():
    assert Strong(classic=True).epsilon(STEP * 10_000, 1e-5) == pytest.approx(26.4, abs=0.05)


def test_the_published_curve_says_that_it_is_only_claimed():
    assert isinstance(PUBLISHED.spent(STEP, 1e-5).guarantee, Claimed)
    assert STRONG.spent(STEP, 1e-5).guarantee == Proved()


def kairouz_oh_viswanath(epsilon, steps, delta):
    """Theorem 3.3: the least (k - 2i) epsilon whose delta_i is at most delta, in exact binomial sums."""
    best = math.inf
    for i in range(steps // 2 + 1):
        target = (steps - 2 * i) * epsilon
        counts = np.arange(i)
        terms = np.exp((steps - counts) * epsilon) - np.exp((steps - 2 * i + counts) * epsilon)
        mass = binom.pmf(counts, steps, 0.5) * 2.0**steps
        if (mass * terms).sum() / (1 + math.exp(epsilon)) ** steps <= delta:
            best = target
    return best


@pytest.mark.parametrize(("epsilon", "steps", "delta"), [(0.1, 100, 1e-6), (0.5, 20, 1e-3), (0.05, 300, 1e-5)])
def test_optimal_composition_is_the_theorem(epsilon, steps, delta):
    exact = kairouz_oh_viswanath(epsilon, steps, delta)
    found = OPTIMAL.epsilon(PureEpsilon(epsilon) * steps, delta)
    # The theorem states multiples of 2 epsilon; the curve between them is below the next one.
    assert exact - 2 * epsilon < found <= exact * 1.001


def test_optimal_is_no_worse_than_strong_is_no_worse_than_basic():
    events = (
        PureEpsilon(0.1) * 500,
        STEP * 1000,
        PureEpsilon(0.1) * 100 + PureEpsilon(0.02) * 1000 + Gaussian(20.0),
        PoissonSampled(0.05, PureEpsilon(0.5)) * 400,
        ApproximateDP(0.05, 1e-9) * 200,
    )
    for event in events:
        epsilons = [one.epsilon(event, 1e-5) for one in (OPTIMAL, STRONG, BASIC)]
        assert epsilons == sorted(epsilons)
        assert accountant_named("pld").epsilon(event, 1e-5) <= epsilons[0] * 1.001


def test_basic_composition_adds():
    assert BASIC.epsilon(PureEpsilon(0.25) * 4 + PureEpsilon(1.0), 0.0) == 2.0
    assert BASIC.epsilon(ApproximateDP(0.5, 1e-6) * 4, 4e-6) == 2.0
    assert BASIC.epsilon(ApproximateDP(0.5, 1e-6) * 4, 3.9e-6) == math.inf
    assert BASIC.epsilon(PureEpsilon(0.5), 1e-9, "replace-one") == 1.0


def test_delta_is_the_inverse_of_epsilon():
    event = STEP * 50
    for accountant in (BASIC, STRONG):
        epsilon = accountant.epsilon(event, 1e-6)
        assert accountant.delta(event, epsilon * 1.001) == pytest.approx(1e-6, rel=0.1)


def test_what_has_no_epsilon_of_its_own_is_named():
    with pytest.raises(UnsupportedEventError, match="Strong composition cannot bound FixedSizeSampled"):
        STRONG.epsilon(FixedSizeSampled(1, 10, Gaussian(1.0)), 1e-5)
    with pytest.raises(UnsupportedEventError, match="Basic composition cannot bound ShuffledEpoch"):
        BASIC.epsilon(ShuffledEpoch(10, Gaussian(1.0)), 1e-5)
    assert STRONG.epsilon(STEP + NotPrivate(), 1e-5) == math.inf
