"""One step: its state, its event, and its parts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

from privet.clipping import AdaptiveClipping, Clipping, FlatClipping, Released
from privet.errors import PrivetError
from privet.gradients import Engine, PerExampleGradients
from privet.noise import GaussianNoise, Noise
from privet.privacy import Assumed, Event, Gaussian, Ledger, PoissonSampled, Schedule
from privet.randomness import Randomness
from privet.sampling import PoissonSampling
from privet.training import Plan
from privet.training.step import Step


def gradients(model: nn.Module, rows: int) -> PerExampleGradients:
    with Engine(model) as engine:
        model(torch.randn(rows, 3)).mean().backward()
        return engine.gradients()


def plan(clipping: Clipping | None = None, noise: Noise | None = None) -> Plan:
    return Plan(PoissonSampling(0.5), clipping or FlatClipping(1.0), noise or GaussianNoise(2.0), 3, 20)


@dataclass(frozen=True)
class Fading(Noise):
    """A broken plug-in: the noise falls with every release, and the plan knows nothing of it."""

    multiplier: float = 2.0

    def init(self, parameters: Any) -> float:
        return self.multiplier

    def event(self, step: int = 0) -> Event:
        return Gaussian(self.multiplier)

    def at(self, step: int, state: float) -> GaussianNoise:
        return GaussianNoise(state)

    def update(self, state: float, released: Released) -> float:
        return state / 2

    def describe(self) -> str:
        return "fading"


def test_an_event_that_depends_on_the_state_is_refused_before_anything_is_recorded() -> None:
    model, chosen, ledger = nn.Linear(3, 1), plan(noise=Fading()), Ledger()
    state = chosen.init(dict(model.named_parameters()))
    first = Step(chosen, 0, Randomness.of(0))
    first.add(gradients(model, 4), state)
    result = first.release(lambda event, _: ledger.record(event))
    second = Step(chosen, 1, Randomness.of(0))
    second.add(gradients(model, 4), result.state)
    with pytest.raises(PrivetError, match="In step 2 the noise has another cost than its plan says"):
        second.release(lambda event, _: ledger.record(event))
    trusted = Assumed("Fading, which is not part of Privet, adds the noise that its event states")
    assert [(event, count) for event, count in ledger] == [(PoissonSampled(0.5, Gaussian(2.0)).under(trusted), 1)]


def test_physical_batches_of_a_step_have_one_state() -> None:
    model, chosen = nn.Linear(3, 1), plan(AdaptiveClipping(1.0))
    state = chosen.init(dict(model.named_parameters()))
    step = Step(chosen, 0, Randomness.of(0))
    step.add(gradients(model, 2), state)
    with pytest.raises(PrivetError, match="changed between two of its physical batches"):
        step.add(gradients(model, 2), replace(state, clipping=0.5))


def test_a_release_is_not_changed_by_the_division() -> None:
    """A state may keep the tensors of a release."""
    model, chosen = nn.Linear(3, 1), plan()
    step, told = Step(chosen, 0, Randomness.of(0)), dict[str, torch.Tensor]()
    step.add(gradients(model, 4), chosen.init(dict(model.named_parameters())))
    result = step.release(lambda _, noisy: told.update(noisy))
    for name, noisy in told.items():
        torch.testing.assert_close(result.gradients[name], noisy / 10)


def test_the_event_of_a_step_follows_its_number() -> None:
    from privet.noise import ScheduledNoise

    chosen = plan(noise=ScheduledNoise(Schedule.of([3.0, 2.0, 1.0])))
    assert [chosen.noise.at(step, None).event() for step in range(3)] == [Gaussian(s) for s in (3.0, 2.0, 1.0)]
    assert [chosen.step_event(step) for step in range(3)] == [PoissonSampled(0.5, Gaussian(s)) for s in (3.0, 2.0, 1.0)]
    with pytest.raises(PrivetError, match="no gradients yet"):
        Step(chosen, 0, Randomness.of(0)).release(lambda *_: None)
