"""Accountants are registered by name; those of other packages are only as good as their assumption."""

import pytest

from privet.errors import InputError
from privet.privacy import (
    ACCOUNTANTS,
    Accountant,
    Assumed,
    Gaussian,
    PoissonSampled,
    Proved,
    UnsupportedEventError,
    accountant_named,
    accountant_names,
)
from privet.privacy.accountants.rdp import GDP

OWN = ("pld", "rdp", "moments", "strong", "strong-published", "optimal", "basic", "gdp", "pld-reference")


class Twice(GDP):
    """Twice the epsilon of GDP: a bound, and not a good one."""

    key = "twice"
    name = "twice GDP"

    def bound_epsilon(self, events, delta, relation):
        return 2 * super().bound_epsilon(events, delta, relation)


def test_privets_own_come_first_and_in_their_order():
    assert accountant_names()[: len(OWN)] == OWN
    assert all(accountant_named(name).key == name for name in OWN)


def test_a_name_may_be_written_in_capitals_and_an_accountant_is_passed_through():
    assert accountant_named("PLD") is accountant_named("pld")
    own = Twice()
    assert accountant_named(own) is own
    with pytest.raises(InputError, match="given by its name"):
        accountant_named(3)  # type: ignore[arg-type]


def test_an_accountant_of_another_package_works_everywhere_and_is_only_assumed():
    ACCOUNTANTS.register(Twice)
    assert accountant_names()[-1] == "twice"
    found = accountant_named("twice").spent(Gaussian(2.0), 1e-5)
    assert found.epsilon == 2 * accountant_named("gdp").epsilon(Gaussian(2.0), 1e-5)
    assert found.guarantee == Assumed("the accountant twice GDP, which is not part of Privet, is right")
    assert accountant_named("gdp").spent(Gaussian(2.0), 1e-5).guarantee == Proved()
    with pytest.raises(UnsupportedEventError, match="Twice GDP cannot bound PoissonSampled"):
        accountant_named("twice").epsilon(PoissonSampled(0.1, Gaussian(2.0)), 1e-5)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "is not an accountant: derive it from privet.privacy.Accountant"),
        (int, "is not an accountant"),
        (Accountant, "cannot be created: Can't instantiate abstract class"),
    ],
)
def test_only_accountants_are_registered(value, message):
    with pytest.raises(InputError, match=message):
        ACCOUNTANTS.register("wrong", value)
    assert "wrong" not in accountant_names()


def test_privets_own_cannot_be_replaced():
    with pytest.raises(InputError, match="There is an accountant 'pld' already, which is part of Privet"):
        ACCOUNTANTS.register("pld", Twice)
    assert accountant_named("pld").name == "PLD"
