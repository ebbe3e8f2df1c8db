"""Inversion of a classifier and of gradients, and reversal of a network, with oracles that are plain arithmetic."""

import math

import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

import privet
from privet.attacks import (
    Fitting,
    class_means,
    convolved,
    draw_classes,
    draw_inversion,
    draw_reversal,
    invert,
    outside,
    reconstruct,
    reverse,
    span,
)
from privet.attacks.pictures import picture
from privet.data import Dataset, Split
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


def test_the_classes_of_a_data_set_are_drawn(tmp_path):
    dataset = privet.data.load("digits")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    found = draw_classes(tmp_path / "a.png", model, dataset)
    assert found.records.shape == (10, 1, 8, 8)
    assert (tmp_path / "a.png").stat().st_mode & 0o777 == 0o600  # the means of records are private
    table = Dataset("table", ("a", "b"), {"train": Split(torch.rand(4, 2), torch.tensor([0, 1, 0, 1]))})
    with pytest.raises(InputError, match="the records of table are not images"):
        draw_classes(tmp_path / "b.png", nn.Linear(2, 2), table)


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


# --- from the features of a residual network -----------------------------------------------------------------------------


def test_without_noise_the_way_back_is_known():
    x = torch.rand(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = reverse(x, lambda x: x)
    assert torch.allclose(found.recovered, (1.01 * 0.99) ** 100 * x)
    assert float(found.recovered[0] / x[0]) == pytest.approx(0.9900493, abs=1e-7)
    assert torch.allclose(reverse(x, lambda x: torch.zeros_like(x)).recovered, x)


@pytest.mark.parametrize(("slope", "expected"), [(0.0, math.sqrt(2)), (1.0, 0.92532), (-1.0, 2.51519)])
def test_with_noise_the_error_is_that_of_the_two_brownian_motions(slope, expected):
    # 40,000 numbers: the error of the RMSE is about 0.4 % of it; the seed is fixed.
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(40_000, generator=generator, dtype=torch.float64)
    found = reverse(x, lambda x: slope * x, gamma=1.0, generator=generator)
    assert found.rmse == pytest.approx(expected, rel=0.012)


def test_multiplicative_noise_leaves_zero_alone_and_spoils_the_rest():
    generator = torch.Generator().manual_seed(2)
    x = torch.cat([torch.zeros(1000), torch.ones(40_000)]).double()
    found = reverse(x, lambda x: torch.zeros_like(x), gamma=1.0, multiplicative=True, generator=generator)
    assert float(found.recovered[:1000].abs().max()) == 0
    # E prod (1 + z)^2 over 200 steps of variance 0.01 is 1.01^200; its heavy tail asks for a wide margin.
    assert float(found.recovered[1000:].square().mean()) == pytest.approx(1.01**200, rel=0.4)


def test_an_image_that_ships_with_scikit_learn_is_recovered_from_features_without_noise_only(tmp_path):
    original = picture(side=48)
    assert original.shape[0] == 3 and 0 <= float(original.min()) < float(original.max()) <= 1
    plain = reverse(original, convolved())
    noisy = reverse(original, convolved(), gamma=1.0, generator=torch.Generator().manual_seed(0))
    assert float((plain.features - original).abs().mean()) > 0.1
    assert plain.rmse < 0.02
    assert noisy.rmse > 1
    path = draw_reversal(tmp_path / "figure.png", {"plain": plain, "noisy": noisy})
    assert path.stat().st_size > 1000


def test_what_is_no_picture_is_said(tmp_path):
    (tmp_path / "a.png").write_text("no")
    with pytest.raises(InputError, match="not an image"):
        picture(tmp_path / "a.png")
    with pytest.raises(InputError, match="at least one step"):
        reverse(torch.zeros(1), lambda x: x, steps=0)
