"""`privet.audit.mechanism` on mechanisms whose epsilon is known, and what its result says."""

import dataclasses
import json
import math
from datetime import UTC, datetime

import numpy as np
import pytest
import torch

import privet
from privet.audit import Audit, Claim, GaussianTradeOff
from privet.audit.result import round_down
from privet.errors import InputError, PrivetError
from privet.privacy import Assumed, Claimed, Gaussian, Ledger, Proved, Spent


def laplace(records, generator):
    """A count with Laplace noise: epsilon 1."""
    one, other = -torch.log1p(-torch.rand(2, generator=generator))
    return len(records) + float(one - other)


def test_a_laplace_count_is_consistent_with_its_epsilon_and_refuted_below_it():
    found = privet.audit.mechanism(laplace, [1, 2, 3], [1, 2], claimed=1.0, draws=4000)
    assert 0.7 < found.lower_bound <= 1.0
    assert not found.refuted
    half = privet.audit.mechanism(laplace, [1, 2, 3], [1, 2], claimed=0.5, draws=4000)
    assert half.refuted and half.lower_bound == found.lower_bound


def test_the_learned_score_finds_a_change_of_spread():
    def spread(records, generator):
        return {"value": torch.randn(3, generator=generator) * len(records), "more": [1.0, np.zeros(2)]}

    found = privet.audit.mechanism(spread, [0] * 6, [0], claimed=0.1, delta=1e-5, draws=2000)
    assert found.refuted


def test_a_given_score_sees_what_a_learned_one_cannot():
    def hidden(records, generator):
        one, other = torch.randn(2, generator=generator)
        return torch.stack([one, other.abs() * one.sign() if records else other])  # only the product's sign tells

    def score(release):
        return float(release[0] * release[1] > 0)

    blind = privet.audit.mechanism(hidden, [1], [], claimed=1.0, draws=1000)
    seeing = privet.audit.mechanism(hidden, [1], [], claimed=1.0, draws=1000, score=score)
    assert not blind.refuted
    assert seeing.refuted


def test_a_claim_by_events_is_taken_at_the_audit_s_delta():
    ledger = Ledger()
    ledger.record(Gaussian(1.0))
    assert Claim.of(ledger, 0.01) == Claim.of(Gaussian(1.0), 0.01)
    assert Claim.of(ledger.spent(0.01), 0.01).epsilon == pytest.approx(2.32, abs=0.01)
    assert "add/remove" in Claim.of(ledger, 0.01).statement
    with pytest.raises(InputError, match="use one"):
        Claim.of(ledger.spent(0.02), 0.01)
    assert isinstance(ledger.spent(0.01), Spent)


def test_the_same_seed_is_the_same_audit():
    one, other, third = (privet.audit.mechanism(laplace, [1], [], claimed=1.0, draws=200, seed=s) for s in (5, 5, 6))
    assert one == other
    assert third != one


def test_the_sentence_and_the_plain_form_say_everything():
    found = Audit("A thing", Claim.of(1.0, 1e-5), 2.3456, 5.6789, 0.99, "Clopper-Pearson", "10 draws", "two records")
    assert str(found) == (
        "A thing: epsilon is at least 2.34 at delta = 1e-05 with 99 % confidence (Clopper-Pearson; 10 draws; a perfect "
        "attack would show 5.67). Claimed: epsilon = 1 at delta = 1e-05 (as stated; add/remove one record). "
        "Verdict: refuted at 99 %."
    )
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert Audit.from_dict(plain) == found
    assert plain["refuted"] is True
    assert Audit("", Claim.of(6.0, 0.0), 2.0, 5.0, 0.95, "", "").verdict == (
        "consistent, and this audit could not have refuted it"
    )
    unbounded = Audit("", Claim(math.inf, 0.0, "not private"), 2.0, 5.0, 0.95, "", "")
    assert unbounded.to_dict()["claimed_epsilon"] is None
    assert Audit.from_dict(unbounded.to_dict()) == unbounded
    with pytest.raises(InputError, match="not an audit"):
        Audit.from_dict({})


