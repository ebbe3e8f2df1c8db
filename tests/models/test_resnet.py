"""Residual networks: their layout, with and without skips, and ensembles."""

import pytest
import torch
from torch import nn

from privet.errors import InputError
from privet.models import resnet
from privet.models.resnet import ResidualBlock


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
