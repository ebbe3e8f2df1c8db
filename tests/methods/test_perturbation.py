"""Noise in the residual stream: its scale, that it is fresh, that bounds hold, and that nothing of it stays behind.

Statistical tests have fixed seeds; each allows five standard errors.
"""

import copy
import math

import pytest
import torch
from torch import nn

from privet.errors import InputError
from privet.methods.perturbation import ResidualPerturbation
from privet.models import resnet
from privet.privacy import Claimed, Gaussian, NotPrivate, Proved
from privet.randomness import SecureSource


class Doubled(nn.Module):
    """x + x, a residual block whose mapping is the identity."""

    def forward(self, x):
        return x + x


class BasicBlock(nn.Module):
    """As torchvision's: the activation comes after the sum, and `downsample` brings the stream to its shape."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.downsample = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else None

    def forward(self, x):
        stream = x if self.downsample is None else self.downsample(x)
        return torch.relu(stream + self.conv(x))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("training", [True, False])
def test_noise_is_fresh_in_every_call_in_training_and_at_test(training):
    torch.manual_seed(0)
    model = resnet(channels=1, groups=4).train(training)
    x = torch.rand(2, 1, 16, 16)
    plain = model(x)
    with ResidualPerturbation(0.5).apply(model, source=seeded()):
        first, second = model(x), model(x)
    assert not torch.allclose(first, second)
    assert not torch.allclose(first, plain)
    assert torch.equal(model(x), plain)


def test_the_module_is_left_as_it_was():
    model = resnet()
    keys, parts = list(model.state_dict()), [type(m) for m in model.modules()]
    applied = ResidualPerturbation(0.5, "II", pi=1.0, bound=1.0, weight_norm=1.0).apply(model)
    assert list(model.state_dict()) == keys
    assert [type(m) for m in model.modules()] == parts
    assert (applied.blocks, applied.heads, applied.members) == (("2", "3", "4"), ("9",), 1)
    applied.remove()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_the_scale_of_additive_noise():
    block, x = Doubled(), torch.randn(100, 2000, generator=seeded())
    with ResidualPerturbation(0.7).apply(block, blocks=[""], source=seeded(1)):
        noise = block(x) - 2 * x
    error = 5 / math.sqrt(2 * noise.numel())
    assert float(noise.std()) == pytest.approx(0.7, rel=error)
    assert abs(float(noise.mean())) < 0.7 * 5 / math.sqrt(noise.numel())
    assert abs(float(torch.corrcoef(torch.stack([noise.flatten(), x.flatten()]))[0, 1])) < 5 / math.sqrt(noise.numel())


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_scale_of_multiplicative_noise_with_its_floor(layout):
    values = torch.tensor([-3.0, -0.05, 0.0, 0.05, 0.2, 1.0])
    x = values.repeat_interleave(20_000).view(1, 6, 100, 200).contiguous(memory_format=layout)
    block = Doubled()
    with ResidualPerturbation(0.4, "II", eta=0.1).apply(block, blocks=[""], source=seeded(2)):
        noise = (block(x) - 2 * x)[0].flatten(1)
    expected = 0.4 * torch.tensor([3.0, 0.1, 0.1, 0.1, 0.2, 1.0])  # also where the stream is exactly zero
    assert torch.allclose(noise.std(1) / expected, torch.ones(6), atol=5 / math.sqrt(2 * 20_000))


def test_residual_mappings_are_clipped_to_their_bound_and_the_stream_is_not():
    block, x = Doubled(), torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    with ResidualPerturbation(0.0, bound=1.0).apply(block, blocks=[""]):
        assert torch.allclose(block(x), x + torch.tensor([[0.6, 0.8], [0.3, 0.4]]), atol=1e-4)


@pytest.mark.parametrize("skips", [True, False])
def test_the_bound_holds_in_every_block_of_a_network(skips):
    torch.manual_seed(0)
    model, seen = resnet(channels=1, skips=skips, groups=4), []

    def look(block, args, out):
        residual = out - block.shortcut(args[0]) if skips else out
        seen.append(float(residual.detach().flatten(1).norm(dim=1).max()))

    with ResidualPerturbation(0.0, bound=0.5).apply(model):
        for block in model[2:5]:
            block.register_forward_hook(look)
        model(50 * torch.randn(4, 1, 16, 16))
    assert len(seen) == 3 and max(seen) <= 0.5 + 1e-4


@pytest.mark.parametrize("source", [None, "secure", "seeded"])
def test_inputs_are_clipped_and_get_noise(source):
    found = {"secure": SecureSource, "seeded": seeded}.get(source, lambda: None)()
    torch.manual_seed(0)
    block, x = Doubled(), torch.randn(50, 4000)
    x[0] = math.nan
    with ResidualPerturbation(0.0, pi=2.0, radius=1.0).apply(block, blocks=[""], source=found):
        out = block(x) / 2
    assert out.dtype == torch.float32
    noise = out - torch.nn.functional.normalize(x.nan_to_num(0.0)) * 1.0
    assert float(noise.std()) == pytest.approx(2.0, rel=0.02)
    assert float(noise[0].std()) == pytest.approx(2.0, rel=0.1)  # a record that is not finite is noise alone


def test_the_last_layer_of_strategy_two_is_bounded_and_has_noise_relative_to_its_input():
    torch.manual_seed(0)
    model = nn.Sequential(Doubled(), nn.Linear(3, 2))
    how = ResidualPerturbation(0.0, "II", pi=0.5, weight_norm=0.1)
    x = torch.tensor([[1.0, 2.0, 2.0]]).repeat(50_000, 1)
    with how.apply(model, blocks=["0"], source=seeded()), torch.no_grad():
        scores = model(x)
    size = float(torch.cat([model[1].weight.detach(), model[1].bias.detach()[:, None]], 1).norm())
    expected = model[1](2 * x[:1]).detach() * 0.1 / size
    assert torch.allclose(scores.mean(0), expected[0], atol=0.05)
    assert float(scores.std()) == pytest.approx(0.5 * math.sqrt(36 + 1), rel=0.02)


def test_any_torch_style_block_by_class_or_by_name():
    torch.manual_seed(0)
    model = nn.Sequential(BasicBlock(2, 2, 1), BasicBlock(2, 4, 2))
    x = torch.rand(3, 2, 8, 8)
    for how in (ResidualPerturbation(0.3), ResidualPerturbation(0.3, "II", bound=2.0)):
        with how.apply(model, source=seeded()) as applied:
            assert applied.blocks == ("0", "1")
            model(x).sum().backward()  # what the activation keeps for the way back was not changed
    with ResidualPerturbation(0.3).apply(model, blocks=["1"], source=seeded()):
        assert not torch.equal(model(x), model(x))
    with pytest.raises(InputError, match="name its residual blocks"):
        ResidualPerturbation(0.3).apply(nn.Linear(2, 2))
    with pytest.raises(InputError, match="no part named 'blocks'"):
        ResidualPerturbation(0.3).apply(model, blocks=["blocks"])


def test_a_stream_that_does_not_fit_is_said():
    class Narrow(nn.Module):
        def forward(self, x):
            return x[:, :1]

    with (
        ResidualPerturbation(1.0, "II").apply(model := Narrow(), blocks=[""]),
        pytest.raises(InputError, match="stream"),
    ):
        model(torch.rand(2, 3))
    with ResidualPerturbation(1.0).apply(model, blocks=[""]):
        assert model(torch.rand(2, 3)).shape == (2, 1)


def test_an_input_that_would_pass_without_noise_is_refused():
    block = Doubled()
    with (
        ResidualPerturbation(0.0, pi=1.0, radius=1.0).apply(block, blocks=[""]),
        pytest.raises(InputError, match="first"),
    ):
        block(x=torch.ones(1, 2))


def test_as_a_regulariser_it_is_silent_at_test():
    model = resnet(channels=1, groups=4).eval()
    x = torch.rand(2, 1, 16, 16)
    with ResidualPerturbation(0.5, pi=1.0, radius=1.0).apply(model, at_test=False):
        assert torch.equal(model(x), model(x))
        model.train()
        assert not torch.equal(model(x), model(x))


def test_a_copy_of_a_perturbed_network_is_perturbed_by_itself():
    model = resnet(channels=1, groups=4)
    x = torch.rand(2, 1, 16, 16)
    with ResidualPerturbation(0.5, "II").apply(model):
        other = copy.deepcopy(model)
    assert torch.equal(model(x), model(x))
    assert not torch.equal(other(x), other(x))


def test_what_an_epoch_costs():
    assert ResidualPerturbation(0.5, pi=60.0, radius=30.0).epoch(3) == Gaussian(2.0)
    assert ResidualPerturbation(0.5, pi=60.0, radius=30.0).epoch(3).guarantee == Proved()
    claimed = ResidualPerturbation(0.5, bound=5.0).epoch(4)
    assert isinstance(claimed.guarantee, Claimed)
    assert claimed.event == Gaussian(0.5 * 2 / 5)
    assert ResidualPerturbation(0.5, bound=5.0).epoch(4, members=5) == claimed * 5  # each member has a stream
    assert ResidualPerturbation(0.5, pi=60.0, radius=30.0).epoch(3, members=5) == Gaussian(
        2.0
    )  # and all share one input
    assert ResidualPerturbation(0.0).epoch(3) == NotPrivate()
    assert ResidualPerturbation(2.0, "II").epoch(3) == NotPrivate()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"gamma": -1.0}, "gamma"),
        ({"gamma": 1.0, "strategy": "III"}, "'I' or 'II'"),
        ({"gamma": 1.0, "eta": 0.0}, "eta"),
        ({"gamma": 1.0, "pi": 1.0}, "give radius"),
        ({"gamma": 1.0, "pi": 1.0, "strategy": "II"}, "give weight_norm"),
        ({"gamma": 1.0, "radius": 1.0, "strategy": "II"}, "leave radius out"),
        ({"gamma": 1.0, "weight_norm": 1.0}, "leave weight_norm out"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        ResidualPerturbation(**arguments)
