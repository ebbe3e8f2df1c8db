"""Residual networks: their layout, with and without skips, and ensembles, in turn and joined into one network."""

import copy
import pickle

import pytest
import torch
from torch import nn

from privet.errors import InputError
from privet.models import resnet
from privet.models.classifiers import Ensemble, ResidualBlock


@pytest.mark.parametrize("depth", [8, 14, 20])
@pytest.mark.parametrize("skips", [True, False])
def test_the_family_has_the_layers_that_its_name_says(depth, skips):
    model = resnet(depth=depth, skips=skips)
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == depth
    blocks = [m for m in model.modules() if isinstance(m, ResidualBlock)]
    assert len(blocks) == (depth - 2) // 2
    assert all((block.shortcut is None) == (not skips) for block in blocks)
    assert [b.residual[-1].out_channels for b in blocks] == sorted(b.residual[-1].out_channels for b in blocks)
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)


def test_the_number_of_parameters_is_that_of_the_published_layout():
    # Convolutions 3-16, then 16-16-16, 16-32-32, 32-64-64 of 3x3, their batch norms, and a layer of 64 by 10.
    convolutions = 9 * (3 * 16 + 2 * 16 * 16 + 16 * 32 + 32 * 32 + 32 * 64 + 64 * 64)
    norms = 2 * (16 + 16 + 16 + 32 + 32 + 64 + 64)
    assert sum(p.numel() for p in resnet().parameters()) == convolutions + norms + 64 * 10 + 10


def test_what_leaves_a_block_is_the_stream_plus_the_residual_mapping():
    torch.manual_seed(0)
    x = torch.randn(2, 16, 8, 8)
    same = ResidualBlock(16, 16, 1, skip=True, groups=4)
    assert torch.allclose(same(x), x + same.residual(x))
    coarser = ResidualBlock(16, 32, 2, skip=True, groups=4)
    stream = coarser(x) - coarser.residual(x)
    assert torch.allclose(stream[:, :16], x[:, :, ::2, ::2], atol=1e-5)
    assert torch.allclose(stream[:, 16:], torch.zeros(1), atol=1e-5)
    bare = ResidualBlock(16, 32, 2, skip=False, groups=4)
    assert torch.equal(bare(x), bare.residual(x))


def test_an_ensemble_averages_the_scores_of_its_members():
    torch.manual_seed(0)
    model = resnet(members=3, channels=1, classes=4).eval()
    x = torch.rand(2, 1, 16, 16)
    scores = [member(x) for member in model.members]
    assert torch.allclose(model(x), sum(scores) / 3)
    assert not torch.allclose(scores[0], scores[1])


def test_a_network_of_smaller_images_averages_them_first():
    torch.manual_seed(0)
    model = resnet(members=2, channels=1, classes=4, shrink=2).eval()
    x = torch.rand(2, 1, 16, 16)
    assert torch.equal(model(x), model(nn.functional.avg_pool2d(x, 2).repeat_interleave(2, 2).repeat_interleave(2, 3)))
    assert not torch.equal(model(x), model(x.flip(3)))


KINDS = [
    {},
    {"skips": False},
    {"groups": 4},
    {"groups": 8, "skips": False, "shrink": 2},
    {"shrink": 2},
    {"depth": 14},
    {"depth": 20, "groups": 2},
]


def ensemble(dtype=torch.float64, members=3, **kind):
    """Of networks that differ in everything they have learnt and counted."""
    torch.manual_seed(0)
    model = resnet(channels=2, classes=4, members=members, **kind).to(dtype)
    for tensor in model.state_dict().values():
        if tensor.ndim == 1:  # of norms, and biases
            tensor.uniform_(0.5, 1.5)
    return model


def in_turn(model, x):
    """The oracle: each member by itself, then the mean."""
    return sum(member(x) for member in model.members) / len(model.members)


def stacked(model, name):
    return torch.cat([member.state_dict()[name] for member in model.members])


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_joined_ensemble_is_its_members_in_scores_gradients_and_statistics(kind, training, layout):
    model = ensemble(**kind).to(memory_format=layout).train(training)
    joined = model.joined()
    assert joined.training == training
    x = torch.rand(3, 2, 16, 16, dtype=torch.float64).contiguous(memory_format=layout)
    given, same = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected, scores = in_turn(model, given), joined(same)
    assert torch.allclose(scores, expected, rtol=0, atol=1e-10)
    weights = torch.randn_like(scores)
    (expected * weights).sum().backward()
    (scores * weights).sum().backward()
    assert torch.allclose(same.grad, given.grad, rtol=0, atol=1e-10)
    for name, parameter in joined.named_parameters():
        grads = torch.cat([member.get_parameter(name).grad for member in model.members])
        assert torch.allclose(parameter.grad, grads, rtol=0, atol=1e-10), name
    for name, buffer in joined.named_buffers():  # after a forward in training, too
        if buffer.ndim:
            assert torch.allclose(buffer, stacked(model, name), rtol=0, atol=1e-10), name
        else:
            assert all(torch.equal(buffer, member.get_buffer(name)) for member in model.members)


def test_a_joined_ensemble_in_single_precision():
    model = ensemble(torch.float32, members=5).eval()
    x = torch.rand(4, 2, 16, 16)
    assert torch.allclose(model.joined()(x), in_turn(model, x), rtol=1e-4, atol=1e-5)


def test_joining_draws_nothing_and_shares_nothing():
    model, x = ensemble().eval(), torch.rand(2, 2, 16, 16, dtype=torch.float64)
    state, before = torch.get_rng_state(), model(x)
    joined = model.joined()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.requires_grad for parameter in joined.parameters())
    with torch.no_grad():
        for tensor in (*joined.parameters(), *joined.buffers()):
            tensor.zero_()
    assert torch.equal(model(x), before)


def test_a_joined_ensemble_is_saved_and_loaded_and_copied():
    x = torch.rand(2, 2, 16, 16, dtype=torch.float64)
    model = ensemble().eval()
    joined, other = model.joined(), resnet(channels=2, classes=4, members=3).double().eval().joined()
    assert list(joined.state_dict()) == list(model.members[0].state_dict())
    other.load_state_dict(joined.state_dict())
    for twin in (other, copy.deepcopy(joined), pickle.loads(pickle.dumps(model)).joined()):
        assert torch.equal(twin(x), joined(x))


def test_networks_that_were_put_together_by_hand_are_not_joined():
    with pytest.raises(InputError, match="resnet"):
        Ensemble([resnet(), resnet()]).joined()
    changed = resnet(members=2)
    changed.members[1][-4] = torch.nn.Tanh()
    with pytest.raises(InputError, match="other layers"):
        changed.joined()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"depth": 9}, "8, 14, 20"),
        ({"members": 0}, "at least one member"),
        ({"groups": 3}, "into 3 groups"),
        ({"shrink": 0}, "at least one pixel"),
    ],
)
def test_what_cannot_be_built_is_said(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        resnet(**arguments)
