"""The data-dependent cost of votes against its formula in high precision, exact divergences and the other bound."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.methods.voting import ORDERS, Confidence, analyze, divergences, log_upset
from privet.privacy import Ledger, NoisyTopCount, NoisyVotes

from .test_voting import winner_probabilities

mpmath.mp.dps = 400  # 1 - q must not be 1


def in_high_precision(q, scale, order):
    """Theorem 6 of the paper with the orders of its Proposition 10; None where its conditions fail."""
    q, scale, order = mpmath.mpf(q), mpmath.mpf(scale), mpmath.mpf(order)
    second = mpmath.sqrt(scale * mpmath.log(1 / q))
    first = second + 1
    e1, e2 = first / scale, second / scale
    if second <= 1 or order > first:
        return None
    if (
        q > mpmath.exp((second - 1) * e2) / (first / (first - 1) * second / (second - 1)) ** second
        or q * mpmath.exp(e2) >= 1
    ):
        return None
    a = (1 - q) / (1 - (q * mpmath.exp(e2)) ** ((second - 1) / second))
    b = mpmath.exp(e1) / q ** (1 / (first - 1))
    return mpmath.log((1 - q) * a ** (order - 1) + q * b ** (order - 1)) / (order - 1)


@pytest.mark.parametrize("scale", [25.0, 1600.0, 2 * 150.0**2])
@pytest.mark.parametrize("q", [1e-300, 1e-40, 1e-9, 1e-4, 0.02, 0.3, 0.9])
def test_the_formula(q, scale):
    orders = np.array([1.1, 1.5, 2, 5, 17, 63, 512.0])
    found = divergences(np.array([math.log(q)]), scale, orders)[0]
    for order, value in zip(orders, found, strict=True):
        exact = in_high_precision(q, scale, order)
        wanted = order / scale if exact is None else min(float(exact), order / scale)
        assert value == pytest.approx(wanted, rel=1e-9, abs=1e-300)


@given(
    st.lists(st.lists(st.integers(0, 250), min_size=3, max_size=3), min_size=1, max_size=5),
    st.floats(0.5, 300),
)
@settings(max_examples=30, deadline=None)
def test_it_is_never_above_what_holds_for_all_records(counts, noise):
    orders = np.array(ORDERS, dtype=float)
    found = divergences(log_upset(np.array(counts, dtype=float), noise), noise**2, orders)
    assert (found >= 0).all()
    assert (found <= orders / noise**2 * (1 + 1e-12)).all()


@pytest.mark.parametrize(("counts", "noise"), [((30, 6, 4), 6.0), ((16, 14, 10), 4.0)])
def test_it_bounds_the_exact_divergence_from_every_neighbour(counts, noise):
    here = np.array(winner_probabilities(counts, noise))
    orders = np.array([1.5, 2, 4, 8.0])
    bound = divergences(log_upset(np.array([counts], dtype=float), noise), noise**2, orders)[0]
    assert 1 - here.max() <= math.exp(log_upset(np.array([counts], dtype=float), noise)[0]) * (1 + 1e-9)
    for giver in range(3):
        for taker in range(3):
            moved = list(counts)
            moved[giver], moved[taker] = moved[giver] - 1, moved[taker] + 1
            there = np.array(winner_probabilities(moved, noise))
            exact = np.log((here[:, None] ** orders * there[:, None] ** (1 - orders)).sum(0)) / (orders - 1)
            assert (exact <= bound * (1 + 1e-6)).all()


def test_agreement_is_cheap_and_doubt_is_not():
    asked = torch.arange(100)
    agreed = analyze(torch.tensor([[250, 0, 0]] * 100), asked, 20.0, None, 1e-5)
    torn = analyze(torch.tensor([[84, 83, 83]] * 100), asked, 20.0, None, 1e-5)
    ledger = Ledger()
    ledger.record(NoisyVotes(20.0) * 100)
    assert agreed.epsilon < 0.5 * torn.epsilon
    assert torn.epsilon == pytest.approx(ledger.spent(1e-5, "rdp").epsilon, rel=0.01)


def test_checks_are_counted_too():
    counts, confidence = torch.tensor([[150, 50]] * 40), Confidence(150.0, 30.0)
    without = analyze(counts, torch.arange(40), 20.0, None, 1e-5).epsilon
    with_checks = analyze(counts, torch.arange(40), 20.0, confidence, 1e-5).epsilon
    ledger = Ledger()
    ledger.record(NoisyVotes(20.0) * 40 + NoisyTopCount(30.0) * 40)
    assert without < with_checks <= ledger.spent(1e-5, "rdp").epsilon * 1.001


def test_it_says_that_it_is_not_for_release():
    said = str(analyze(torch.tensor([[250, 0]]), torch.arange(1), 40.0, None, 1e-5))
    assert "at these records alone" in said
    assert said.endswith("internal, not for release")