def test_an_audit_has_a_date_a_command_and_its_power():
    found = privet.audit.mechanism(laplace, [1], [], claimed=1.0, draws=200, setting="a count").by(["privet", "audit"])
    assert datetime.fromisoformat(found.date).tzinfo is UTC
    assert found.command == ("privet", "audit") and found.setting == "a count"
    assert found.power.startswith("100 draws with the record and 100 without; at most epsilon 2.91")
    plain = json.loads(json.dumps(found.to_dict()))
    again = Audit.from_dict(plain)
    assert (again, again.date, again.command) == (found, found.date, found.command)


def test_the_verdict_covers_the_audited_parts_only():
    parts = {"audited": "the noise", "not_audited": "the run's clipping"}
    found = Audit("A thing", Claim.of(1.0, 1e-5), 0.5, 5.0, 0.99, "m", "e", **parts)
    assert found.verdict == "consistent for the parts that were audited"
    assert "Audited: the noise. Not audited: the run's clipping. Verdict: consistent for the parts" in str(found)
    few = dataclasses.replace(found, ceiling=0.9)
    assert few.verdict == "consistent for the parts that were audited, and this audit could not have refuted it"
    assert dataclasses.replace(found, lower_bound=2.0).verdict == "refuted at 99 %"


def test_a_claim_is_not_stronger_than_its_run():
    claim = Claim.of(Gaussian(1.0), 1e-5)
    assert claim.guarantee == "proved" and "; proved" in claim.statement
    assumed = claim.within(Assumed("the method does what it states"))
    assert "; assuming the method does what it states" in assumed.statement and "proved" not in assumed.statement
    assert assumed.epsilon == claim.epsilon and claim.within(Proved()) == claim
    assert claim.within(Claimed("somebody", "it is wrong")) == claim  # of another part of the run


def test_an_audit_of_version_0_1_0_is_read():
    new = {"guarantee", "audited", "not_audited", "power", "date", "command"}
    found = Audit("A thing", Claim.of(1.0, 1e-5), 0.5, 5.0, 0.99, "m", "e", "two records")
    plain = {key: value for key, value in found.to_dict().items() if key not in new}
    again = Audit.from_dict(plain)
    assert again == found and again.date == "" and again.verdict == "consistent"


@pytest.mark.parametrize(
    ("value", "said"), [(0.0, "0"), (2.999, "2.99"), (3.0, "3"), (0.012345, "0.0123"), (123.9, "123")]
)
def test_a_bound_is_never_rounded_up(value, said):
    assert round_down(value) == said


@pytest.mark.parametrize(
    ("fn", "settings", "error", "message"),
    [
        (laplace, {"draws": 10}, InputError, "at least 40 draws"),
        (laplace, {"claimed": -1.0}, InputError, "at least 0"),
        (laplace, {"claimed": "much"}, InputError, "at least 0"),
        (lambda _, g: torch.zeros(int(torch.randint(3, (), generator=g))), {}, InputError, "differ in size"),
        (lambda records, _: math.nan, {}, PrivetError, "not finite"),
    ],
)
def test_what_cannot_be_audited_is_named(fn, settings, error, message):
    with pytest.raises(error, match=message):
        privet.audit.mechanism(fn, [1], [], **{"claimed": 1.0, "draws": 40} | settings)


def test_another_bound_can_be_given():
    def gaussian(records, generator):
        return torch.randn(1, generator=generator) + len(records)

    found = privet.audit.mechanism(
        gaussian, [1], [], claimed=Gaussian(1.0), delta=1e-5, bound=GaussianTradeOff(1e-5), score=float, draws=4000
    )
    assert 0.7 * found.claimed_epsilon < found.lower_bound <= found.claimed_epsilon
    assert found.name == "gaussian"
