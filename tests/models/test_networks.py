"""The papers' networks: shapes, sizes, what is frozen, and that they train under a plan."""

import pytest
import torch

from privet import models
from privet.data import Split
from privet.gradients import Engine
from privet.methods import dpsgd


def trainable(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("model", "shape", "size"),
    [
        (models.pca_mlp(), (1, 28, 28), 60 * 1000 + 1000 * 10),
        (models.crop_cnn(), (3, 32, 32), 4864 + 102_464 + (2304 * 384 + 384) + (384 * 384 + 384) + 3850),
        (models.crop_cnn(frozen=True), (3, 32, 32), (2304 * 384 + 384) + (384 * 384 + 384) + 3850),
        (models.tanh_cnn(), (1, 28, 28), 26_010),
    ],
)
def test_the_published_sizes(model, shape, size):
    assert trainable(model) == size
    assert model(torch.rand(2, *shape)).shape == (2, 10)


def test_the_projection_stays_as_it_is_and_the_rest_learns():
    model = models.pca_mlp(inputs=64, components=8, hidden=16)
    before = [p.detach().clone() for p in model.parameters()]
    records = Split(torch.rand(40, 8, 8), torch.arange(40) % 10)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    dpsgd.train(model, optimizer, records, batch_size=20, steps=3, noise_multiplier=1.0, delta=1e-3, max_grad_norm=4.0)
    changed = [not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)]
    assert changed == [False, True, True]


def test_frozen_convolutions_stay_as_they_are():
    model = models.crop_cnn(crop=8, frozen=True)
    kernels = model[1].weight.detach().clone()
    records = Split(torch.rand(8, 3, 10, 10), torch.arange(8) % 10)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    dpsgd.train(model, optimizer, records, batch_size=8, steps=1, noise_multiplier=1.0, delta=1e-3, max_grad_norm=3.0)
    assert torch.equal(model[1].weight, kernels)


def test_only_the_middle_of_an_image_is_seen():
    model = models.crop_cnn(crop=8)
    images = torch.rand(1, 3, 12, 12)
    outside = images.clone()
    outside[..., :2, :] = 9.0
    outside[..., 10:] = 9.0
    assert torch.equal(model(images), model(outside))


class StandardizedConv2d(torch.nn.Conv2d):
    """A convolution whose kernels are standardized before use (Qiao et al. 2019; under noise, De et al. 2022).

    The kernel of each output map gets mean 0 and variance 1 over its fan-in, and is divided by the root of the fan-in.
    Together with group norm it replaces batch norm, without mixing records.
    """

    def forward(self, x):
        spread, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True, correction=0)
        fan_in = self.weight[0].numel()
        weight = (self.weight - mean) * torch.rsqrt(spread * fan_in + 1e-4)
        return torch.nn.functional.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def test_standardised_kernels_and_their_gradients_for_each_record():
    torch.manual_seed(0)
    conv = StandardizedConv2d(2, 3, 3)
    x, y = torch.rand(4, 2, 6, 6), torch.tensor([0, 1, 2, 1])
    plain = torch.nn.Conv2d(2, 3, 3)
    weight = conv.weight.detach()
    flat = weight.flatten(1)
    plain.weight.data = (
        (flat - flat.mean(1, keepdim=True)) / (flat.std(1, correction=0, keepdim=True) * 18**0.5)
    ).view_as(weight)
    plain.bias.data = conv.bias.data
    assert torch.allclose(conv(x), plain(x), atol=1e-3)

    model = torch.nn.Sequential(conv, torch.nn.GroupNorm(3, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    with Engine(model, loss_reduction="sum") as engine:
        torch.nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
        norms = engine.gradients().total_squared_norms().sqrt()
    for record in range(4):
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x[record : record + 1]), y[record : record + 1]).backward()
        alone = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        assert float(norms[record]) == pytest.approx(float(alone), rel=1e-4)
