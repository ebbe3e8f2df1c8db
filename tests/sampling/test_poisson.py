"""Poisson sampling: exact in distribution, fast, and on any map-style data set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from scipy import stats
from torch.utils.data import Dataset, TensorDataset

from privet.errors import InputError
from privet.sampling import PoissonSampling, load_batches, uniform_subset


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


class Squares(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([float(index), float(index**2)]), index


@pytest.mark.parametrize("workers", [0, 1])
def test_any_map_style_data_set(workers: int) -> None:
    indices = [torch.tensor([1, 4]), torch.tensor([], dtype=torch.long), torch.tensor([8])]
    batches = list(load_batches(Squares(), iter(indices), workers=workers))
    assert [len(x) for x, _ in batches] == [2, 0, 1]
    assert batches[0][0].tolist() == [[1.0, 1.0], [4.0, 16.0]]
    assert batches[1][0].shape == (0, 2) and batches[1][1].shape == (0,)


def test_tensors_are_selected_at_once() -> None:
    data = TensorDataset(torch.arange(10.0).view(10, 1), torch.arange(10))
    (x, y), (empty, _) = load_batches(data, [torch.tensor([2, 7]), torch.tensor([], dtype=torch.long)])
    assert x.tolist() == [[2.0], [7.0]] and y.tolist() == [2, 7] and empty.shape == (0, 1)


def test_streams_are_refused() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter([1, 2])

    with pytest.raises(InputError, match="map-style"):
        next(load_batches(Stream(), []))
