"""Variance reduction: what one record contributes, what is accounted, and that it trains."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import privet
from privet.audit import Audit, mechanism
from privet.audit.bounds import GaussianTradeOff
from privet.clipping import FlatClipping
from privet.data import Split
from privet.errors import InputError, PrivetError
from privet.gradients import Engine
from privet.methods import svrg
from privet.noise import GaussianNoise
from privet.privacy import Assumed, Event, Gaussian, Ledger, PoissonSampled, Proved
from privet.sampling import PoissonSampling
from privet.training import Plan


def records(count: int = 60) -> Split:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    return Split(x, (x[:, 0] > 0).long())


def plan(**changes: object) -> svrg.SnapshotPlan:
    known = {
        "batch_size": 12, "steps": 7, "every": 3, "delta": 1e-5, "max_grad_norm": 1.0, "difference_norm": 0.2,
        "noise_multiplier": 1.0,
    }  # fmt: skip
    return svrg.snapshot_plan(60, **{**known, **changes})


def per_example(model: nn.Module, split: Split) -> torch.Tensor:
    rows = []
    for x, y in split:
        loss = F.cross_entropy(model(x.unsqueeze(0)), y.unsqueeze(0))
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(rows)


def test_differences_are_those_of_a_loop_and_no_record_exceeds_the_norm() -> None:
    split, model = records(20), nn.Linear(4, 2)
    snapshot = copy.deepcopy(model)
    with torch.no_grad():
        model.weight.add_(torch.randn_like(model.weight))
    taken = []
    for network in (model, snapshot):
        with Engine(network) as engine:
            F.cross_entropy(network(split.inputs), split.labels).backward()
            taken.append(engine.gradients())
    difference = svrg.Difference(*taken)
    expected = per_example(model, split) - per_example(snapshot, split)
    torch.testing.assert_close(
        difference.total_squared_norms().sqrt().float(), expected.norm(dim=1), rtol=1e-4, atol=1e-5
    )
    clipped = FlatClipping(0.2).clip(difference)
    each = expected / (expected.norm(dim=1, keepdim=True) / 0.2).clamp(min=1)
    found = torch.cat([clipped.tensors[name].flatten() for name in ("weight", "bias")])
    torch.testing.assert_close(found.float(), each.sum(0), rtol=1e-4, atol=1e-5)
    assert clipped.sensitivity == 0.2


def test_a_record_that_is_bad_in_either_model_contributes_nothing() -> None:
    model, snapshot = nn.Linear(4, 2), nn.Linear(4, 2)
    split = records(5)
    split.inputs[2] = float("nan")
    taken = []
    for network in (model, snapshot):
        with Engine(network) as engine:
            F.cross_entropy(network(split.inputs), split.labels).backward()
            taken.append(engine.gradients())
    clipped = FlatClipping(1.0).clip(svrg.Difference(*taken))
    assert clipped.bad == 1 and all(bool(t.isfinite().all()) for t in clipped.tensors.values())


def test_the_ledger_holds_snapshots_and_steps_in_order() -> None:
    ledger, chosen = Ledger(), plan()
    model = nn.Linear(4, 2)
    svrg.train(model, torch.optim.SGD(model.parameters(), lr=0.1), records(), chosen, ledger=ledger, seed=0)
    step, whole = PoissonSampled(0.2, Gaussian(1.0)), Gaussian(1.0 * 0.2 / (0.2 * 1.0))
    assert list(ledger) == [(whole, 1), (step, 3), (whole, 1), (step, 3), (whole, 1), (step, 1)]
    assert ledger.event == chosen.event


def test_a_step_is_the_noisy_clipped_difference_plus_the_released_snapshot() -> None:
    """At the snapshot itself every difference is zero: the first step is the snapshot's gradient and noise alone."""
    chosen = plan(noise_multiplier=1e-6, steps=2, every=2, max_grad_norm=100.0, difference_norm=100.0)
    split, model = records(), nn.Linear(4, 2)
    start = copy.deepcopy(model)
    taken: list[torch.Tensor] = []
    svrg.train(
        model, torch.optim.SGD(model.parameters(), lr=0.5), split, chosen, seed=0,
        on_step=lambda _: taken.append(torch.cat([p.detach().flatten() for p in model.parameters()]).clone()),
    )  # fmt: skip
    begin = torch.cat([p.detach().flatten() for p in start.parameters()])
    torch.testing.assert_close(begin - taken[0], 0.5 * per_example(start, split).mean(0), atol=1e-3, rtol=1e-3)


def test_the_budget_is_for_all_of_it() -> None:
    chosen = plan(noise_multiplier=None, epsilon=2.0)
    ledger = Ledger()
    ledger.record(chosen.event)
    assert 1.99 < ledger.spent(1e-5).epsilon <= 2.0
    with pytest.raises(InputError, match="either epsilon"):
        plan(epsilon=2.0)


def test_it_trains_digits() -> None:
    digits = privet.data.load("digits")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    chosen = svrg.snapshot_plan(
        len(digits.train), batch_size=200, steps=40, every=10, epsilon=8.0, delta=1e-5, max_grad_norm=1.0,
        difference_norm=0.5,
    )  # fmt: skip
    trained = svrg.train(model, torch.optim.SGD(model.parameters(), lr=2.0), digits.train, chosen, seed=0)
    x, y = digits.test.tensors
    assert float((model(x).argmax(1) == y).double().mean()) > 0.85
    assert trained.ledger.spent(1e-5).epsilon <= 8.0


# --- runs that are killed ---------------------------------------------------------------------------------------------


