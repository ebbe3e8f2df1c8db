"""Gaussian noise: its scale on every coordinate, fresh at every call."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from privet.clipping import BoundedSum
from privet.errors import InputError
from privet.noise import GaussianNoise


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


def test_noise_is_fresh_at_every_call_and_leaves_the_sum_alone() -> None:
    bounded = BoundedSum({"a": torch.zeros(50)}, 1.0, {"a": 1.0}, 10)
    generator = torch.Generator().manual_seed(0)
    one, other = (GaussianNoise(1.0).add(bounded, generator)["a"] for _ in range(2))
    assert not torch.equal(one, other)
    assert torch.equal(bounded.tensors["a"], torch.zeros(50))


@pytest.mark.parametrize("multiplier", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_multipliers_are_refused(multiplier: float) -> None:
    with pytest.raises(InputError, match="noise multiplier"):
        GaussianNoise(multiplier)
