"""Samplings: exact in distribution, with the events that they claim."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from privet.errors import InputError
from privet.privacy import FixedSizeSampled, Gaussian, PaddedPoisson, accountant_named
from privet.randomness import SecureSource
from privet.sampling import (
    EMPTY,
    FixedSizeSampling,
    PaddedPoissonSampling,
    PoissonSampling,
    SampleOverflowError,
    uniform_subset,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9])
def test_every_record_joins_with_the_rate_and_independently(rate: float) -> None:
    """False-alarm rate: 1e-6 for each of the three tests."""
    records, draws, sampling, source = 40, 4000, PoissonSampling(rate), generator(1)
    joined = torch.zeros(draws, records)
    for i in range(draws):
        joined[i, sampling.draw(records, source)] = 1
    counts = joined.sum(0)
    expected = torch.full((records,), draws * rate)
    chi = float(((counts - expected) ** 2 / (expected * (1 - rate))).sum())
    assert stats.chi2.sf(chi, records) > 1e-6
    sizes = joined.sum(1)
    z = (float(sizes.var()) / (records * rate * (1 - rate)) - 1) * (draws / 2) ** 0.5
    assert abs(z) < 6  # the variance of a binomial: neighbours are independent
    pairs = float((joined[:, 0] * joined[:, 1]).sum())
    assert stats.binomtest(int(pairs), draws, rate**2).pvalue > 1e-6


def test_subsets_are_uniform() -> None:
    """All ten subsets of two of five, equally often; false-alarm rate 1e-6."""
    source = generator(2)
    found: dict[tuple[int, ...], int] = {}
    for _ in range(5000):
        key = tuple(uniform_subset(5, 2, source).tolist())
        found[key] = found.get(key, 0) + 1
    assert len(found) == 10
    assert stats.chisquare(list(found.values())).pvalue > 1e-6
    source, wide = generator(3), torch.zeros(30)
    for _ in range(3000):
        wide[uniform_subset(30, 4, source)] += 1
    assert stats.chisquare(wide.numpy()).pvalue > 1e-6


def test_draws_are_sorted_and_distinct_and_may_be_empty() -> None:
    source = generator()
    for _ in range(200):
        drawn = PoissonSampling(0.05).draw(20, source)
        assert torch.equal(drawn, drawn.unique())
    assert any(len(PoissonSampling(0.01).draw(5, source)) == 0 for _ in range(50))
    assert len(PoissonSampling(1.0).draw(7, source)) == 7


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan")])
def test_impossible_rates_are_refused(rate: float) -> None:
    with pytest.raises(InputError, match="sampling rate"):
        PoissonSampling(rate)


def sources():
    return [torch.Generator().manual_seed(5), SecureSource()]


@pytest.mark.parametrize("source", sources(), ids=["seeded", "secure"])
def test_every_ordered_sample_of_fixed_size_is_equally_likely(source):
    """All twenty ordered pairs of five; false-alarm rate 1e-6."""
    found = {}
    for _ in range(4000):
        key = tuple(FixedSizeSampling(2, 5).draw(5, source).tolist())
        found[key] = found.get(key, 0) + 1
    assert len(found) == 20
    assert stats.chisquare(list(found.values())).pvalue > 1e-6


@pytest.mark.parametrize("source", sources(), ids=["seeded", "secure"])
def test_records_of_a_padded_sample_are_independent_and_anywhere(source):
    """The rate of each record, the size, and the place of the first record; false-alarm rate 1e-6 for each."""
    sampling, draws = PaddedPoissonSampling(0.2, 10, 10), 4000
    drawn = torch.stack([sampling.draw(10, source) for _ in range(draws)])
    assert drawn.shape == (draws, 10)
    joined = torch.stack([(drawn == record).sum(1) for record in range(10)], dim=1)
    assert int(joined.max()) == 1
    counts = joined.sum(0).numpy()
    assert stats.chi2.sf(((counts - draws * 0.2) ** 2 / (draws * 0.16)).sum(), 10) > 1e-6
    sizes = joined.sum(1).double()
    assert abs(float(sizes.var()) / 1.6 - 1) * (draws / 2) ** 0.5 < 6
    places = (drawn == 0).nonzero()[:, 1]
    assert stats.chisquare(torch.bincount(places, minlength=10).numpy()).pvalue > 1e-6
    assert int(drawn.min()) == EMPTY


def test_a_sample_that_does_not_fit_is_void():
    with pytest.raises(SampleOverflowError, match="More than 2 records"):
        for seed in range(50):
            PaddedPoissonSampling(0.5, 10, 2).draw(10, torch.Generator().manual_seed(seed))


def test_rows_are_as_few_as_the_overflow_allows_and_the_event_says_so():
    sampling = PaddedPoissonSampling.for_steps(32, 60_000, 18_750, 1e-8)
    event = sampling.event(Gaussian(0.6))
    assert isinstance(event, PaddedPoisson)
    assert (
        18_750 * event.overflow
        <= 1e-8
        < 18_750 * PaddedPoisson(event.rate, 60_000, event.rows - 1, event.event).overflow
    )
    assert 70 < sampling.rows < 90
    pld = accountant_named("pld")
    assert pld.delta(event * 18_750, 1000.0) == pytest.approx(18_750 * event.overflow, rel=0.05)


def test_the_events_of_a_fixed_size():
    assert FixedSizeSampling(3, 10).event(Gaussian(1.0)) == FixedSizeSampled(3, 10, Gaussian(1.0))
    assert FixedSizeSampling(10, 10).event(Gaussian(1.0)) == Gaussian(1.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: FixedSizeSampling(11, 10), "from 1 to 10"),
        (lambda: FixedSizeSampling(2, 10).draw(9, torch.Generator()), "their number is public"),
        (lambda: PaddedPoissonSampling(0.0, 10, 4), "rate"),
        (lambda: PaddedPoissonSampling(0.1, 10, 0), "at least one"),
        (lambda: PaddedPoissonSampling(0.1, 10, 4).draw(11, torch.Generator()), "at most 10"),
        (lambda: PaddedPoissonSampling.for_steps(11, 10, 1, 0.1), "from 1 to 10"),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
