"""The shadow-model attack: its features, its network, and the protocol in quarters."""

import pytest
import torch
from torch import nn

from privet.attacks import ShadowAttack, quarters
from privet.attacks.membership import features
from privet.errors import InputError
from tests.attacks.overfitted import FIT, blobs, network, seeded


def test_the_features_are_the_sorted_largest_probabilities():
    x, _ = blobs(5, 0)
    model = nn.Linear(20, 6)
    truth = model(x).softmax(1).sort(dim=1, descending=True).values[:, :3]
    torch.testing.assert_close(features(model, x), truth)
    assert features(nn.Linear(20, 2), x).shape == (5, 2)


def test_the_protocol_of_quarters_catches_an_overfitted_model_and_clears_an_untrained_one():
    x, y = blobs(400, 1)
    found = quarters(FIT, x, y, seeded())
    assert len(found.target_in) == len(found.target_out) == 100
    assert not set(found.target_in.tolist()) & set(found.target_out.tolist())
    assert found.roc.auc > 0.75
    untrained = quarters(lambda records, g: FIT._built(g), x, y, seeded())
    assert 0.5 in untrained.roc.auc_interval(0.999)


def test_the_attack_network_is_the_paper_s():
    x, _ = blobs(20, 0)
    network_ = ShadowAttack(epochs=1).learn(network(), x[:10], x[10:], seeded()).network
    assert [tuple(p.shape) for p in network_.parameters()] == [(64, 3), (64,), (2, 64), (2,)]


def test_too_few_records_cannot_be_quartered():
    x, y = blobs(3, 0)
    with pytest.raises(InputError, match="quartered"):
        quarters(FIT, x, y, seeded())
