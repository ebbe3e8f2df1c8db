"""The scattering transform against a slow direct computation and against another package's numbers."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from privet.errors import InputError
from privet.models import scattering_linear
from privet.models.features import GroupNormalize, Mirrored, Opponent, Scattering

STORED = json.loads((Path(__file__).parent / "oracles" / "scattering.json").read_text())


def image(height, width):
    """The image of oracles/make_scattering.py."""
    y, x = torch.meshgrid(torch.arange(height) / height, torch.arange(width) / width, indexing="ij")
    return (0.5 + 0.3 * torch.sin(17 * x + 5 * y) + 0.2 * ((x - y) > 0.1))[None, None]


@pytest.mark.parametrize("case", STORED)
def test_it_gives_the_numbers_of_kymatio(case):
    height, width, scales, angles = map(int, case.split())
    found = Scattering(height, width, scales, angles)(image(height, width)).flatten()
    assert torch.allclose(found, torch.tensor(STORED[case]), atol=5e-5)


def gaussian_wave(size, sigma, angle, xi, slant):
    """By the definition, one entry at a time, summed over the periods that matter."""
    wave = np.zeros((size, size), dtype=np.complex128)
    for row in range(size):
        for column in range(size):
            for y in (row - size, row, row + size):
                for x in (column - size, column, column + size):
                    along = y * math.cos(angle) + x * math.sin(angle)
                    across = x * math.cos(angle) - y * math.sin(angle)
                    weight = math.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2))
                    wave[row, column] += weight * complex(math.cos(xi * along), math.sin(xi * along))
    return wave * slant / (2 * math.pi * sigma**2)


def convolved(signal, kernel):
    out = np.zeros_like(kernel)
    for row in range(len(kernel)):
        for column in range(len(kernel)):
            out += kernel[row, column] * np.roll(signal, (row, column), (0, 1))
    return out


def low_band(kernel):
    """The kernel on a grid of half the size: the low half of its discrete Fourier transform, by sums."""
    size, half = len(kernel), len(kernel) // 2
    frequencies = [k if k < half // 2 else k - half for k in range(half)]
    places = np.arange(size)
    forward = np.exp(-2j * np.pi * np.outer(frequencies, places) / size)
    back = np.exp(2j * np.pi * np.outer(np.arange(half), frequencies) / half) / half
    return back @ forward @ kernel @ forward.T @ back.T


def test_it_is_what_the_definition_says():
    side, angles = 8, 4
    picture = image(side, side)
    padded = np.pad(picture[0, 0].double().numpy(), 4, mode="reflect")
    size = len(padded)
    turns = [math.pi * (angles // 2 - 1 - angle) / angles for angle in range(angles)]

    def morlet(scale, turn):
        sigma, xi, slant = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 4 / angles
        wave, envelope = (gaussian_wave(size, sigma, turn, frequency, slant) for frequency in (xi, 0))
        return wave - wave.sum() / envelope.sum() * envelope

    low = gaussian_wave(size, 1.6, 0, 0, 1)
    fine = [abs(convolved(padded, morlet(0, turn))) for turn in turns]
    coarse = [abs(convolved(padded, morlet(1, turn))[::2, ::2]) for turn in turns]
    second = [[abs(convolved(u, morlet(1, turn))[::2, ::2]) for turn in turns] for u in fine]

    def averaged(signal):
        kernel = low if len(signal) == size else low_band(low)
        step = len(signal) // (size // 4)
        return convolved(signal, kernel)[step:-step:step, step:-step:step].real

    expected = [averaged(u) for u in [padded, *fine, *coarse, *(u for row in second for u in row)]]
    found = Scattering(side, side, 2, angles)(picture)[0]
    assert found.shape == (len(expected), 2, 2)
    assert np.abs(found.double().numpy() - np.stack(expected)).max() < 1e-6


def test_each_image_and_each_channel_by_itself():
    pictures = torch.rand(3, 2, 12, 16, generator=torch.Generator().manual_seed(0))
    transform = Scattering(12, 16)
    together = transform(pictures)
    assert together.shape == (3, 2 * transform.coefficients, *transform.output_size)
    alone = transform(pictures[1:2, 1:])
    assert torch.allclose(together[1, 81:], alone[0], atol=1e-6)


@pytest.mark.parametrize(("width", "scales", "angles"), [(16, 2, 8), (12, 2, 4), (24, 3, 4)])
def test_an_image_and_its_mirror_image_are_the_same_mirrored(width, scales, angles):
    pictures = torch.rand(2, 2, 12, width, generator=torch.Generator().manual_seed(0))
    transform, mirrored = Scattering(12, width, scales, angles), Mirrored(2, scales, angles)
    maps = transform(pictures)
    one, other = mirrored(maps), mirrored(transform(pictures.flip(-1)))
    # Inside: near the border, padding and sampling are not symmetric themselves.
    assert one.shape == (*maps.shape[:3], (maps.shape[3] + 1) // 2)
    assert float((one - other)[:, 1:].abs().max()) < 0.2 * float(one[:, 1:].abs().max())
    symmetric = (maps + maps[:, mirrored.partner].flip(-1)) / 2
    assert torch.allclose(one.flatten(1).norm(dim=1), symmetric.flatten(1).norm(dim=1), rtol=1e-5)
    assert torch.allclose(mirrored(maps[:, mirrored.partner].flip(-1)), one, atol=1e-6)


def test_colours_are_turned_without_changing_their_length():
    pictures = torch.rand(2, 3, 4, 4)
    turned = Opponent()(pictures)
    assert torch.allclose(turned.norm(dim=1), pictures.norm(dim=1), atol=1e-6)
    assert float(Opponent()(torch.ones(1, 3, 2, 2))[:, 1:].abs().max()) < 1e-6


def test_normalised_images_are_bounded_whatever_they_hold():
    maps = torch.cat([torch.randn(2, 6, 3, 3) * 1e4, torch.zeros(1, 6, 3, 3), torch.ones(1, 6, 3, 3)])
    maps[0, 0, 0, 0] = 1e9
    norms = GroupNormalize(3)(maps).flatten(1).norm(dim=1)
    assert bool((norms <= math.sqrt(6 * 9) * (1 + 1e-6)).all())


def test_a_model_on_features_is_its_parts_in_a_row():
    model = scattering_linear(channels=1, height=8, width=8, classes=3)
    assert model.standardise(model.features(torch.rand(2, 1, 8, 8))).shape == (2, 324)
    model.standardise.mean.normal_()
    model.standardise.channels.normal_()
    torch.nn.init.normal_(model.head.weight)
    pictures = torch.rand(2, 1, 8, 8)
    maps = model.features(pictures).flatten(2) - model.standardise.mean
    expected = model.head((model.standardise.channels @ maps @ model.standardise.places).flatten(1))
    assert torch.allclose(model(pictures), expected, atol=1e-5)
    assert not any("wavelets" in name for name in model.state_dict())


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Scattering(4, 4), "too small"),
        (lambda: Scattering(8, 8, 0), "at least one scale"),
        (lambda: Scattering(8, 8)(torch.zeros(1, 1, 9, 9)), "for images of"),
        (lambda: scattering_linear(groups=10), "groups of equal size"),
    ],
)
def test_what_cannot_be_transformed_is_said(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
