"""Inversion of a classifier and of gradients."""

import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

import privet
from privet.attacks import Fitting, class_means, draw_inversion, invert, outside, reconstruct, span
from privet.errors import InputError, PrivetError


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    return privet.data.load("digits").train.tensors


def test_a_classifier_gives_away_what_its_classes_look_like(tmp_path):
    x, y = digits()
    model = Fitting(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), epochs=8, learning_rate=0.02)(
        (x, y), torch.Generator().manual_seed(0)
    )
    found = invert(model, range(10), (1, 8, 8), start=0.5)
    assert found.confidence.min() > 0.95
    assert found.records.min() >= 0 and found.records.max() <= 1
    means = class_means(x, y, range(10))
    centred = [part.flatten(1) - part.flatten(1).mean(0) for part in (found.records, means)]
    alike = F.normalize(centred[0]) @ F.normalize(centred[1]).T
    assert int((alike.argmax(1) == torch.arange(10)).sum()) >= 9  # each looks most like its own class
    path = draw_inversion(tmp_path / "inversion.png", found, [str(i) for i in range(10)], means)
    with Image.open(path) as picture:
        assert picture.size[0] > 1000


def test_smoothness_smooths():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    rough, smooth = (invert(model, [3], (1, 8, 8), steps=60, smoothness=s).records for s in (0.0, 0.05))
    assert smooth.diff(dim=-1).abs().sum() < rough.diff(dim=-1).abs().sum()


def test_what_cannot_be_inverted_is_named():
    with pytest.raises(InputError, match="at least one class"):
        invert(nn.Linear(2, 2), [], (2,))
    found = invert(nn.Linear(2, 2), [0], (2,), steps=1)
    with pytest.raises(InputError, match="Only images"):
        draw_inversion("never.png", found, ["a"])


@pytest.mark.parametrize("sigma", [0.0, 1.0, 1000.0])
def test_noise_after_a_layer_protects_nothing_in_front_of_it(sigma):
    # The noise-layer GAN's discriminator, small: whatever the noise, the first layer's gradient is the image.
    torch.manual_seed(0)
    first, last = nn.Linear(12, 6), nn.Linear(6, 1)
    x = torch.randn(1, 12)
    hidden = torch.tanh(first(x))
    logit = last(hidden + sigma * torch.randn_like(hidden))
    loss = F.binary_cross_entropy_with_logits(logit, (logit < 0).float())  # an error, so that there is a gradient
    weight, bias = torch.autograd.grad(loss, [first.weight, first.bias])
    torch.testing.assert_close(reconstruct(weight, bias).float(), x[0], rtol=1e-3, atol=1e-4)
    assert len(span(weight)) == 1


def test_a_batch_lies_in_the_span_and_others_do_not():
    torch.manual_seed(0)
    first, last = nn.Linear(40, 20).double(), nn.Linear(20, 3).double()
    batch, others = torch.randn(5, 40).double(), torch.randn(5, 40).double()
    noisy = torch.tanh(first(batch)) + torch.randn(5, 20)
    loss = F.cross_entropy(last(noisy), torch.randint(3, (5,)))
    (weight,) = torch.autograd.grad(loss, [first.weight])
    assert len(span(weight)) == 5
    assert outside(weight, batch).max() < 1e-6
    assert outside(weight, others).min() > 0.5


def test_gradients_that_say_nothing_are_named():
    with pytest.raises(PrivetError, match="zero"):
        reconstruct(torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(InputError, match="different width"):
        reconstruct(torch.zeros(2, 3), torch.zeros(3))
    with pytest.raises(InputError, match="two dimensions"):
        span(torch.zeros(3))
    with pytest.raises(InputError, match="a candidate has 2"):
        outside(torch.ones(2, 3), torch.ones(1, 2))
