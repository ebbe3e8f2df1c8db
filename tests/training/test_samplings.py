"""Every sampling in a plan, and in the loop where it can be used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import privet
from privet.clipping import FlatClipping
from privet.errors import InputError
from privet.noise import GaussianNoise
from privet.privacy import (
    FixedSizeSampled,
    Gaussian,
    Ledger,
    PaddedPoisson,
    PoissonSampled,
    Relation,
    accountant_named,
)
from privet.randomness import Randomness
from privet.sampling import (
    FixedSizeSampling,
    PaddedPoissonSampling,
    PoissonSampling,
    Sampling,
    Users,
    UserSampling,
)
from privet.training import Performance, Plan
from tests.training.conftest import data, network, run

KNOWN = {"steps": 6, "noise_multiplier": 1.0, "delta": 1e-5, "max_grad_norm": 1.0, "seed": 0}
FIXED = FixedSizeSampling(40, 200)


def make(sampling: Sampling | None, dataset: Any = None, **settings: Any) -> tuple[nn.Module, Any, Any]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    records = data() if dataset is None else dataset
    chosen = {**KNOWN, **({"sampling": sampling} if sampling is not None else {}), **settings}
    return model, optimizer, privet.make_private(model, optimizer, records, **chosen)


@pytest.mark.parametrize(
    ("sampling", "event"),
    [
        (PoissonSampling(0.2), PoissonSampled(0.2, Gaussian(1.5))),
        (FIXED, FixedSizeSampled(40, 200, Gaussian(1.5))),
        (PaddedPoissonSampling(0.2, 250, 60), PaddedPoisson(0.2, 250, 60, Gaussian(1.5))),
        (UserSampling(PoissonSampling(0.2)), PoissonSampled(0.2, Gaussian(1.5))),
        (UserSampling(FIXED, most=2), FixedSizeSampled(40, 200, Gaussian(1.5))),
    ],
)
def test_every_sampling_has_its_event_in_a_plan(sampling: Sampling, event: Any) -> None:
    plan = Plan(sampling, FlatClipping(1.0), GaussianNoise(1.5), 3, 200)
    assert plan.event == event * 3 and plan.expected_batch_size == pytest.approx(40)


def test_a_step_of_fixed_size_against_the_loop() -> None:
    """The same draw and the same noise, with gradients one by one in float64; divided by the fixed size."""
    model, optimizer, private = make(FIXED, steps=1)
    start = [p.detach().clone() for p in model.parameters()]
    streams = Randomness.of(0)
    drawn = FIXED.draw(200, streams.sampling)
    assert len(drawn) == len(drawn.unique()) == 40
    twin = network().double()
    summed = [torch.zeros_like(p) for p in twin.parameters()]
    for place in drawn.tolist():
        x, y = (tensor[place : place + 1] for tensor in data().tensors)
        gradient = torch.autograd.grad(F.cross_entropy(twin(x.double()), y), list(twin.parameters()))
        norm = torch.sqrt(torch.stack([g.square().sum() for g in gradient]).sum())
        for total, g in zip(summed, gradient, strict=True):
            total += g / max(1.0, float(norm))
    run(model, optimizer, private)
    for before, total, after in zip(start, summed, model.parameters(), strict=True):
        noise = torch.empty_like(before).normal_(generator=streams.noise)
        expected = before - 0.1 * (total + noise.double()).float() / 40
        torch.testing.assert_close(after.detach(), expected, atol=1e-6, rtol=1e-4)


def test_fixed_size_is_accounted_for_replacing_one_record() -> None:
    model, optimizer, private = make(FIXED, noise_multiplier=None, epsilon=3.0)
    run(model, optimizer, private)
    spent, sigma = private.spent(), private.plan.noise.multiplier
    assert spent.relation is Relation.REPLACE_ONE and "replace one record" in str(spent) and "fixed-size" in str(spent)
    assert 2.99 < spent.epsilon <= 3.0
    exact = accountant_named("pld").epsilon(FixedSizeSampled(40, 200, Gaussian(sigma)) * 6, 1e-5, "replace-one")
    assert spent.epsilon == pytest.approx(exact)
    assert private.ledger.event == private.plan.event


@pytest.mark.parametrize("sampling", [FIXED, UserSampling(FIXED)])
def test_fixed_size_is_refused_in_a_ledger_of_another_relation(sampling: Sampling, tmp_path: Any) -> None:
    users = {} if sampling is FIXED else {"users": torch.arange(200)}
    with pytest.raises(InputError, match=r"replace one .* add/remove one .*Ledger\(relation='replace-one'\)"):
        make(sampling, ledger=Ledger(unit=sampling.unit), noise_multiplier=None, epsilon=1.0, **users)
    private = make(sampling, ledger=Ledger(relation="replace-one", unit=sampling.unit), **users)[2]
    assert private.spent().relation is Relation.REPLACE_ONE
    kept = make(sampling, folder=tmp_path / "run", **users)[2]
    assert kept.ledger.relation is Relation.REPLACE_ONE
    kept.close()


def test_fixed_size_takes_the_number_of_records_as_public() -> None:
    with pytest.raises(InputError, match="leave out public_size"):
        make(FIXED, public_size=200)
    with pytest.raises(InputError, match="for 200 records, and there are 150"):
        make(FIXED, dataset=data(150))


def test_a_run_of_fixed_size_resumes_bit_for_bit(tmp_path: Any) -> None:
    settings = {"performance": Performance(physical_batch_size=7, save_every=2)}
    expected = run(*make(FIXED, **settings))
    first = make(FIXED, folder=tmp_path, **settings)
    run(*first, steps=3)
    first[2].close()
    again = make(FIXED, folder=tmp_path, resume=True, **settings)
    assert torch.equal(run(*again), expected)
    again[2].close()
    with pytest.raises(InputError, match=r"plan\.sampling"):
        make(PoissonSampling(0.2), folder=tmp_path, resume=True, **settings)


def test_padding_is_refused_in_a_loop_with_the_way_out() -> None:
    for sampling in (PaddedPoissonSampling(0.2, 200, 60), UserSampling(PaddedPoissonSampling(0.2, 200, 60))):
        users = {"users": torch.arange(200)} if isinstance(sampling, UserSampling) else {}
        with pytest.raises(InputError, match=r"padding protects nothing here: give sampling=PoissonSampling\(rate\)"):
            make(sampling, **users)


def test_poisson_sampling_given_is_the_same_as_a_batch_size() -> None:
    assert torch.equal(run(*make(PoissonSampling(0.2))), run(*make(None, batch_size=40)))
    loader = DataLoader(data(), batch_size=20)
    private = make(PoissonSampling(0.2), dataset=loader, steps=None, epochs=1.5)[2]
    assert private.plan.sampling == PoissonSampling(0.2) and private.plan.steps == 8
    with pytest.raises(InputError, match="either batch_size, for Poisson sampling, or sampling"):
        make(PoissonSampling(0.2), batch_size=40)


def test_steps_from_a_budget_need_poisson_sampling() -> None:
    assert make(PoissonSampling(0.2), steps=None, epsilon=3.0)[2].plan.steps > 1
    with pytest.raises(InputError, match="Poisson sampling and Gaussian noise only"):
        make(FIXED, steps=None, epsilon=3.0)


def test_users_are_drawn_by_any_sampling() -> None:
    users = torch.arange(200) // 4
    plain = make(None, users=users, batch_size=10)
    assert plain[2].plan.sampling == UserSampling(PoissonSampling(0.2), most=8)
    given = make(UserSampling(PoissonSampling(0.2), most=8), users=users)
    assert torch.equal(run(*plain), run(*given))
    fixed = make(FixedSizeSampling(10, 50), users=Users(users, most=2))
    assert fixed[2].plan.sampling == UserSampling(FixedSizeSampling(10, 50), most=2)
    run(*fixed)
    assert "replace one user" in str(fixed[2].spent())
    with pytest.raises(InputError, match="UserSampling draws users: give users"):
        make(UserSampling(PoissonSampling(0.2)))
    with pytest.raises(InputError, match="give the same number"):
        make(UserSampling(PoissonSampling(0.2), most=3), users=Users(users, most=2))
    with pytest.raises(InputError, match="not by another UserSampling"):
        UserSampling(UserSampling(PoissonSampling(0.2)))


def test_a_step_on_users_of_fixed_size_against_the_loop() -> None:
    """Users with one to three examples, all of which take part: the mean gradient of each user is clipped, in float64."""
    owners = torch.tensor([0, 1, 1, 2, 2, 2, 3, 4, 4, 5, 5, 5])
    x = torch.randn(12, 5, generator=torch.Generator().manual_seed(4))
    y = (x.sum(1) > 0).long()
    sampling = FixedSizeSampling(4, 6)
    model, optimizer, private = make(sampling, dataset=TensorDataset(x, y), users=owners, steps=1, delta=0.01)
    start = [p.detach().clone() for p in model.parameters()]
    streams = Randomness.of(0)
    drawn = sampling.draw(6, streams.sampling)
    twin = network().double()
    summed = [torch.zeros_like(p) for p in twin.parameters()]
    for user in drawn.tolist():
        own = owners == user
        gradient = torch.autograd.grad(F.cross_entropy(twin(x[own].double()), y[own]), list(twin.parameters()))
        norm = torch.sqrt(torch.stack([g.square().sum() for g in gradient]).sum())
        for total, g in zip(summed, gradient, strict=True):
            total += g / max(1.0, float(norm))
    run(model, optimizer, private)
    for before, total, after in zip(start, summed, model.parameters(), strict=True):
        noise = torch.empty_like(before).normal_(generator=streams.noise)
        expected = before - 0.1 * (total + noise.double()).float() / 4
        torch.testing.assert_close(after.detach(), expected, atol=1e-6, rtol=1e-4)
