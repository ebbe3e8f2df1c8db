"""Audits of a whole training: near its epsilon where it is sound, and refuted where it is not."""

import pytest
import torch
from scipy.stats import binom
from torch import nn

from privet.audit import training
from privet.clipping import EllipticalClipping, FlatClipping, PerLayerClipping
from privet.errors import InputError
from privet.noise import GaussianNoise, IsotropicL2Noise
from privet.privacy import Gaussian
from privet.sampling import PoissonSampling
from privet.training import Plan


def plan(rate=1.0, sigma=2.0, steps=4, **parts) -> Plan:
    made = {"sampling": PoissonSampling(rate), "clipping": FlatClipping(0.3), "noise": GaussianNoise(sigma)}
    return Plan(**{**made, "steps": steps, "records": 500, **parts})


@pytest.mark.parametrize(("rate", "sigma", "steps"), [(1.0, 1.0, 1), (0.2, 1.0, 20)])
def test_a_whole_training_is_consistent_with_its_ledger(rate, sigma, steps):
    found = training(rate=rate, noise_multiplier=sigma, steps=steps, canaries=400)
    assert 0 < found.lower_bound <= found.claimed_epsilon
    assert "add/remove" in found.claim.statement


@pytest.mark.parametrize(("rate", "sigma", "steps"), [(1.0, 2.0, 10), (0.1, 0.8, 100)])
def test_many_canaries_see_half_of_epsilon_and_more(rate, sigma, steps):
    found = training(rate=rate, noise_multiplier=sigma, steps=steps, canaries=1000)
    assert 0.5 * found.claimed_epsilon < found.lower_bound <= found.claimed_epsilon


def test_a_whole_training_with_too_little_noise_is_refuted(monkeypatch):
    monkeypatch.setattr(GaussianNoise, "event", lambda self, step=0: Gaussian(10 * self.multiplier))  # noise of a tenth
    found = training(rate=0.5, noise_multiplier=0.5, steps=10, canaries=400)
    assert found.refuted, str(found)


def test_false_alarms_over_200_sound_trainings():
    """At most one in a hundred: more than 6 of 200 would be seen once in 200 versions of this test."""
    alarms = sum(training(plan(), canaries=100, seed=seed).refuted for seed in range(200))
    assert binom.sf(6, 200, 0.01) < 0.005
    assert alarms <= 6


def test_clipping_that_was_made_for_a_model_needs_the_model():
    model = nn.Sequential(nn.Linear(40, 6), nn.Linear(6, 2))
    diagonal = {name: torch.linspace(0.5, 3, p.numel()).view_as(p) for name, p in model.named_parameters()}
    for clipping in (EllipticalClipping(diagonal), PerLayerClipping(norms={"0": 0.5, "1": 2.0})):
        made = plan(sigma=1.0, clipping=clipping)
        with pytest.raises(InputError, match="Give the run's model"):
            training(made, canaries=100)
        found = training(made, model=model, canaries=200)
        assert 0 < found.lower_bound <= found.claimed_epsilon
        assert "with the run's parameters" in found.setting


def test_fewer_steps_claim_less():
    whole, part = training(plan(), canaries=100), training(plan(), steps=2, canaries=100)
    assert part.claimed_epsilon < whole.claimed_epsilon
    assert part.setting.startswith("2 steps")


def test_what_cannot_be_audited_is_named():
    with pytest.raises(InputError, match="noise is Gaussian"):
        training(plan(noise=IsotropicL2Noise(12, 1.0)))
    with pytest.raises(InputError, match="at least 40 canaries"):
        training(plan(), canaries=10)


def test_progress_is_told():
    told = []
    training(plan(), canaries=40, name="It", progress=lambda *each: told.append(each))
    assert told[-1] == ("Auditing: It", 4, 4)
