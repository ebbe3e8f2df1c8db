"""Gaussian noise: its scale on every coordinate, fresh at every call."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from privet.clipping import BoundedSum
from privet.errors import InputError
from privet.noise import GaussianNoise, IsotropicL2Noise
from privet.randomness import SecureSource, Source


def test_scale_of_the_noise() -> None:
    """A chi-square test of the variance and a Kolmogorov-Smirnov test of the shape; false-alarm rate 1e-6 each."""
    shape = torch.linspace(0.5, 4, 200_000)
    bounded = BoundedSum({"a": torch.full((200_000,), 7.0), "b": torch.zeros(100_000)}, 1.0, {"a": shape, "b": 0.3}, 10)
    noisy = GaussianNoise(1.7).add(bounded, torch.Generator().manual_seed(0))
    for standard in (((noisy["a"] - 7) / (1.7 * shape)), noisy["b"] / (1.7 * 0.3)):
        n = len(standard)
        chi = float(standard.double().square().sum())
        assert 1e-6 < stats.chi2.cdf(chi, n) < 1 - 1e-6
        assert stats.kstest(standard[:20_000].numpy(), "norm").pvalue > 1e-6


@pytest.mark.parametrize("noise", [GaussianNoise(1.0), IsotropicL2Noise(50, 1.0)], ids=["gaussian", "isotropic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("source", [torch.Generator().manual_seed(0), SecureSource()], ids=["seeded", "secure"])
def test_noise_is_fresh_at_every_call_and_leaves_the_sum_alone(
    noise: GaussianNoise | IsotropicL2Noise, dtype: torch.dtype, source: Source
) -> None:
    bounded = BoundedSum({"a": torch.ones(50, dtype=dtype)}, 1.0, {"a": 1.0}, 10)
    one, other = (noise.add(bounded, source)["a"] for _ in range(2))
    assert not torch.equal(one, other)
    assert one.dtype == dtype
    assert torch.equal(bounded.tensors["a"], torch.ones(50, dtype=dtype))


@pytest.mark.parametrize("count", [1, 15, 17, 65_536, 65_537, 131_073, 200_003])
def test_seeded_noise_is_one_long_draw(count: int) -> None:
    """It is made in chunks and added to a float64 sum; its numbers are those that torch draws at once in float32."""
    sums = {"a": torch.zeros(count, dtype=torch.float64)}
    bounded = BoundedSum(sums, 1.0, {"a": 0.5}, 10, 0, {"a": torch.float32})
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    drawn = torch.empty(count).normal_(generator=generators[0])
    assert torch.equal(GaussianNoise(2.0).add(bounded, generators[1])["a"].float(), drawn)
    assert torch.equal(generators[0].get_state(), generators[1].get_state())


@pytest.mark.parametrize("multiplier", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_multipliers_are_refused(multiplier: float) -> None:
    with pytest.raises(InputError, match="noise multiplier"):
        GaussianNoise(multiplier)
