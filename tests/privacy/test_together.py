"""Runs with different neighbors as one statement."""

import math

import pytest

from privet.errors import InputError
from privet.privacy import (
    Adaptive,
    ApproximateDP,
    FixedSizeSampled,
    Gaussian,
    NotPrivate,
    Part,
    PoissonSampled,
    RandomizedResponse,
    Relation,
    UnsupportedEventError,
    accountant_named,
    spent_together,
)

PLD = accountant_named("pld")
ADD, REPLACE = Relation.ADD_REMOVE, Relation.REPLACE_ONE
STEPS = PoissonSampled(0.01, Gaussian(1.1)) * 500
FIXED = FixedSizeSampled(10, 1000, Gaussian(2.0)) * 100


def test_runs_about_the_same_neighbors_are_composed():
    both = spent_together([Part(STEPS, ADD), Part(Gaussian(5.0), ADD)], 1e-5)
    assert both.spent == PLD.spent(STEPS + Gaussian(5.0), 1e-5)
    assert str(both) == str(both.spent)


def test_runs_about_different_neighbors_are_read_for_replacing_a_record():
    both = spent_together([Part(STEPS, ADD), Part(FIXED, REPLACE)], 1e-5)
    assert both.spent == PLD.spent(STEPS + FIXED, 1e-5, REPLACE)
    assert "Runs with statements about adding or removing a record were counted for replacing one" in str(both)
    assert both.epsilon > max(PLD.epsilon(STEPS, 1e-5), PLD.epsilon(FIXED, 1e-5, REPLACE))


def test_what_is_bounded_for_replacing_only_is_left_out_of_a_statement_about_adding():
    whole = spent_together([Part(STEPS, ADD), Part(FIXED, REPLACE, name="the fixed run")], 1e-5, ADD)
    assert whole.spent.epsilon == PLD.epsilon(STEPS, 1e-5)
    ((name, reason),) = whole.left_out
    assert name == "the fixed run"
    assert "add/remove one record no theorem covers it" in reason
    assert "Not counted: the fixed run, because" in str(whole)
    with pytest.raises(UnsupportedEventError, match="no theorem covers it"):
        spent_together([Part(RandomizedResponse(0.5, 2), REPLACE)], 1e-5, ADD)


def test_another_unit_is_left_out_and_the_rest_is_still_counted():
    three = spent_together([Part(STEPS, ADD), Part(Gaussian(5.0), ADD, "user", "theirs"), Part(STEPS, ADD)], 1e-5)
    assert three.epsilon == PLD.epsilon(STEPS * 2, 1e-5)
    assert three.left_out == (("theirs", "it protects one user, but the others protect one record"),)


def test_group_privacy_where_there_is_nothing_better():
    """RDP knows no sampled Gaussian with a record replaced: two steps of add/remove bound it."""
    rdp, small = accountant_named("rdp"), PoissonSampled(0.01, Gaussian(4.0)) * 10
    both = spent_together([Part(small, ADD), Part(Gaussian(20.0), REPLACE)], 1e-5, accountant="pld")
    assert both.left_out == ()
    chosen = Adaptive(small, 32.0, 0.01)
    mixed = spent_together([Part(chosen, ADD), Part(FIXED, REPLACE)], 1e-5)
    assert "(2 epsilon, (1 + e^epsilon) delta)" in str(mixed)
    share = 1e-5 / 8
    stated = max(
        delta for delta in (share / 4, share / 8) if (1 + math.exp(PLD.epsilon(chosen, delta))) * delta <= share
    )
    assert mixed.epsilon <= 2 * PLD.epsilon(chosen, stated) + PLD.epsilon(FIXED, 1e-6, REPLACE)
    assert mixed.epsilon >= PLD.epsilon(FIXED, 1e-5, REPLACE)
    assert not rdp.supports(small, REPLACE)


def test_group_privacy_is_what_stated_mechanisms_are_composed_by():
    event = ApproximateDP(0.5, 1e-7)
    both = spent_together([Part(event, ADD), Part(Gaussian(1000.0), REPLACE)], 1e-5)
    assert both.epsilon == pytest.approx(1.0, rel=0.02)


def test_runs_by_different_filters_enter_with_their_own_statements():
    for relation in Relation:
        one, other = Adaptive(Gaussian(9.0), 8.0, 0.3, relation), Adaptive(Gaussian(9.0), None, 0.3, relation)
        both = spent_together([Part(one, relation), Part(other, relation)], 1e-5)
        singles = [PLD.epsilon(event, 1e-5 / 8, relation) for event in (one, other)]
        assert max(singles) * 0.5 < both.epsilon <= sum(singles) * 1.001
        assert "filter" in str(both)


def test_an_unprotected_run_makes_the_whole_unprotected():
    assert spent_together([Part(STEPS, ADD), Part(NotPrivate(), ADD)], 1e-5).epsilon == math.inf
    with pytest.raises(InputError, match="no runs"):
        spent_together([], 1e-5)
