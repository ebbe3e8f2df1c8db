"""Residual perturbation of an ensemble that is joined into one network: the same noise, the same bounds, the same price.

The oracle is the ensemble, whose members run one after the other. Statistical tests have fixed seeds; each allows five standard
errors.
"""

import math

import pytest
import torch
from torch import nn

from privet.data import Split
from privet.errors import InputError
from privet.methods.perturbation import ResidualPerturbation
from privet.methods.residual_perturbation import Answering, SgdSchedule, train
from privet.models import resnet
from privet.privacy import Gaussian

MEMBERS = 3
SERVED = ResidualPerturbation(6.0, "II", eta=0.5, pi=4.0, bound=1.0, weight_norm=1.0)
HOW = [
    ResidualPerturbation(0.5),
    ResidualPerturbation(0.5, bound=2.0),
    ResidualPerturbation(0.5, pi=12.0, radius=3.0),
    ResidualPerturbation(0.5, "II"),
    SERVED,
]


def ensemble(**arguments):
    torch.manual_seed(0)
    return resnet(channels=1, classes=2, members=MEMBERS, **arguments)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def priced(applied):
    """All that is charged: of an epoch, and of an answer where there is one."""
    how = applied.perturbation
    return applied.epoch, applied.query if how.multiplicative and how.pi else None


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("depth", [8, 14])
def test_a_joined_ensemble_pays_what_the_ensemble_pays(how, depth):
    model = ensemble(depth=depth)
    joined = model.joined()
    with how.apply(model) as apart, how.apply(joined) as together, how.apply(model.members[0]) as alone:
        assert apart.members == together.members == MEMBERS and alone.members == 1
        assert priced(together) == priced(apart)
        counted = how in (HOW[0], HOW[1], SERVED)  # of the others, the input is shared, or nothing is private
        assert (priced(together) != priced(alone)) == counted
    with how.apply(nn.Sequential(nn.Identity(), joined)) as wrapped:
        assert priced(wrapped) == priced(apart)
    with how.apply(nn.Sequential(nn.Identity(), model)) as wrapped:
        assert priced(wrapped) == priced(apart)
    with how.apply(joined, blocks=together.blocks) as named:
        assert priced(named) == priced(apart)


def test_what_trains_and_what_answers_records_every_member():
    records = Split(torch.rand(20, 1, 8, 8), torch.arange(20) % 2)
    ledgers = [
        train(model, records, ResidualPerturbation(0.3), SgdSchedule(1, 10), delta=1e-5, seed=1).ledger
        for model in (ensemble(), ensemble().joined(), ensemble().members[0])
    ]
    assert ledgers[0].event == ledgers[1].event == ledgers[2].event * MEMBERS
    spent = []
    for model in (ensemble(), ensemble().joined()):
        serving = Answering(model, SERVED.apply(model))
        assert not torch.equal(serving.predict(torch.zeros(4, 1, 8, 8)), serving.predict(torch.zeros(4, 1, 8, 8)))
        spent.append(serving.ledger.event)
    cost = 2 * 3 * MEMBERS * (1 / (0.5 * 6)) ** 2 + 2 * MEMBERS / 4**2
    ((event, count),) = spent[1].leaves()
    assert spent[0] == spent[1] and count == 8
    assert event.noise_multiplier == pytest.approx(math.sqrt(2 / cost))


def test_a_network_that_would_answer_without_noise_is_refused():
    model, x = ensemble(), torch.zeros(1, 1, 8, 8)
    applied = SERVED.apply(model)
    serving = Answering(model.joined(), applied)
    with pytest.raises(InputError, match="without noise"):
        serving.predict(x)
    assert len(serving.ledger) == 0
    serving = Answering(model, applied)
    serving.predict(x)
    applied.remove()
    with pytest.raises(InputError, match="without noise"):
        serving.predict(x)
    with SERVED.apply(model, at_test=False) as silent, pytest.raises(InputError, match="without noise"):
        Answering(model, silent).predict(x)


