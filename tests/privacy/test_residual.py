"""The theorems of the residual-perturbation paper: its figures, their inverses, and what stands behind them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.errors import InputError
from privet.privacy import Assumed, Claimed, Gaussian, Ledger, Proved
from privet.privacy.residual import (
    Theorem1,
    Theorem2,
    cost_of_epsilon,
    epsilon_of_cost,
    input_event,
    query_event,
    stream_event,
)

# 100 epochs, as T = 31,300 steps of 128 of 40,064 records.
IDC = Theorem1(steps=31_300, batch_size=128, records=40_064, blocks=3, delta=1e-5, bound=30, radius=30)


def test_the_papers_figure_and_its_inverse():
    assert IDC.epochs == 100
    assert round(IDC.epsilon_by_stream(0.75)) == 108_883  # the paper prints 1.1e5
    assert IDC.gamma(108_883.0108) == pytest.approx(0.75, rel=1e-8)


@pytest.mark.parametrize("share", [None, 0.1, 0.5, 0.9])
@given(epsilon=st.floats(1e-3, 1e6), delta=st.floats(1e-12, 0.5))
def test_both_directions_agree(share, epsilon, delta):
    assert epsilon_of_cost(cost_of_epsilon(epsilon, delta, share), delta, share) == pytest.approx(epsilon, rel=1e-6)


def test_a_share_satisfies_the_printed_conditions_and_the_best_one_is_the_closed_form():
    gamma, best = 0.75, IDC.epsilon_by_stream(0.75)
    found = []
    for share in np.linspace(0.01, 0.9999, 4000):
        theorem = Theorem1(31_300, 128, 40_064, 3, 1e-5, share=float(share))
        epsilon = theorem.epsilon_by_stream(gamma)
        alpha = math.log(1e5) / ((1 - share) * epsilon) + 1
        assert gamma == pytest.approx(30 * math.sqrt(2 * 100 * alpha / (3 * share * epsilon)), rel=1e-6)
        found.append(epsilon)
    assert best <= min(found) <= 1.001 * best


def test_theorem_1_asks_for_both_kinds_of_noise():
    assert IDC.epsilon(0.75, 0.0) == math.inf
    assert IDC.epsilon(0.75, 1e9) == IDC.epsilon_by_stream(0.75)
    pi = IDC.pi(8.0)
    assert IDC.epsilon_by_input(pi) == pytest.approx(8.0)
    assert IDC.epsilon(1e9, pi) == pytest.approx(8.0)
    # Noise on the input is not divided among the blocks.
    assert pi == pytest.approx(IDC.gamma(8.0) * math.sqrt(3))


def test_theorem_2_both_ways_and_over_many_queries():
    theorem = Theorem2(blocks=3, delta=1e-5, bound=2.0, floor=0.5, weight_norm=1.5)
    gamma, pi = theorem.gamma(1.0, queries=10), theorem.pi(1.0, queries=10)
    assert theorem.epsilon(gamma, pi, queries=10) == pytest.approx(1.0)
    assert theorem.epsilon(gamma, pi) < 1.0 < theorem.epsilon(gamma, pi, queries=11)
    assert gamma == pytest.approx(theorem.gamma(1.0) * math.sqrt(10))
    share = Theorem2(3, 1e-5, 2.0, 0.5, 1.5, share=0.5)
    alpha = math.log(1e5) / (0.5 * 1.0) + 1
    assert share.gamma(1.0) == pytest.approx(2.0 / 0.5 * math.sqrt(2 * alpha * 3 / 0.5))
    assert share.pi(1.0) == pytest.approx(1.5 * math.sqrt(2 * alpha * 3 / 0.5))


def divergence(ledger, order):
    """Of all Gaussian releases in a ledger for replacing a record: a (2/z)^2 / 2 each."""
    total = 0.0
    for event, count in ledger:
        for leaf, times in event.leaves():
            assert isinstance(leaf, Gaussian)
            total += count * times * order * (2 / leaf.noise_multiplier) ** 2 / 2
    return total


def test_events_have_the_divergence_of_the_theorems():
    ledger = Ledger(relation="replace-one")
    ledger.record(stream_event(0.75, 30, 3), 100)
    assert divergence(ledger, 7) == pytest.approx(7 * 2 * 100 * 30**2 / (3 * 0.75**2))
    spent = ledger.spent(1e-5)
    assert 0.95 * 108_883 < spent.epsilon <= 108_883  # exact composition of what is claimed
    assert isinstance(spent.guarantee, Claimed)
    assert "gradient of the first layers holds the records" in str(spent)

    ledger = Ledger(relation="replace-one")
    ledger.record(input_event(60, 30), 5)
    assert divergence(ledger, 3) == pytest.approx(3 * 2 * 5 * 30**2 / 60**2)
    assert ledger.spent(1e-5).epsilon <= Theorem1(5, 1, 1, 3, 1e-5).epsilon_by_input(60)
    assert ledger.guarantee == Proved()

    ledger = Ledger(relation="replace-one")
    ledger.record(query_event(4.0, 6.0, bound=2.0, floor=0.5, weight_norm=1.5, blocks=3, heads=2), 10)
    assert divergence(ledger, 2) == pytest.approx(10 * 2 * (2 * 3 * 1.0 + 2 * 2 * (1.5 / 6) ** 2))
    assert isinstance(ledger.guarantee, Assumed)


def test_noise_on_the_input_is_the_gaussian_mechanism():
    # Replacing an input of norm 30 by its opposite moves it by 60: mu = 60/pi, over 4 epochs 120/pi.
    mu = 4 * 30 / 60.0
    ledger = Ledger(relation="replace-one")
    ledger.record(input_event(60, 30), 4)
    epsilon = ledger.spent(1e-3).epsilon

    def normal(x):
        return 0.5 * math.erfc(-x / math.sqrt(2))

    delta = normal(-epsilon / mu + mu / 2) - math.exp(epsilon) * normal(-epsilon / mu - mu / 2)
    assert delta == pytest.approx(1e-3, rel=0.01)


@pytest.mark.parametrize(
    "make",
    [
        lambda: epsilon_of_cost(1.0, 0.0),
        lambda: epsilon_of_cost(-1.0, 0.1),
        lambda: cost_of_epsilon(0.0, 0.1),
        lambda: cost_of_epsilon(1.0, 0.1, share=1.0),
        lambda: Theorem1(0, 1, 1, 1, 0.1),
        lambda: Theorem2(3, 0.1, 1.0, 0.0, 1.0),
        lambda: IDC.epsilon_by_stream(-1.0),
    ],
)
def test_what_makes_no_sense_is_refused(make):
    with pytest.raises(InputError):
        make()
