"""Guarantees: the weakest wins, and each can be read in a sentence."""

import pytest

from privet.errors import InputError
from privet.privacy import Assumed, Claimed, Proved, weakest
from privet.privacy.guarantees import guarantee_from_dict, guarantee_to_dict

CLAIM = Claimed("a paper", "its theorem 2 fails")


def test_the_weakest_guarantee_is_that_of_the_whole():
    labels, norms = Assumed("labels are public"), Assumed("norms are bounded")
    assert weakest([]) == Proved()
    assert weakest([Proved(), Proved()]) == Proved()
    assert weakest([Proved(), labels, norms, labels]) == Assumed("labels are public", "norms are bounded")
    assert weakest([labels, CLAIM, Proved()]) == CLAIM


def test_two_claims_name_both():
    other = Claimed("another paper", "no clipping")
    assert str(weakest([CLAIM, other])) == (
        "only claimed by a paper and another paper: its theorem 2 fails; no clipping"
    )


@pytest.mark.parametrize("guarantee", [Proved(), Assumed("a", "b"), CLAIM])
def test_a_guarantee_survives_serialisation(guarantee):
    assert guarantee_from_dict(guarantee_to_dict(guarantee)) == guarantee


def test_empty_reasons_are_refused():
    for make in (lambda: Assumed(), lambda: Assumed(""), lambda: Claimed("", "x"), lambda: Claimed("x", "")):
        with pytest.raises(InputError):
            make()
    with pytest.raises(InputError, match="not a guarantee"):
        guarantee_from_dict({"guarantee": "sworn"})
