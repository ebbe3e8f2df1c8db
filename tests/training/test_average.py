"""The moving average of parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from privet.errors import InputError
from privet.privacy.guarantees import Proved
from privet.training import Average, Performance, make_private
from privet.training.rehearsal import Isolation
from tests.training.conftest import flat, make, run


def test_the_average_is_the_recursion_of_its_definition() -> None:
    model = nn.Linear(3, 1, bias=False)
    average, expected = Average(model, 0.9), model.weight.detach().double().clone()
    for step in range(1, 201):
        with torch.no_grad():
            model.weight.add_(torch.randn(1, 3))
        average.update()
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach().double()
    torch.testing.assert_close(average.values["weight"].double(), expected, rtol=1e-5, atol=1e-5)


def test_it_is_lent_to_the_model_and_taken_back() -> None:
    model = nn.Linear(3, 1)
    average, start = Average(model, 0.5), flat(model).clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    own = flat(model).clone()
    with average.applied():
        assert torch.equal(flat(model), start)
    assert torch.equal(flat(model), own)
    average.keep()
    assert torch.equal(flat(model), start)


def test_one_update_for_each_private_step_also_for_physical_and_empty_batches() -> None:
    for settings in ({"performance": Performance(physical_batch_size=7)}, {"batch_size": 1, "steps": 12}):
        model, optimizer, private = make(average=0.9, **settings)
        run(model, optimizer, private)
        assert private.average.updates == private.plan.steps


def test_it_costs_nothing_and_changes_no_step() -> None:
    with_average, without = make(average=0.9), make()
    assert torch.equal(run(*with_average), run(*without))
    assert with_average[2].spent() == without[2].spent()


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_impossible_decays_are_refused(decay: float) -> None:
    with pytest.raises(InputError, match="decay"):
        Average(nn.Linear(1, 1), decay)


@pytest.mark.parametrize("isolation", ["follow", "each"])
def test_a_loss_may_be_read_for_a_log_before_the_step(isolation: Isolation) -> None:
    torch.manual_seed(0)
    model, data = nn.Linear(3, 2), TensorDataset(torch.randn(8, 3), torch.arange(8) % 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = make_private(
        model,
        optimizer,
        data,
        batch_size=4,
        steps=2,
        noise_multiplier=1.0,
        delta=1e-5,
        max_grad_norm=1.0,
        average=0.9,
        isolation=isolation,
    )
    log = []
    for x, y in private.batches():
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        log.append(loss.item())
        optimizer.step()
    assert log and private.average is not None and private.average.updates == 2
    assert isinstance(private.spent().guarantee, Proved)
