"""Private means, second moments and DP-PCA: the right numbers, the right events, the right noise."""

import numpy as np
import pytest
import torch

from privet.data import Split
from privet.errors import InputError
from privet.methods.statistics import private_components, private_mean, private_second_moment
from privet.privacy import CovarianceRelease, Gaussian, Ledger
from privet.randomness import Randomness


@pytest.fixture
def records():
    generator = torch.Generator().manual_seed(0)
    stretched = torch.randn(3000, 6, generator=generator) * torch.tensor([9.0, 5.0, 3.0, 1.0, 0.5, 0.1])
    turned = torch.linalg.qr(torch.randn(6, 6, generator=generator))[0]
    return Split(stretched @ turned, torch.zeros(3000, dtype=torch.int64))


def test_a_mean_with_hardly_any_noise_is_the_mean_of_clipped_records(records):
    ledger = Ledger()
    found = private_mean(
        records, bound=4.0, noise_multiplier=1e-9, public_size=3000, ledger=ledger, randomness=Randomness.of(0)
    )
    rows = records.inputs.double()
    expected = (rows * (4.0 / rows.norm(dim=1)).clamp(max=1)[:, None]).mean(0)
    assert torch.allclose(found.double(), expected, atol=1e-4)
    assert [event for event, _ in ledger] == [Gaussian(1e-9)]


def test_components_are_the_eigenvectors_of_normalised_records(records):
    ledger = Ledger()
    found = private_components(records, 3, noise_multiplier=1e-9, ledger=ledger, randomness=Randomness.of(0))
    rows = records.inputs.numpy().astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    expected = np.linalg.svd(rows, full_matrices=False)[2][:3]
    assert np.abs(np.abs((found.numpy() * expected).sum(1)) - 1).max() < 1e-5
    assert torch.allclose(found @ found.mT, torch.eye(3), atol=1e-5)
    assert [event for event, _ in ledger] == [CovarianceRelease(1e-9)]


def test_it_costs_what_the_paper_says_of_its_noise():
    ledger = Ledger()
    ledger.record(CovarianceRelease(7.0))
    assert ledger.spent(1e-5, "moments").epsilon == pytest.approx(0.6965, abs=1e-4)
    assert ledger.spent(1e-5).epsilon == pytest.approx(0.5025, abs=1e-3)


def test_the_noise_of_a_second_moment_has_the_stated_scale():
    # 200 draws of 10 + 45 entries; the chance of a false alarm is below 1e-6 for each of the two.
    zero = Split(torch.zeros(1, 10), torch.zeros(1, dtype=torch.int64))
    randomness, ledger = Randomness.of(5), Ledger()
    drawn = torch.stack(
        [
            private_second_moment(zero, noise_multiplier=3.0, public_size=1, ledger=ledger, randomness=randomness)
            for _ in range(200)
        ]
    )
    assert torch.equal(drawn, drawn.mT)
    diagonal = drawn.diagonal(dim1=1, dim2=2).std()
    above = drawn[:, *torch.triu_indices(10, 10, offset=1)].std()
    assert float(diagonal) == pytest.approx(3.0, rel=5 / (2 * 2000) ** 0.5)
    assert float(above) == pytest.approx(3.0, rel=5 / (2 * 9000) ** 0.5)
    assert len(ledger) == 200


def test_the_event_is_recorded_before_noise_is_drawn(records, monkeypatch):
    def fails(*_):
        raise RuntimeError("no noise today")

    monkeypatch.setattr("privet.noise.GaussianNoise.add", fails)
    ledger = Ledger()
    with pytest.raises(RuntimeError, match="no noise"):
        private_mean(
            records, bound=1.0, noise_multiplier=2.0, public_size=3000, ledger=ledger, randomness=Randomness.of(0)
        )
    assert len(ledger) == 1


@pytest.mark.parametrize("components", [0, 7])
def test_there_are_no_more_components_than_columns(records, components):
    with pytest.raises(InputError, match="from 1 to 6 components"):
        private_components(records, components, noise_multiplier=1.0, ledger=Ledger(), randomness=Randomness.of(0))


def test_nothing_is_divided_by_the_number_of_records(records):
    """The normaliser from the private data set's size: with one record more, only that record's share is added."""
    fewer = Split(records.inputs[:-1], records.labels[:-1])
    settings = {"noise_multiplier": 1e-9, "public_size": 3000}

    def means(part):
        mean = private_mean(part, bound=4.0, ledger=Ledger(), randomness=Randomness.of(0), **settings)
        moment = private_second_moment(part, ledger=Ledger(), randomness=Randomness.of(0), **settings)
        return torch.cat([mean.double(), moment.flatten()])

    last = records.inputs[-1].double()
    clipped, scaled = last * min(4.0 / float(last.norm()), 1.0), last / last.norm()
    share = torch.cat([clipped, torch.outer(scaled, scaled).flatten()]) / 3000
    assert torch.allclose(means(records) - means(fewer), share, atol=1e-6)
