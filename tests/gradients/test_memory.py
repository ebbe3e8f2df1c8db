"""What the engine keeps of a batch is gone when its gradients are."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

from privet.clipping import FlatClipping
from privet.errors import PrivetError
from privet.gradients import Engine

MODELS = {
    "linear": nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), nn.Linear(4, 2)),
    "convolution": nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Conv1d(4, 4, 1), nn.ReLU(), nn.Conv1d(4, 2, 1)),
    "recurrent": nn.Sequential(nn.Linear(4, 4), nn.Unflatten(1, (2, 2)), nn.RNN(2, 3, 2, batch_first=True)),
    "embedding": nn.Sequential(nn.Embedding(7, 3), nn.LSTM(3, 2, batch_first=True)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_nothing_of_a_batch_outlives_its_gradients(kind: str) -> None:
    model = MODELS[kind]
    with Engine(model) as engine:
        out = model(torch.tensor([[1, 2], [2, 3], [0, 0]]) if kind == "embedding" else torch.randn(3, 4))
        loss = (out[0] if isinstance(out, tuple) else out).sum()
        loss.backward()
        gradients = engine.gradients()
        gradients.weighted_sum(torch.ones(3))
        kept = [weakref.ref(use) for use in gradients.uses]
        assert kept
        del gradients
        assert not any(use() for use in kept)
        assert loss.grad_fn is not None  # while the graph still lives
        assert engine.explain().count("\n") == len(kept)


def test_a_second_backward_pass_is_refused() -> None:
    model = MODELS["linear"]
    with Engine(model):
        loss = model(torch.randn(3, 4)).sum()
        loss.backward(retain_graph=True)
        with pytest.raises(PrivetError, match="second backward"):
            loss.backward()


def test_gradients_that_were_clipped_are_gone_and_say_so() -> None:
    model = nn.Linear(3, 2)
    with Engine(model) as engine:
        model(torch.randn(4, 3)).square().sum().backward()
        gradients = engine.gradients()
        kept = weakref.ref(gradients.uses[0])
        FlatClipping(1.0).clip(gradients)
        assert kept() is None
        for ask in (gradients.instantiate, lambda: gradients.weighted_sum(torch.ones(4))):
            with pytest.raises(PrivetError, match="clip each batch once"):
                ask()
