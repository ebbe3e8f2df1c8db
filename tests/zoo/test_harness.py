"""The harness sees what it is there to see: broken engines, planted one by one, are called wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from privet.errors import PrivetError
from privet.privacy.guarantees import Assumed, Proved
from privet.training.rehearsal import Surroundings
from tests.objects import freeze
from tests.zoo import harness
from tests.zoo.harness import SOUND, Batch, Outcome, Run, Trap, clipped_sum, judge
from tests.zoo.parts import cross_entropy, perceptron, rows


class Fake:
    """A private loop that computes each record's gradient on its own, and may be broken in one way."""

    def __init__(self, run: Run, bound: float, records: int, broken: str) -> None:
        self.run, self.bound, self.records, self.broken = run, bound, records, broken
        self.handle = run.optimizer.register_step_pre_hook(self.fill)

    def batches(self) -> Iterator[Batch]:
        yield self.run.dataset.tensors

    def fill(self, *_: Any) -> None:
        x, y = self.run.dataset.tensors
        if self.broken == "fate" and float(x.max()) > 20:
            raise PrivetError("no")
        if self.broken in MESSAGES:
            raise MESSAGES[self.broken]
        if self.broken == "buffer":
            self.run.model.register_buffer("seen", x.mean(0))
        parameters = list(self.run.model.parameters())
        found = []
        for i in range(len(x)):
            gradients = torch.autograd.grad(cross_entropy(self.run.model, (x[i : i + 1], y[i : i + 1])), parameters)
            found.append(torch.cat([g.flatten() for g in gradients]).double())
        total = torch.stack(found).sum(0) if self.broken == "not clipped" else clipped_sum(found, self.bound)
        total = total / (self.records if self.broken != "divided by the batch" else len(x))
        total = total / 8 if self.broken == "eight times too small" else total
        place = 0
        for p in parameters:
            p.grad = total[place : place + p.numel()].view_as(p).to(p.dtype)
            place += p.numel()
        if self.broken == "one too few":
            parameters[0].grad = None

    @property
    def ledger(self) -> list[int]:
        return [1]

    def spent(self) -> Any:
        return SimpleNamespace(guarantee=Assumed("nothing is mixed") if self.broken == "assumed" else Proved())

    def close(self) -> None:
        self.handle.remove()


MESSAGES: dict[str, Exception] = {
    "refused": PrivetError("The model mixes records."),
    "silent": PrivetError(""),
    "telling": PrivetError("This is bad: tensor([1., 2.])"),
    "crashed": ValueError("not enough values to unpack"),
}


@pytest.mark.parametrize(
    ("broken", "outcome"),
    [
        ("", Outcome.RIGHT),
        ("assumed", Outcome.ASSUMED),
        ("refused", Outcome.REFUSED),
        ("crashed", Outcome.CRASHED),
        *(
            (broken, Outcome.WRONG)
            for broken in (
                "not clipped", "eight times too small", "divided by the batch", "buffer", "fate", "silent", "telling",
                "one too few",
            )
        ),
    ],
)  # fmt: skip
def test_each_way_of_being_broken_is_seen(monkeypatch: pytest.MonkeyPatch, broken: str, outcome: Outcome) -> None:
    monkeypatch.setattr(harness, "start", lambda run, bound, records, isolation: Fake(run, bound, records, broken))
    trap = Trap("classic", "loop", perceptron, cross_entropy, rows, _without_public, SOUND, None, cross_entropy)
    verdict = judge(trap)
    assert verdict.outcome is outcome, verdict


def _without_public(run: Run) -> None:
    for batch in run.private.batches():
        run.optimizer.zero_grad()
        run.loss(batch).backward()
        run.optimizer.step()


def test_a_second_optimizer_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "start", lambda run, bound, records, isolation: Fake(run, bound, records, ""))

    def body(run: Run) -> None:
        _without_public(run)
        second = torch.optim.SGD(run.model.parameters(), lr=0.0)
        second.zero_grad()
        run.loss(run.dataset.tensors).backward()
        second.step()

    verdict = judge(Trap("second", "loop", perceptron, cross_entropy, rows, body))
    assert verdict.outcome is Outcome.WRONG and verdict.change > 1


def test_the_naive_engine_is_right_where_nothing_is_mixed() -> None:
    from tests.zoo.naive import naive_change

    make: Callable[[], nn.Module] = perceptron
    assert naive_change(Trap("plain", "loss", make, cross_entropy, rows)) <= 1 + 1e-4


def test_the_oracle_skips_records_that_are_not_finite() -> None:
    row: Tensor = torch.tensor([3.0, 4.0])
    assert torch.allclose(clipped_sum([row, row * float("nan")], 1.0), row / 5)


def test_runs_of_a_frozen_zoo_find_their_constants() -> None:
    """Otherwise every trap with a constant would be refused for that reason alone."""
    constant = torch.zeros(3)
    freeze()
    assert any(tensor is constant for tensor in Surroundings.now(()).tensors)
