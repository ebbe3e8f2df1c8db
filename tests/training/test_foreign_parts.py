"""Rules, samplings, clippings and noises of other people: a statement that rests on their word says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import privet
from privet.errors import InputError
from privet.gradients.following import moved
from privet.gradients.following.moved import FOLLOWERS, TRUSTED, follows
from privet.gradients.operation import MODULE_RULES, RULES, operation
from privet.privacy import Assumed, Event, Proved
from privet.sampling import PoissonSampling, Sampling, UserSampling
from privet.training import Plan


class Doubled(torch.autograd.Function):
    """x * factor, in a way that nobody can follow."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, factor = ctx.saved_tensors
        return grad * factor, (grad * x).sum().reshape(1)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([1.5]))

    def forward(self, x: Tensor) -> Tensor:
        return Doubled.apply(x, self.factor)


class Unruly(nn.Module):
    """A module without a rule."""

    def forward(self, x: Tensor) -> Tensor:
        return x


RULE = f"the rule for Scale, which {__name__} registered, is right"


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    kept = [(table, dict(table)) for table in (MODULE_RULES, RULES, FOLLOWERS, TRUSTED, moved.BESIDE)]
    yield
    for table, before in kept:
        table.clear()  # type: ignore[attr-defined]
        table.update(before)  # type: ignore[attr-defined]


def register() -> None:
    @privet.gradients.rule(Scale)
    def scale(module: Scale, inputs: tuple[Tensor, ...], grad_output: Tensor) -> dict[str, Tensor]:
        return {"factor": (inputs[0] * grad_output).flatten(1).sum(1, keepdim=True)}


def prepared(model: nn.Module, **settings: Any) -> Any:
    data = TensorDataset(torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2)
    settings = {"batch_size": 20, **settings} if "sampling" not in settings else settings
    return privet.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, steps=2, noise_multiplier=1.0, delta=1e-5,
        max_grad_norm=1.0, seed=0, **settings,
    )  # fmt: skip


def trained(private: Any, model: nn.Module) -> Any:
    for x, y in private.batches():
        private.step(nn.functional.cross_entropy(model(x), y, reduction="none"))
    return private


def scaled() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), Scale(), nn.Linear(4, 2))


def test_a_rule_of_somebody_else_is_an_assumption() -> None:
    register()
    model = scaled()
    private = trained(prepared(model), model)
    assert private.spent().guarantee == Assumed(RULE)
    assert "assuming" in str(private.spent()) and "proved" not in str(private.spent())
    table = private.engine.explain().splitlines()
    assert [row.split()[-1] for row in table[1:] if "own rule" in row] == ["assumed"]
    assert [row.split()[-1] for row in table[1:] if "own rule" not in row] == ["followed", "followed"]


def test_a_rule_that_the_model_does_not_use_is_none() -> None:
    register()
    model = nn.Sequential(nn.Linear(4, 2), Unruly())
    assert trained(prepared(model), model).spent().guarantee == Proved()
    frozen = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2), Scale().requires_grad_(False))
    assert prepared(frozen).plan.assumptions == ()


def test_the_rule_of_a_parent_class_is_named() -> None:
    class Finer(Scale):
        pass

    register()
    assert prepared(nn.Sequential(nn.Linear(4, 2), Finer())).plan.assumptions == (RULE,)


def test_a_rule_that_comes_after_the_statement_is_refused() -> None:
    model = scaled()
    private = prepared(model)
    register()
    with pytest.raises(InputError, match=r"the rule for Scale, .* register rules before make_private"):
        trained(private, model)
    assert not private.steps_done


def test_a_record_alone_needs_no_rule() -> None:
    """Autograd computes the gradient: a rule that lies changes nothing, and the statement stays proved."""

    @privet.gradients.rule(Scale)
    def lying(module: Scale, inputs: tuple[Tensor, ...], grad_output: Tensor) -> dict[str, Tensor]:
        raise AssertionError("nobody may ask")

    found = []
    for chosen in (Scale, Unruly):  # with a rule, and the same arithmetic without one
        torch.manual_seed(0)
        model = scaled()
        if chosen is Unruly:
            del MODULE_RULES[Scale]
        private = trained(prepared(model, isolation="each"), model)
        assert private.spent().guarantee == Proved()
        found.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(*found)


def test_a_follower_or_a_rule_for_an_operation_counts_for_every_model() -> None:
    def straight(each: Any) -> int:
        return int(each.stride)

    follows("some_new_operation")(straight)
    operation("another_one")(straight)
    model = nn.Linear(4, 2)
    assert trained(prepared(model), model).spent().guarantee == Assumed(
        f"the rule for some_new_operation, which {__name__} registered, is right",
        f"the rule for another_one, which {__name__} registered, is right",
    )


def test_nothing_of_privet_is_taken_on_trust() -> None:
    assert not TRUSTED
    for table in (FOLLOWERS, RULES, moved.BESIDE):
        assert [name for name, each in table.items() if moved.taken_on_trust(name, each)] == []


@dataclass(frozen=True)
class Favorites(Sampling):
    """Draws always the same records, and says that it draws at random."""

    rate: float = 0.5

    def draw(self, records: int, source: Any) -> Tensor:
        return torch.arange(records // 2)

    def event(self, each: Event) -> Event:
        return PoissonSampling(self.rate).event(each)


def test_a_sampling_inside_another_one_is_named() -> None:
    said = "Favorites, which is not part of Privet, draws records as its event says"
    clipping, noise = privet.clipping.FlatClipping(1.0), privet.noise.GaussianNoise(1.0)
    for sampling in (Favorites(), UserSampling(Favorites())):
        assert Plan(sampling, clipping, noise, 3, 20).event.guarantee == Assumed(said)
    assert Plan(UserSampling(PoissonSampling(0.5)), clipping, noise, 3, 20).event.guarantee == Proved()
    model = nn.Linear(4, 2)
    users = torch.arange(40) // 2
    assert trained(prepared(model, sampling=Favorites(), users=users), model).spent().guarantee == Assumed(said)
