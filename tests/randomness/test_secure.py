"""Random numbers of releases. The keys are fixed here, so that nothing fails by chance; false-alarm rates are stated."""

from __future__ import annotations

import copy
import hashlib
import math
import os
import pickle
import struct

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from privet.clipping import BoundedSum
from privet.noise import GaussianNoise
from privet.noise.additive import GRID
from privet.randomness import Randomness, SecureSource
from privet.sampling import PoissonSampling


def source(key: bytes = b"k" * 32) -> SecureSource:
    made = SecureSource()
    made._key = key
    return made


def request(counter: int, count: int) -> bytes:
    """The bytes of a request, block by block: AES of the numbers 0, 1, 2, ... under the key of the request."""
    key = hashlib.shake_128(b"k" * 32 + counter.to_bytes(16, "little")).digest(32)
    cipher = Cipher(algorithms.AES256(key), modes.ECB())
    blocks = [cipher.encryptor().update(block.to_bytes(16, "big")) for block in range(-(-count // 16))]
    return b"".join(blocks)[:count]


def test_the_stream_is_aes_of_a_counter_under_a_key_of_each_request() -> None:
    drawn = source()
    for counter in (1, 2):
        assert drawn._bytes(40) == request(counter, 40)


def test_normal_numbers_are_those_of_box_and_muller() -> None:
    """One number at a time with Python's own functions, from the bytes of the request; to 1e-13."""
    count = 11
    half = (count + 1) // 2
    integers = struct.unpack(f"<{half}q{half}i", request(1, 12 * half))
    lengths = [math.sqrt(-2 * math.log(((radius >> 11) + 0.5) * 2.0**-53 + 0.5)) for radius in integers[:half]]
    turns = [(angle + 0.5) * math.pi * 2.0**-31 for angle in integers[half:]]
    expected = [a * math.cos(b) for a, b in zip(lengths, turns, strict=True)]
    expected += [a * math.sin(b) for a, b in zip(lengths, turns, strict=True)]
    assert source().normal(count).tolist() == pytest.approx(expected[:count], abs=1e-13)
    assert source().normal(count, 3, 7).tolist() == source().normal(count)[3:7].tolist()


def test_nothing_is_drawn_twice() -> None:
    assert len(source().normal(200_001).unique()) > 200_001 - 10
    assert len(source().coins(0, 0.5)) == len(source().normal(0)) == 0
    assert SecureSource()._bytes(32) != SecureSource()._bytes(32)


def test_normal_numbers_are_normal() -> None:
    """Kolmogorov-Smirnov, variance, kurtosis and tails; false-alarm rate 1e-6 each."""
    drawn, n = source().normal(400_001), 400_001
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-6
    assert 1e-6 < stats.chi2.cdf(float(drawn.square().sum()), n) < 1 - 1e-6
    assert abs(float(drawn.pow(4).mean()) - 3) < 4.9 * (96 / n) ** 0.5
    assert stats.binomtest(int((drawn.abs() > 3.5).sum()), n, 2 * stats.norm.sf(3.5)).pvalue > 1e-6


def test_draws_are_independent_of_each_other_and_between_calls() -> None:
    """Correlations at lags, between the two halves that share a radius, of squares too; false-alarm rate 1e-6 each."""
    drawn, bound = source(), 4.9
    one, other = drawn.normal(2**17), drawn.normal(2**17)
    for left, right in ((one[:-1], one[1:]), (one[: 2**15], one[2**15 : 2**16]), (one, other), (one, other.flip(0))):
        for power in (1, 2):
            a, b = left**power, right**power
            found = float(torch.corrcoef(torch.stack([a, b]))[0, 1])
            assert abs(found) < bound / len(a) ** 0.5


def test_coins_have_the_probability() -> None:
    """Binomial test, false-alarm rate 1e-6; and the ends are exact."""
    for probability in (0.001, 0.3, 0.5, 0.99):
        heads = int(source().coins(200_000, probability).sum())
        assert stats.binomtest(heads, 200_000, probability).pvalue > 1e-6
    assert source().coins(1000, 1.0).all() and not source().coins(1000, 2.0**-64 / 2).any()


def test_the_coin_s_threshold_is_exact_to_64_bits() -> None:
    """A coin whose first 32 bits tie with the threshold is decided by the next 32."""
    drawn = source()
    words = np.frombuffer(source()._bytes(4000), np.uint32)
    assert np.array_equal(drawn.coins(1000, 0.5).numpy(), words < 2**31)
    tie = int(words[7])
    for lower, decided in ((0, False), (2**32 - 2**11, True)):
        threshold = (tie * 2**32 + lower) / 2**64  # a float holds 53 bits: the lower part is cut to 21
        assert bool(source().coins(1000, threshold)[7]) is decided


@pytest.mark.parametrize("rate", [0.02, 0.3])
def test_secure_poisson_sampling(rate: float) -> None:
    """Each record's count and the variance of the size; false-alarm rate 1e-6 each."""
    records, draws, sampling, drawn = 40, 3000, PoissonSampling(rate), source()
    joined = torch.zeros(draws, records)
    for i in range(draws):
        chosen = sampling.draw(records, drawn)
        assert torch.equal(chosen, chosen.unique())
        joined[i, chosen] = 1
    expected = draws * rate
    chi = float(((joined.sum(0) - expected) ** 2 / (expected * (1 - rate))).sum())
    assert stats.chi2.sf(chi, records) > 1e-6
    z = (float(joined.sum(1).var()) / (records * rate * (1 - rate)) - 1) * (draws / 2) ** 0.5
    assert abs(z) < 6


def test_secure_noise_has_the_scale() -> None:
    """Chi-square of the variance and Kolmogorov-Smirnov; false-alarm rate 1e-6 each."""
    scale = torch.linspace(0.5, 4, 200_000)
    bounded = BoundedSum(
        {"a": torch.full((200_000,), 7.0), "b": torch.zeros(100, 1000)}, 1.0, {"a": scale, "b": 0.3}, 10
    )
    noisy = GaussianNoise(1.7).add(bounded, source())
    for standard in ((noisy["a"] - 7) / (1.7 * scale), noisy["b"].flatten() / (1.7 * 0.3)):
        assert 1e-6 < stats.chi2.cdf(float(standard.double().square().sum()), len(standard)) < 1 - 1e-6
        assert stats.kstest(standard[:20_000].numpy(), "norm").pvalue > 1e-6
    assert noisy["b"].shape == (100, 1000) and noisy["b"].dtype == torch.float32


def test_a_release_lies_on_a_grid_that_does_not_depend_on_the_sum() -> None:
    """The attack of Mironov 2012: under plain floating-point noise the low bits tell sums apart; on the grid they cannot."""
    sums = [torch.zeros(4000, dtype=torch.float64), torch.full((4000,), 1 / 3, dtype=torch.float64)]
    on_grid = []
    for total in sums:
        bounded = BoundedSum({"a": total}, 1.0, {"a": 1.0}, 1)
        noisy = GaussianNoise(1.0).add(bounded, source())["a"]
        on_grid.append(bool(((noisy / GRID) == (noisy / GRID).round()).all()))
        plain = GaussianNoise(1.0).add(bounded, torch.Generator().manual_seed(0))["a"]
        assert not ((plain / GRID) == (plain / GRID).round()).all()
    assert on_grid == [True, True]


def test_rounding_costs_what_the_noise_is_enlarged_by() -> None:
    """Neighbouring sums move apart by at most GRID sqrt(d) when they are rounded."""
    generator = torch.Generator().manual_seed(0)
    one = torch.randn(5000, generator=generator, dtype=torch.float64)
    step = torch.randn(5000, generator=generator, dtype=torch.float64)
    other = one + step / step.norm()
    rounded = ((one / GRID).round() - (other / GRID).round()).mul(GRID).norm()
    assert float(rounded) <= 1 + GRID * 5000**0.5


def test_a_key_is_neither_copied_nor_written() -> None:
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="neither written nor copied"):
            attempt(source())


def test_a_forked_process_draws_its_own_numbers() -> None:
    drawn = source()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, drawn._bytes(32))
        os._exit(0)
    os.waitpid(child, 0)
    other = os.read(reading, 32)
    os.close(reading)
    os.close(writing)
    assert len(other) == 32 and other != drawn._bytes(32)


def test_streams_of_a_seed_repeat_and_share_nothing() -> None:
    one, again, next_one = Randomness.of(3), Randomness.of(3), Randomness.of(4)
    states = [s.get_state() for r in (one, next_one) for s in (r.sampling, r.noise)]
    states += [torch.Generator().manual_seed(k).get_state() for k in (3, 4, 6, 7)]
    assert len({bytes(state.tolist()) for state in states}) == 8
    assert torch.equal(one.noise.get_state(), again.noise.get_state())
    assert one.mark == "reproducible, not for release" and Randomness.of(None).mark == "secret keys"
    saved = one.state()
    expected = torch.randn(3, generator=one.noise)
    again.restore(saved)
    assert torch.equal(torch.randn(3, generator=again.noise), expected)
    assert Randomness.of(None).state() == {}
