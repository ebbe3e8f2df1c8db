"""Audits by a ledger: the step that happened most often, and of several the one with the least noise."""

import pytest

from privet.audit import recorded
from privet.errors import InputError
from privet.privacy import Claimed, Gaussian, Ledger, PoissonSampled
from privet.privacy.events import IsotropicL2, NoisyVotes, PureEpsilon

QUICK = {"draws": 400, "canaries": 40}


def ledger(*events) -> Ledger:
    made = Ledger()
    for event in events:
        made.record(event)
    return made


def test_a_whole_training_is_audited_beside_its_step():
    one, whole = recorded(ledger(Gaussian(50.0), *[PoissonSampled(0.5, Gaussian(3.0))] * 4), 1e-5, **QUICK)
    assert one.name == "One step of DP-SGD, flat clipping"
    assert whole.name == "DP-SGD, 4 steps"
    assert not one.refuted and not whole.refuted
    for audit in (one, whole):
        assert audit.verdict.startswith("consistent for the parts that were audited")
        own = "the run's own sampling, clipping, noise and model"
        assert audit.not_audited == f"{own}; the other releases in the ledger (1 Gaussian)"
    parts = "Privet's own step with the noise and the sampling rate that the ledger states"
    assert (one.audited, whole.audited) == (parts, f"{parts}, as often as it states")


def test_of_single_releases_the_one_with_the_least_noise_is_audited():
    (one,) = recorded(ledger(Gaussian(50.0), Gaussian(0.5), Gaussian(9.0)), 1e-5, **QUICK)
    assert one.name == "One noisy sum"
    assert one.claim.epsilon == pytest.approx(ledger(Gaussian(0.5)).spent(1e-5).epsilon)
    assert 0 < one.lower_bound <= one.claim.epsilon
    assert "the other releases in the ledger (2 Gaussian)" in one.not_audited


@pytest.mark.parametrize(
    ("event", "name"),
    [(PureEpsilon(2.0), "One step, grouped L2 noise"), (IsotropicL2(0.5, 8), "One step, isotropic L2 noise")],
)
def test_optimized_noise_is_audited_at_its_own_cost(event, name):
    (one,) = recorded(ledger(event), 1e-5, draws=4000)
    assert one.name == name
    assert not one.refuted


def test_what_cannot_be_audited_is_said():
    with pytest.raises(InputError, match="holds no steps"):
        recorded(ledger(NoisyVotes(40.0, "laplace")), 1e-5)


def test_what_is_only_claimed_is_not_cleared_by_an_audit_of_something_else():
    with pytest.raises(InputError, match="only claimed by a paper"):
        recorded(ledger(Gaussian(1.0).under(Claimed("a paper", "it leaks"))), 1e-5)


def test_progress_is_told():
    seen = []
    recorded(ledger(Gaussian(1.0)), 1e-5, progress=lambda *told: seen.append(told), **QUICK)
    assert seen[-1] == ("Auditing: One noisy sum", 800, 800)
