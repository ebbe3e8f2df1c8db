"""The audits that belong to a method, found by what a ledger holds."""

import pytest

from privet.audit import recorded
from privet.methods import audit_release, ledger_audits
from privet.methods.voting import noisy_counts
from privet.noise import PublishedShapeNoise
from privet.privacy import Gaussian, Ledger, PoissonSampled
from privet.privacy.events import NoisyTopCount, NoisyVotes

METHODS = ledger_audits()


def ledger(*events) -> Ledger:
    made = Ledger()
    for event in events:
        made.record(event)
    return made


def test_votes_are_audited_with_all_answers():
    (one,) = recorded(ledger(NoisyTopCount(90.0), *[NoisyVotes(20.0)] * 60), 1e-5, draws=4000, contributed=METHODS)
    assert one.name == "Noisy votes, 60 answers"
    assert one.claim.epsilon == pytest.approx(ledger(*[NoisyVotes(20.0)] * 60).spent(1e-5).epsilon)
    assert 0.7 * one.claim.epsilon < one.lower_bound <= one.claim.epsilon


def test_votes_with_half_the_noise_are_caught(monkeypatch):
    monkeypatch.setattr(
        "privet.methods.voting.noisy_counts",
        lambda c, noise, book, source: noisy_counts(c, noise / 2, book, source),
    )
    (one,) = recorded(ledger(*[NoisyVotes(20.0)] * 60), 1e-5, draws=4000, contributed=METHODS)
    assert one.refuted


def test_optimized_noise_as_published_is_refuted_by_its_own_code():
    event = PublishedShapeNoise(1 / 0.5, dict).event()
    (one,) = recorded(ledger(*[PoissonSampled(0.1, event)] * 2), 1e-5, draws=8000, contributed=METHODS)
    assert one.name == "One step, optimized noise as published"
    assert one.claim.epsilon == pytest.approx(0.5, rel=1e-3)
    assert one.refuted


def test_a_ledger_without_anything_of_a_method_is_audited_by_its_steps():
    (one,) = recorded(ledger(Gaussian(1.0)), 1e-5, draws=400, contributed=METHODS)
    assert one.name == "One noisy sum"


@pytest.mark.parametrize("kind", ["mean", "second-moment"])
def test_releases_before_training_are_consistent(kind: str):
    found = audit_release(kind, draws=3000)
    assert 0.7 * found.claimed_epsilon < found.lower_bound <= found.claimed_epsilon
