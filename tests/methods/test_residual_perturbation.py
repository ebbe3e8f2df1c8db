"""Training under residual perturbation: what the ledger holds, what answers cost, and the sound form by DP-SGD."""

import math

import pytest
import torch
from torch.nn import functional as F

from privet.attacks import reconstruct
from privet.data import Split
from privet.errors import InputError
from privet.gradients import Engine
from privet.methods.perturbation import AppliedPerturbation, ResidualPerturbation
from privet.methods.residual_perturbation import Answering, SgdSchedule, train, train_by_dpsgd
from privet.models import resnet
from privet.privacy import Assumed, Claimed, Gaussian, Ledger, NotPrivate, Proved
from privet.training import BudgetExhausted
from tests.audit.broken import PIXELS, RESIDUAL

QUICK = SgdSchedule(epochs=3, batch_size=16, learning_rate=0.1, milestones=(1, 2), division=4)


@pytest.fixture(scope="module")
def stripes():
    """Two classes of 8x8 images: stripes across and stripes along, under a little noise."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(80) % 2
    across = (torch.arange(8) % 2).float().expand(8, 8)
    images = torch.stack([across if label else across.T for label in labels])[:, None]
    return Split((images + 0.1 * torch.randn(images.shape, generator=generator)).clamp(0, 1), labels)


def network(**arguments):
    torch.manual_seed(0)
    return resnet(channels=1, classes=2, **arguments)


def test_it_learns_and_every_epoch_is_in_the_ledger(stripes):
    steps = []
    done = train(
        network(), stripes, ResidualPerturbation(0.3), QUICK, delta=1e-5, test=stripes, seed=1, on_step=steps.append
    )
    assert done.history[-1]["accuracy"] > 0.9
    assert [entry["step"] for entry in done.history] == [5, 10, 15] and done.steps == len(steps) == 15
    assert len(done.ledger) == 3
    spent = done.ledger.spent(1e-5)
    assert isinstance(spent.guarantee, Claimed)
    assert str(spent).startswith("epsilon = ") and "replace one record (its label is public)" in str(spent)
    assert done.history[-1]["epsilon"] == spent.epsilon == steps[-1]["epsilon"]
    x = stripes.batch(range(4))[0]
    assert not done.model.training and not torch.equal(done.model(x), done.model(x))  # noise at test, too
    done.applied.remove()
    assert torch.equal(done.model(x), done.model(x))


def test_a_training_that_is_ended_is_the_model_and_pays_for_the_whole_epoch(stripes):
    def end(step):
        if step["step"] == 7:
            raise BudgetExhausted("the time is up")

    done = train(network(), stripes, ResidualPerturbation(0.3), QUICK, delta=1e-5, seed=1, on_step=end)
    assert (done.steps, len(done.ledger)) == (7, 2)
    assert [entry["step"] for entry in done.history] == [5, 7]
    assert not done.model.training


def test_an_ensemble_pays_for_each_member(stripes):
    once = SgdSchedule(epochs=1, batch_size=40)
    one, three = (
        train(network(members=k), stripes, ResidualPerturbation(0.3), once, delta=1e-5, seed=1).ledger for k in (1, 3)
    )
    assert three.event == one.event * 3


def test_a_seed_repeats_a_run(stripes):
    one, other = (train(network(), stripes, ResidualPerturbation(0.3), QUICK, delta=1e-5, seed=s) for s in (1, 1))
    third = train(network(), stripes, ResidualPerturbation(0.3), QUICK, delta=1e-5, seed=2)
    states = [done.model.state_dict() for done in (one, other, third)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not all(torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_noise_on_the_input_is_proved_and_every_record_is_seen_once_an_epoch(stripes, monkeypatch):
    seen = []
    noisy = AppliedPerturbation._noisy_input

    def spy(self, model, args):
        seen.append(args[0])
        (out,) = noisy(self, model, args)
        assert not torch.equal(out, args[0])
        return (out,)

    monkeypatch.setattr(AppliedPerturbation, "_noisy_input", spy)
    how = ResidualPerturbation(0.3, pi=12.0, radius=3.0)
    done = train(network(members=2), stripes, how, QUICK, delta=1e-5)
    assert done.ledger.event == Gaussian(4.0) * 3
    assert done.ledger.guarantee == Proved()
    rows = torch.cat(seen)
    assert len(rows) == 3 * len(stripes)  # the members of an ensemble share one look
    for epoch in rows.split(len(stripes)):
        assert torch.equal(epoch.flatten(1).sort(0).values, stripes.tensors[0].flatten(1).sort(0).values)


def test_weights_of_strategy_two_are_not_private_and_its_answers_are_counted(stripes):
    how = ResidualPerturbation(6.0, "II", eta=0.5, pi=4.0, bound=1.0, weight_norm=1.0)
    done = train(network(members=2), stripes, how, SgdSchedule(epochs=1, batch_size=40), delta=1e-5, seed=0)
    assert done.ledger.event == NotPrivate()
    assert done.ledger.spent(1e-5).epsilon == math.inf
    serving = Answering(done.model, done.applied)
    x = stripes.batch(range(5))[0]
    first, second = serving.predict(x), serving.predict(x)
    assert first.shape == (5, 2) and not torch.equal(first, second)
    ((event, count),) = ((leaf, n) for leaf, n in serving.ledger.event.leaves())
    # Six blocks and two last layers, a sum of divergences for each of ten answers.
    cost = 2 * 6 * (1 / (0.5 * 6)) ** 2 + 2 * 2 / 4**2
    assert count == 10 and event.noise_multiplier == pytest.approx(math.sqrt(2 / cost))
    spent = serving.ledger.spent(1e-5)
    assert isinstance(spent.guarantee, Assumed) and "weights stay hidden" in str(spent)


def test_answers_of_anything_else_are_refused(stripes):
    for how in (ResidualPerturbation(0.5), ResidualPerturbation(0.5, "II")):
        with how.apply(model := network()) as applied, pytest.raises(InputError):
            Answering(model, applied)
    with pytest.raises(InputError, match="replace-one"):
        train(network(), stripes, ResidualPerturbation(0.5), QUICK, delta=1e-5, ledger=Ledger())


@pytest.mark.parametrize("gamma", [0.5, 50.0])
def test_the_first_gradient_is_the_record_whatever_gamma_is_unless_the_input_has_noise(gamma):
    x = torch.linspace(-1, 1, PIXELS)[None]

    def recovered(how):
        with how.apply(RESIDUAL, blocks=["0"], source=torch.Generator().manual_seed(1)):
            loss = F.cross_entropy(RESIDUAL(x), torch.tensor([0]))
        first = RESIDUAL[0].residual[0]
        return reconstruct(*torch.autograd.grad(loss, [first.weight, first.bias])).float()

    assert torch.allclose(recovered(ResidualPerturbation(gamma)), x[0], atol=1e-4)
    covered = recovered(ResidualPerturbation(gamma, pi=5.0, radius=3.0)) - x[0]
    assert float(covered.std()) > 2  # what comes back is the record under its noise


def test_the_sound_form_is_proved_by_dpsgd(stripes):
    model = network(groups=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    how = ResidualPerturbation(0.5)
    done = train_by_dpsgd(
        model,
        optimizer,
        stripes,
        perturbation=how,
        batch_size=20,
        steps=3,
        epsilon=4.0,
        max_grad_norm=1.0,
        delta=1e-5,
        seed=0,
    )
    assert done.ledger.guarantee == Proved()
    assert 3.9 < done.ledger.spent(1e-5).epsilon <= 4
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("strategy", ["I", "II"])
def test_per_example_gradients_under_noise_are_those_of_single_losses(stripes, strategy):
    # The same noise twice: with it the loss of each record is differentiated by itself, and all of them by the engine.
    model, (x, y) = network(groups=4), stripes.batch(range(4))
    parameters, generator = list(model.parameters()), torch.Generator()
    with ResidualPerturbation(0.5, strategy).apply(model, source=generator):
        generator.manual_seed(3)
        losses = F.cross_entropy(model(x), y, reduction="none")
        alone = [
            torch.cat([g.flatten() for g in torch.autograd.grad(one, parameters, retain_graph=True)]).norm()
            for one in losses
        ]
        generator.manual_seed(3)
        with Engine(model, loss_reduction="sum") as engine:
            F.cross_entropy(model(x), y, reduction="sum").backward()
            norms = engine.gradients().total_squared_norms().sqrt()
    assert torch.allclose(norms.float(), torch.stack(alone), rtol=1e-3)


def test_the_rate_falls_at_its_milestones():
    assert [QUICK.rate(epoch) for epoch in range(4)] == [0.1, 0.025, 0.00625, 0.00625]
    with pytest.raises(InputError):
        SgdSchedule(epochs=0)
