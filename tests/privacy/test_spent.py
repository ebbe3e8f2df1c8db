"""The sentence: epsilon never travels alone, and is never rounded down."""

import math

from hypothesis import given
from hypothesis import strategies as st

from privet.privacy import Gaussian, PoissonSampled, accountant_named
from privet.privacy.spent import round_up


def test_the_sentence():
    spent = accountant_named("pld").spent(PoissonSampled(0.01, Gaussian(0.8757)) * 1500, 1e-5)
    assert str(spent) == "epsilon = 2.99 at delta = 1e-05 (add/remove one record; Poisson sampling; PLD; proved)"
    assert spent.to_dict()["relation"] == "add-remove"


@given(st.floats(1e-12, 1e9))
def test_a_printed_epsilon_is_never_below_the_computed_one(epsilon):
    printed = float(round_up(epsilon))
    assert epsilon * (1 - 1e-11) <= printed <= epsilon * 1.0101


def test_plain_numbers_stay_plain():
    assert [round_up(x) for x in (0.0, 3.0, 2.98, 0.5, math.inf, 100.0)] == ["0", "3", "2.98", "0.5", "inf", "100"]


def test_a_bound_just_below_a_thousand_is_written_out():
    assert [round_up(epsilon) for epsilon in (998.2, 999.2, 1000.2)] == ["999", "1000", "1001"]


def test_an_infinite_epsilon_is_not_called_proved():
    said = str(accountant_named("pld").spent(Gaussian(0.0), 1e-5))
    assert said == "epsilon = inf at delta = 1e-05 (add/remove one record; no sampling; PLD; nothing is protected)"
