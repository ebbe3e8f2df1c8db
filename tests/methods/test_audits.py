"""The audits that belong to a method: of the releases beside its steps, and by what a ledger holds."""

import dataclasses

import pytest

from privet.audit import recorded
from privet.clipping.bounded import clipped_rows, grouped_sum
from privet.data import load
from privet.errors import InputError
from privet.methods import (
    Context,
    Power,
    Public,
    Ran,
    Task,
    TrainedModel,
    audit_release,
    ledger_audits,
    method_named,
    svrg,
)
from privet.methods.frozen_noise_layer_gan import NoisyRows, audit_rows, row_sampling
from privet.methods.perturbation import ResidualPerturbation
from privet.methods.residual_perturbation import audit_input_noise
from privet.methods.statistics import RELEASES, releases_in
from privet.methods.voting import noisy_counts
from privet.noise import PublishedShapeNoise
from privet.privacy import CovarianceRelease, Gaussian, Ledger, PoissonSampled
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


# --- releases beside steps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RELEASES)
def test_releases_before_training_are_consistent(kind: str):
    found = audit_release(kind, draws=3000)
    assert 0.7 * found.claimed_epsilon < found.lower_bound <= found.claimed_epsilon


def test_sums_of_rows_that_are_clipped_too_little_are_caught(monkeypatch):
    monkeypatch.setattr(
        "privet.methods.statistics.grouped_sum",
        lambda rows, groups, count, bound, shares: dataclasses.replace(
            grouped_sum(rows, groups, count, 3 * bound, shares), scales={"sum": bound}
        ),
    )
    assert audit_release("sums", draws=2000).refuted


def test_each_kind_of_release_gets_the_noise_of_its_own_event():
    made = ledger(
        Gaussian(20.0), Gaussian(2.0), CovarianceRelease(3.0), PoissonSampled(0.1, Gaussian(1.0)), Gaussian(7.0)
    )
    found, covered = releases_in(made, ("counts", "sums", "second-moment"), delta=1e-5, draws=400)
    assert [one.name for one in found] == ["Private counts", "Private sums", "Private second moment"]
    assert covered == Gaussian(20.0) + Gaussian(2.0) + CovarianceRelease(3.0)
    assert all(one.not_audited == "the run's records and bounds" for one in found)


@pytest.mark.parametrize("scheme", ["padded", "fixed"])
def test_noisy_rows_are_consistent_and_rows_that_are_not_clipped_are_caught(scheme, monkeypatch):
    plan = NoisyRows(row_sampling(scheme, 8, 40, 10, 1e-3), 1.0 if scheme == "padded" else 4.0, 10)
    assert not (found := audit_rows(plan, draws=1500)).refuted, str(found)
    monkeypatch.setattr(
        "privet.methods.frozen_noise_layer_gan.clipped_rows",
        lambda rows, places, count, bound: dataclasses.replace(
            clipped_rows(rows, places, count, 100 * bound), scales={"rows": bound}
        ),
    )
    assert (found := audit_rows(plan, draws=1500)).refuted, str(found)


def test_the_noise_on_an_input_is_seen_and_half_of_it_is_caught(monkeypatch):
    noise = ResidualPerturbation(0.5, pi=3.0, radius=1.0)
    found = audit_input_noise(noise, draws=2000)
    assert 0.6 * found.claimed_epsilon < found.lower_bound <= found.claimed_epsilon
    assert "replace one record" in found.claim.statement
    monkeypatch.setattr(ResidualPerturbation, "epoch", lambda self, *_: Gaussian(2 * self.pi / self.radius))
    assert audit_input_noise(noise, draws=2000).refuted


# --- whole methods ----------------------------------------------------------------------------------------------------

RUNS = {
    "svrg": ({"steps": 4, "every": 2}, ["DP-SGD with variance reduction (SVRG)", "SVRG's snapshots"]),
    "residual-dpsgd": ({"epochs": 0.1}, ["DP-SGD, residual perturbation as a regularizer"]),
    "optimized-noise-elliptical": (
        {"epochs": 0.3},
        ["Optimized additive noise (Xiang et al. 2019), elliptical clipping with Gaussian noise"],
    ),
    "moments": ({"size": 50}, ["Private counts", "Private sums", "Private second moment", "Private second moments"]),
    "dpgan": ({"size": 50, "steps": 3}, ["DPGAN", "Private counts"]),
    "noise-layer-gan": (
        {"size": 50, "steps": 2, "epochs": 0.2, "dimension": 4},
        ["One batch of noisy rows", "Private mean", "Private second moment"],
    ),
    "pate": ({"teachers": 10}, ["Noisy votes"]),
    "residual": ({"pi": 60.0, "epochs": 1}, ["Residual perturbation, the noise on an input"]),
}
"""For each method its settings, and how the names of its audits end or begin."""


@pytest.fixture
def one_step_only(monkeypatch):
    """Whole trainings are audited elsewhere."""

    def refused(*_, **__):
        raise InputError("not here")

    monkeypatch.setattr("privet.audit.plans.training", refused)


@pytest.mark.parametrize("key", RUNS)
def test_every_release_of_a_method_is_audited_by_its_own_code(key, one_step_only):
    """In a run without protected test records no release in the ledger is left out."""
    settings, names = RUNS[key]
    digits = load("digits")
    small = dataclasses.replace(digits, splits={**digits.splits, "train": digits.train.select(range(300))})
    task = Task(
        small,
        8.0 if key == "pate" else 2.0,
        1e-5,
        seed=0,
        public=Public(aside=20, named="some") if key == "pate" else None,
    )
    method = method_named(key, **settings)
    context = Context.in_memory(method, task)
    outcome = method.fit(task, context)
    release = outcome.release if isinstance(outcome.release, TrainedModel) else None
    ran = Ran(context.ledger, task.delta, outcome.plan, release, outcome.steps)
    found = method.audits(ran, Power(draws=400, canaries=40))
    for name in names:
        assert any(name in one.name for one in found), (name, [one.name for one in found])
    for one in found:
        assert not one.refuted, str(one)
        assert one.audited and "other releases in the ledger" not in one.not_audited, str(one)
        assert ("for the parts that were audited" in one.verdict) == bool(one.not_audited)


def test_a_snapshot_that_is_not_in_the_ledger_is_a_contradiction(one_step_only):
    plan = svrg.snapshot_plan(
        100,
        batch_size=10,
        steps=4,
        every=2,
        delta=1e-5,
        max_grad_norm=1.0,
        difference_norm=0.3,
        noise_multiplier=1.0,
    )
    made = Ledger()
    made.record(plan.differences.events(0, 4))
    made.record(plan.snapshots.step_event(0))
    found = method_named("svrg", every=2).audits(Ran(made, 1e-5, plan.differences, steps=4), Power(400, 40))
    (refuted,) = (one for one in found if one.refuted)
    assert "1 of the 2 steps that the run made by its plan are not in its ledger" in refuted.evidence
