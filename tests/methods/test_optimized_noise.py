"""Training with optimised noise: what moves its shape, what is accounted, and what is only claimed."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import privet
from privet.clipping import FlatClipping, MovingEllipticalClipping, Released, optimal_diagonal
from privet.data import Split
from privet.errors import InputError, PrivetError
from privet.gradients import Engine
from privet.methods import dpsgd, optimized_noise
from privet.noise import GaussianNoise, MovingShapeNoise, ShapedNoise
from privet.privacy import Claimed, Gaussian, IsotropicL2, PoissonSampled, Proved, PureEpsilon, accountant_named
from privet.randomness import Randomness
from privet.sampling import PoissonSampling
from privet.training import Performance, Plan
from privet.training.step import Step

KNOWN: dict[str, Any] = {"batch_size": 12, "steps": 6, "delta": 1e-5, "max_grad_norm": 1.0, "seed": 3}


def records(count: int = 60) -> Split:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    return Split(x, (x[:, 0] > 0).long())


def trained(**changes: Any) -> tuple[nn.Module, dpsgd.Trained]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimized_noise.train(model, optimizer, records(), **{**KNOWN, "epsilon": 2.0, **changes})


# --- the sound forms ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "inner"),
    [
        ("grouped", lambda plan: PureEpsilon(1 / plan.noise.multiplier)),
        ("isotropic", lambda plan: IsotropicL2(plan.noise.multiplier, 10)),
        ("elliptical", lambda plan: Gaussian(plan.noise.multiplier)),
    ],
)
def test_each_form_spends_its_budget_and_is_proved(form: str, inner: Any) -> None:
    _, found = trained(form=form)
    assert found.ledger.event == PoissonSampled(0.2, inner(found.plan)) * 6
    spent = found.ledger.spent(1e-5)
    assert 1.99 < spent.epsilon <= 2.0
    assert spent.guarantee == Proved()


def test_the_elliptical_form_has_the_accountant_of_dp_sgd() -> None:
    _, found = trained(form="elliptical")
    plain = dpsgd.train(
        model := nn.Linear(4, 2), torch.optim.SGD(model.parameters(), lr=0.1), records(), epsilon=2.0, **KNOWN
    )
    assert found.ledger.event == plain.ledger.event


def test_public_weights_shape_the_noise() -> None:
    weights = {"weight": torch.ones(2, 4), "bias": torch.full((2,), 1e-2)}
    _, found = trained(weights=weights)
    assert found.ledger.guarantee == Proved()
    assert isinstance(found.plan.noise, ShapedNoise)
    with pytest.raises(InputError, match="weights w do not match the sum; they differ in: bias"):
        trained(weights={"weight": torch.ones(2, 4)})


def test_the_shape_follows_what_was_released_and_nothing_else() -> None:
    """Weights of step k are the magnitudes of the moving average of the releases 0..k-1, recorded on their way out."""
    seen, shapes, release = [], [], Step.release

    def listening(self: Step, record: Any, *given: Any) -> Any:
        def both(event: Any, noisy: Any) -> None:
            seen.append({name: tensor.clone() for name, tensor in noisy.items()})
            record(event, noisy)

        shapes.append(self.state.noise)
        return release(self, both, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Step, "release", listening)
        trained(decay=0.5)
    assert shapes[0] is None
    average = {name: torch.zeros_like(tensor) for name, tensor in seen[0].items()}
    for noisy, shape in zip(seen, shapes[1:], strict=False):
        average = {name: 0.5 * average[name] + 0.5 * noisy[name] for name in average}
        for name in average:
            torch.testing.assert_close(shape[name], average[name])


def test_every_release_has_fresh_noise() -> None:
    """Steps on nothing but noise, of a fixed shape: no two are alike."""
    model = nn.Linear(50, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    empty = torch.utils.data.TensorDataset(torch.zeros(10, 50))
    private = privet.make_private(
        model, optimizer, empty, batch_size=1, steps=4, delta=1e-5, noise_multiplier=1.0, max_grad_norm=1.0, seed=3,
        noise=ShapedNoise,
    )  # fmt: skip
    taken = [model.weight.detach().clone()]
    optimizer.register_step_post_hook(
        lambda *_: None if private.rehearsing else taken.append(model.weight.detach().clone())
    )
    for (x,) in private.batches():
        model(x).sum().backward()
        optimizer.step()
    moves = [after - before for before, after in pairwise(taken)]
    assert len(moves) == 4
    assert all(not torch.allclose(one, other) for i, one in enumerate(moves) for other in moves[:i])


class Quieter(MovingShapeNoise):
    """A broken plug-in: the noise of a step depends on the state, and its event does not say so."""

    def at(self, step: int, state: Any = None) -> ShapedNoise:
        return ShapedNoise(self.multiplier / 2, state)


def test_a_noise_that_moves_to_another_cost_is_refused() -> None:
    model = nn.Linear(4, 2)
    private = privet.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        records(),
        noise=Quieter,
        noise_multiplier=1.0,
        **KNOWN,
    )
    with pytest.raises(PrivetError, match="another cost than its plan says"):
        for x, y in private.batches():
            F.cross_entropy(model(x), y).backward()
            private.optimizers[0].step()
    assert len(private.ledger) == 0


@pytest.mark.parametrize("settings", [{"form": "grouped"}, {"form": "elliptical"}])
def test_a_stopped_run_goes_on_bit_for_bit(settings: dict[str, Any], tmp_path: Any) -> None:
    settings = {**settings, "steps": 16, "performance": Performance(save_every=3)}
    whole, found = trained(**settings, folder=tmp_path / "whole")
    release, done = Step.release, 0

    def stopping(*given: Any) -> Any:
        nonlocal done
        done += 1
        if done == 14:
            raise KeyboardInterrupt
        return release(*given)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Step, "release", stopping)
        trained(**settings, folder=tmp_path / "stopped")
    again, resumed = trained(**settings, folder=tmp_path / "stopped", resume=True)
    assert torch.equal(whole.weight, again.weight) and torch.equal(whole.bias, again.bias)
    assert found.ledger.event == resumed.ledger.event


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(InputError, match="grouped, isotropic, elliptical, not 'round'"):
        trained(form="round")
    with pytest.raises(InputError, match="has no weights"):
        trained(form="isotropic", weights={})
    with pytest.raises(InputError, match="leave them out"):
        trained(as_published=True, weights={})
    with pytest.raises(InputError, match="decay"):
        trained(decay=1.0)
    with pytest.raises(InputError, match="Give either epochs or steps"):
        trained(steps=None, noise_multiplier=1.0)


# --- as published ---------------------------------------------------------------------------------------------------


def test_as_published_it_is_claimed_in_every_sentence() -> None:
    _, found = trained(as_published=True)
    spent = found.ledger.spent(1e-5, "strong")
    assert 1.99 < spent.epsilon <= 2.0
    for statement in (spent, found.ledger.spent(1e-5), found.ledger.spent(1e-5, "rdp")):
        assert isinstance(statement.guarantee, Claimed)
        assert "only claimed by Xiang et al. 2019: the shape of the noise was computed from the private" in str(
            statement
        )


def test_the_budget_of_a_step_is_that_of_advanced_composition() -> None:
    """Dwork, Rothblum and Vadhan with ln(1 + q(e^e - 1)), written down again."""
    _, found = trained(as_published=True, epsilon=1.0, steps=40)
    step = math.log1p(0.2 * math.expm1(1 / found.plan.noise.multiplier))
    advanced = math.sqrt(2 * math.log(1e5) * 40) * step + 40 * step * math.expm1(step)
    assert min(advanced, 40 * step) == pytest.approx(1.0, rel=1e-3)


def test_the_published_weights_are_the_derivative_of_the_cost_over_all_records() -> None:
    torch.manual_seed(0)
    model, split = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), records()
    found = optimized_noise.CostSensitivity(model, split, F.cross_entropy, chunk=7)()
    expected = torch.autograd.grad(F.cross_entropy(model(split.inputs), split.labels), list(model.parameters()))
    for (name, _), gradient in zip(model.named_parameters(), expected, strict=True):
        torch.testing.assert_close(found[name], gradient)
    with torch.no_grad():
        model[0].weight.add_(1.0)
    moved = optimized_noise.CostSensitivity(model, split, F.cross_entropy)()
    assert not torch.allclose(moved["0.weight"], found["0.weight"])


# --- elliptical clipping --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("moments", "ratio"),
    [
        (torch.tensor([1.0, 0.1, 0.01, 0.001]), 0.563077),
        (1 / torch.arange(1, 1001), 0.665281),
        (1 / torch.arange(1, 1001) ** 2, 0.112828),
    ],
)
def test_the_elliptical_cost_over_the_isotropic(moments: torch.Tensor, ratio: float) -> None:
    m = moments.double()
    d = optimal_diagonal(m, torch.ones_like(m))
    assert float((d.square() * m).sum()) == pytest.approx(1.0)
    assert float((1 / d).sum()) / (len(m) * float(m.sum().sqrt())) == pytest.approx(ratio, abs=1e-6)
    energy = float(optimal_diagonal(m, torch.ones_like(m), "l2").pow(-2).sum())
    assert energy == pytest.approx(float(m.sqrt().sum()) ** 2)
    for other in (torch.ones_like(m) / m.sum().sqrt(), d):
        assert float(other.pow(-2).sum()) >= energy * (1 - 1e-12)


def test_bad_moments_are_refused() -> None:
    with pytest.raises(InputError, match="second moments must be positive"):
        optimal_diagonal(torch.tensor([0.0]), torch.ones(1))
    with pytest.raises(InputError, match="weights must be positive"):
        optimal_diagonal(torch.ones(1), torch.tensor([math.nan]))
    with pytest.raises(InputError, match="one of each"):
        optimal_diagonal(torch.ones(2), torch.ones(3))
    with pytest.raises(InputError, match="'l1' or 'l2'"):
        optimal_diagonal(torch.ones(2), torch.ones(2), "l3")
    with pytest.raises(InputError, match="At least one step"):
        MovingEllipticalClipping(1.0, warmup=0)


def test_the_ellipsoid_follows_the_squares_of_the_releases_without_their_noise() -> None:
    """A loop over rows and columns, in the units of the bound."""
    generator = torch.Generator().manual_seed(0)
    deviation = torch.rand(3, 4, generator=generator) + 0.5
    releases = [10 * torch.rand(3, 4, generator=generator) for _ in range(3)]
    clipping = MovingEllipticalClipping(2.0, warmup=3)
    state = clipping.init({"a": torch.zeros(3, 4)})
    for release in releases:
        assert state["diagonal"] is None and not clipping.metric(state)
        state = clipping.update(state, Released({"a": release}, 10.0, lambda: {"a": deviation}))

    def moment(i: slice | int, j: slice | int) -> float:
        noise = (deviation[i, j] / 2).square()
        seen = torch.stack([((r[i, j] / 2).square() - noise).mean() for r in releases]).mean()
        error = math.sqrt(2 * float(noise.square().mean()) / noise.numel() / len(releases))
        return float(seen) + error

    rows, every = [moment(i, slice(None)) for i in range(3)], slice(None)
    m = torch.tensor([[row * moment(every, j) / (sum(rows) / 3) for j in range(4)] for row in rows])
    d = state["diagonal"]["a"]
    torch.testing.assert_close(d / d.sum(), m.pow(-0.25) / m.pow(-0.25).sum())
    assert float((d.square() * m).sum()) == pytest.approx(float(m.sum()), rel=1e-5)
    torch.testing.assert_close(clipping.metric(state)["a"], d.square())


def test_the_ellipsoid_stays_near_a_ball_where_only_noise_is_seen_and_finds_the_shape_where_there_is_one() -> None:
    """With 50 releases: noise alone, then columns of the sizes 30, 10, 3, 1 under noise of size 10."""
    generator = torch.Generator().manual_seed(1)
    sizes = torch.tensor([30.0, 10.0, 3.0, 1.0]).repeat(5)
    for scale, least, most in ((0.0, 1.0, 2.0), (1.0, 2.5, 7.0)):
        clipping = MovingEllipticalClipping(1.0)
        state = clipping.init({})
        for _ in range(50):
            noisy = {"a": scale * sizes + 10 * torch.randn(20, 20, generator=generator)}
            state = clipping.update(state, Released(noisy, 10.0, lambda: {"a": 10.0}))
        d = state["diagonal"]["a"]
        assert least <= float(d.max() / d.min()) <= most


def test_the_step_is_the_steepest_in_the_norm_that_clips() -> None:
    """What the optimizer gets is D^2 times the noisy mean, for every kind of parameter."""
    model = nn.Sequential(nn.Conv1d(1, 3, 2), nn.Flatten(), nn.Linear(9, 2))
    clipping = MovingEllipticalClipping(1.0, warmup=1)
    plan = Plan(PoissonSampling(0.5), clipping, GaussianNoise(1.0), 2, 20)
    state = plan.init(dict(model.named_parameters()))
    engine = Engine(model).attach()
    for number in range(2):
        step = Step(plan, number, Randomness.of(number))
        model(torch.randn(10, 1, 4)).square().mean(1).sum().backward()
        step.add(engine.gradients(), state)
        told: dict[str, torch.Tensor] = {}
        release = step.release(lambda _, noisy, told=told: told.update({n: t.clone() for n, t in noisy.items()}))
        metric = clipping.metric(state.clipping) or {name: torch.ones_like(t) for name, t in told.items()}
        for name, noisy in told.items():
            assert release.gradients[name].dtype == torch.float32
            torch.testing.assert_close(
                release.gradients[name].double(), noisy.double() / 10 * metric[name].double(), rtol=1e-6, atol=1e-9
            )
            found = torch.as_tensor(release.deviations()[name], dtype=torch.float64).expand_as(noisy)
            scales = state.clipping["diagonal"][name] if number else torch.ones(())
            torch.testing.assert_close(
                found.double(), (metric[name] / scales / 10).expand_as(noisy).double(), check_dtype=False
            )
        state = release.state


def test_the_kinds_of_noise_make_private_takes() -> None:
    """The multiplier of a pure-epsilon noise is 1 / epsilon of a step, calibrated by randomised response."""
    model = nn.Linear(4, 2)
    private = privet.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), records(), epsilon=1.0,
        noise=partial(MovingShapeNoise, decay=0.8), **KNOWN,
    )  # fmt: skip
    step = PoissonSampled(0.2, PureEpsilon(1 / private.plan.noise.multiplier))
    assert private.plan.event == step * 6
    assert accountant_named("pld").epsilon(step * 6, 1e-5) == pytest.approx(1.0, rel=2e-3)
    with pytest.raises(InputError, match="Only Gaussian noise can have a schedule"):
        privet.make_private(
            model, torch.optim.SGD(model.parameters(), lr=0.1), records(), noise=ShapedNoise,
            noise_multiplier=privet.privacy.Schedule.constant(1.0, 6), **KNOWN,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"form": "isotropic", "decay": 0.5}, "decay is of the form 'grouped'"),
        ({"as_published": True, "decay": 0.5}, "decay is of the form 'grouped'"),
        ({"noise": GaussianNoise}, "chooses noise and clipping"),
        ({"form": "elliptical", "clipping": FlatClipping(1.0)}, "chooses noise and clipping"),
        ({"as_published": True, "accountant": "pld"}, "leave the accountant out"),
    ],
)
def test_arguments_that_a_form_does_not_use_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        trained(**changes)