@pytest.mark.parametrize(
    ("how", "skips"),
    [
        (ResidualPerturbation(0.0, bound=0.5), True),
        (ResidualPerturbation(0.0, bound=0.5), False),
        (ResidualPerturbation(0.0, "II", bound=0.5, pi=1e-12, weight_norm=0.1), True),
    ],
    ids=str,
)
@pytest.mark.parametrize("training", [True, False])
def test_bounds_hold_each_member_by_itself(how, skips, training):
    model = ensemble(skips=skips).double().train(training)
    for factor, member in zip(
        (0.01, 1, 100), model.members, strict=True
    ):  # the bounds bind some members more than others
        with torch.no_grad():
            member[2].residual[-1].weight.mul_(factor)
            member[9].weight.mul_(factor)
    joined, x = model.joined(), torch.rand(4, 1, 16, 16, dtype=torch.float64)
    plain = joined(x)
    with how.apply(model), how.apply(joined):
        expected, scores = model(x), joined(x)
        for total in (expected, scores):
            total.square().sum().backward()
    assert torch.allclose(scores, expected, rtol=0, atol=1e-9)
    assert not torch.allclose(scores, plain)
    for name, parameter in joined.named_parameters():
        grads = torch.cat([member.get_parameter(name).grad for member in model.members])
        assert torch.allclose(parameter.grad, grads, rtol=1e-8, atol=1e-9), name


@pytest.mark.parametrize("how", [ResidualPerturbation(0.7), ResidualPerturbation(0.7, "II", eta=0.2)], ids=str)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_each_member_has_noise_of_its_own(how, layout):
    joined = ensemble().eval().to(memory_format=layout).joined()
    block = joined[3]  # with a padded shortcut
    x = torch.randn(40, MEMBERS * 16, 16, 16, generator=seeded()).contiguous(memory_format=layout)
    with torch.no_grad():
        plain, stream = block(x), block.shortcut(x)
        with how.apply(joined, source=seeded(1)):
            first, second = block(x) - plain, block(x) - plain
    scale = stream.abs().clamp(min=0.2) if how.multiplicative else torch.ones(())
    drawn = [(noise / scale).unflatten(1, (MEMBERS, -1)).transpose(0, 1).flatten(1) for noise in (first, second)]
    count = drawn[0].shape[1]
    assert torch.allclose(torch.cat(drawn).std(1), torch.tensor(0.7), rtol=5 / math.sqrt(2 * count))
    correlations = torch.corrcoef(torch.cat(drawn))  # of members, and of calls
    assert float((correlations - torch.eye(2 * MEMBERS)).abs().max()) < 5 / math.sqrt(count)


def test_each_last_layer_has_noise_of_its_own_relative_to_its_own_input():
    joined = ensemble().eval().joined()
    sizes = torch.tensor([1.0, 10.0, 100.0])
    maps = torch.ones(20_000, MEMBERS, 64) * sizes[:, None] / 8
    with torch.no_grad(), SERVED.apply(joined, source=seeded()):
        noise = joined[9](maps)
    deviations = 4.0 * (sizes.square() + 1).sqrt()
    assert torch.allclose(noise.std(0), deviations[:, None].expand(-1, 2), rtol=5 / math.sqrt(2 * len(maps)))
    correlations = torch.corrcoef(noise.flatten(1).T)
    assert float((correlations - torch.eye(2 * MEMBERS)).abs().max()) < 5 / math.sqrt(len(maps))


def test_the_members_share_one_look_at_the_input():
    joined, seen = ensemble().eval().joined(), []
    joined[0].register_forward_hook(lambda _, args, out: seen.append(args[0]))
    with ResidualPerturbation(0.5, pi=12.0, radius=3.0).apply(joined) as applied:
        joined(torch.ones(2, 1, 8, 8))
    assert [tuple(x.shape) for x in seen] == [(2, 1, 8, 8)] and not torch.equal(*seen[0])
    assert applied.epoch == Gaussian(4.0)
