"""Reversal: what Euler's method recovers, with oracles that are plain arithmetic."""

import math

import pytest
import torch

from privet.attacks import convolved, draw_reversal, reverse
from privet.attacks.reversal import picture
from privet.errors import InputError


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