def trained(
    folder: Path, chosen: svrg.SnapshotPlan, *, seed: int | None, stop: int = 0, resume: bool = True
) -> svrg.Trained:
    """A run that is killed after so many of its steps; 0 means that it is not."""
    torch.manual_seed(0)
    model, done = nn.Sequential(nn.Dropout(0.2), nn.Linear(4, 2)), 0

    def stopping(_: int) -> None:
        nonlocal done
        done += 1
        if done == stop:
            raise KeyboardInterrupt

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return svrg.train(model, optimizer, records(), chosen, seed=seed, on_step=stopping, folder=folder, resume=resume)


def test_a_seeded_run_continues_bit_for_bit(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", plan(), seed=3, resume=False)
    for stop in (5, 1, 3):
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "parts", plan(), seed=3, stop=stop)
    parts = trained(tmp_path / "parts", plan(), seed=3)
    assert parts.steps == whole.steps == 7 and list(parts.ledger) == list(whole.ledger)
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_release_counts_again_and_never_more_than_the_plan(tmp_path: Path) -> None:
    chosen = plan(steps=12)
    for stop in (5, 2):
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path, chosen, seed=None, stop=stop)
    end = trained(tmp_path, chosen, seed=None)
    used = Counter[Event]()
    for event, count in end.ledger:
        used[event] += count
    # Steps 3 and 4 were done three times and step 5 once, on three snapshots: the plan pays for no fifth one.
    assert end.steps == 6 and used <= chosen.counted
    assert used == Counter({chosen.differences.step_event(0): 10, chosen.snapshots.step_event(0): 4})


def test_another_plan_is_not_continued(tmp_path: Path) -> None:
    trained(tmp_path, plan(), seed=0)
    with pytest.raises(InputError, match="was made with plan"):
        trained(tmp_path, plan(noise_multiplier=2.0), seed=0)
    with pytest.raises(InputError, match="leave out ledger"):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        svrg.train(model, optimizer, records(), plan(), ledger=Ledger(), folder=tmp_path / "other")


# --- the two releases, audited through the code that trains -----------------------------------------------------------


CANARY = torch.tensor([[0.0, 0.5], [0.0, -0.5], [1e3, 0.0]])
"""The last record is far above every norm, and orthogonal to the others."""


class Bowl(nn.Module):
    """The half square of w x: the gradient of a record follows the model, so that differences do not vanish."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 0.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight).sum(1).square() / 2


def released(split: Split, generator: torch.Generator, chosen: svrg.SnapshotPlan) -> list[torch.Tensor]:
    """The gradients that the optimizer got, each with the place of the model that it was for."""
    model, seen = Bowl(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer.register_step_pre_hook(lambda *_: seen.append(torch.stack([model.weight.grad, model.weight.detach()])))
    seed = int(torch.randint(2**31, (1,), generator=generator))
    svrg.train(model, optimizer, split, chosen, loss=lambda out, _: out.sum(), seed=seed)
    return seen


def of_the_snapshot(seen: list[torch.Tensor]) -> float:
    """The model stands in the canary's direction, and so does its gradient there."""
    return float(seen[0][0, 0])


def of_a_difference(seen: list[torch.Tensor]) -> float:
    """The canary pulls back from where the first step has gone."""
    return float(seen[1][0, 0] * (seen[1][1, 0] - seen[0][1, 0]).sign())


def audited(which: str) -> Audit:
    """The other release has next to no noise, and tells nothing: its norm is less still. A record of zeros is as good as none."""
    loud, quiet = (FlatClipping(1.0), GaussianNoise(1.0)), (FlatClipping(1e-4), GaussianNoise(50.0))
    snapshot, difference = (loud, quiet) if which == "snapshot" else (quiet, loud)
    chosen = svrg.SnapshotPlan(
        Plan(PoissonSampling(1.0), *difference, steps=2, records=3),
        Plan(PoissonSampling(1.0), *snapshot, 1, 3),
        every=2,
    )
    labels = torch.zeros(3, dtype=torch.int64)
    return mechanism(
        lambda split, generator: released(split, generator, chosen),
        Split(CANARY, labels), Split(CANARY * torch.tensor([[1.0], [1.0], [0.0]]), labels), claimed=Gaussian(1.0),
        delta=1e-5, draws=240, score=of_the_snapshot if which == "snapshot" else of_a_difference,
        bound=GaussianTradeOff(1e-5, 0.99),
    )  # fmt: skip


@pytest.mark.parametrize("which", ["snapshot", "difference"])
def test_an_audit_of_each_release_sees_much_of_its_epsilon_and_not_more(which: str) -> None:
    found = audited(which)
    assert 0.4 * found.claimed_epsilon < found.lower_bound <= found.claimed_epsilon, str(found)


def test_differences_that_are_clipped_too_little_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    norms = svrg.Difference.total_squared_norms
    monkeypatch.setattr(svrg.Difference, "total_squared_norms", lambda self: norms(self) / 4)
    assert audited("difference").refuted


class Own(nn.Module):
    """A model of somebody else, whose Python code no self-check has seen."""

    def __init__(self, read: bool) -> None:
        super().__init__()
        self.last, self.read = nn.Linear(4, 2), read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x / x.abs().mean().item() if self.read else x)


def test_a_model_of_your_own_is_assumed_and_one_that_reads_values_is_refused() -> None:
    def done(model: nn.Module) -> Ledger:
        return svrg.train(model, torch.optim.SGD(model.parameters(), 0.1), records(), plan(steps=2), seed=0).ledger

    assert done(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))).guarantee == Proved()
    assert done(Own(read=False)).guarantee == Assumed(svrg.UNCHECKED)
    with pytest.raises(PrivetError, match="`item` reads a value of the records"):
        done(Own(read=True))
