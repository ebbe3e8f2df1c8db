"""Rows with noise: what is released of a record, what it costs, and what cannot be seen in it."""

import math

import pytest
import torch
from scipy import stats
from torch import nn

from privet.attacks import outside
from privet.clipping.bounded import clipped_rows
from privet.errors import InputError
from privet.methods.dpgan import called_real
from privet.methods.frozen_noise_layer_gan import NoisyRows, calibrated_rows, row_sampling
from privet.privacy import Budget, Gaussian, Ledger, Proved, Relation, steps_of
from privet.randomness import Randomness
from privet.sampling import FixedSizeSampling, PaddedPoissonSampling


def test_rows_in_their_places_are_the_loop_over_records():
    rows, places = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)) * 3, torch.tensor([4, 0, 2])
    rows[2] = float("nan")
    found = clipped_rows(rows, places, 5, 1.5)
    expected = torch.zeros(5, 4, dtype=torch.float64)
    for row, place in zip(rows[:2], places[:2], strict=True):
        expected[place] = row * min(1.0, 1.5 / (float(row.norm()) * (1 + 1e-5)))
    assert torch.allclose(found.tensors["rows"], expected, atol=1e-6)
    assert (found.sensitivity, found.records, found.bad) == (1.5, 3, 1)


def test_every_row_has_fresh_noise_of_the_stated_scale():
    """Empty rows are the noise alone: normality, and the correlation of batches; false-alarm rate 1e-6 for each."""
    plan = NoisyRows(PaddedPoissonSampling(1e-9, 10, 20), 0.7, 40)
    rows = torch.stack(list(plan.release(torch.ones(10, 16), Ledger(), Randomness.of(0))))
    assert rows.shape == (40, 20, 16)
    assert stats.kstest(rows.flatten().numpy() / 0.7, "norm").pvalue > 1e-6
    flat = rows.flatten(1)
    assert float(torch.corrcoef(flat).triu(1).abs().max()) < 6 / math.sqrt(flat.shape[1])


@pytest.mark.parametrize("scheme", ["padded", "fixed"])
def test_rows_hold_each_record_once_and_are_imitated_in_distribution(scheme):
    """Means and variances of a column of released and of imitated rows; false-alarm rate 1e-6."""
    sampling = row_sampling(scheme, 8, 100, 400, 1e-3)
    plan = NoisyRows(sampling, 0.5, 400)
    embeddings = torch.full((100, 3), 5.0)
    ledger = Ledger(relation=plan.relation)
    rows = torch.cat(list(plan.release(embeddings, ledger, Randomness.of(0))))
    assert len(rows) == 400 * sampling.rows
    mean = plan.filled / math.sqrt(3)
    assert abs(float(rows.mean()) - mean) < 6 * 0.77 / math.sqrt(rows.numel() / 3)
    torch.manual_seed(0)
    copies = plan.imitate(embeddings.repeat(len(rows) // 100, 1))
    assert stats.ks_2samp(rows[:, 0].numpy(), copies[:, 0].numpy()).pvalue > 1e-6


@pytest.mark.parametrize(
    ("examples", "epsilon", "delta", "epochs", "sigma"),
    [
        (60_000, 3.45, 1e-5, 10, 0.5202),
        pytest.param(60_000, 3.45, 1e-5, 100, 0.6350, marks=pytest.mark.slow),
        (73_257, 8.0, 1e-6, 50, 0.4903),
    ],
)
def test_padded_rows_need_the_noise_of_poisson_sampling_overflow_and_all(examples, epsilon, delta, epochs, sigma):
    steps = steps_of(examples, 32, epochs)
    plan = calibrated_rows(row_sampling("padded", 32, examples, steps, delta), steps, Budget(epsilon, delta))
    assert plan.noise_multiplier == pytest.approx(sigma, rel=1e-3)


def test_rows_of_fixed_size_need_less_than_rdp_says():
    steps = steps_of(60_000, 32, 10)
    sampling = row_sampling("fixed", 32, 60_000, steps, 1e-5)
    by_rdp = calibrated_rows(sampling, steps, Budget(3.45, 1e-5, Relation.REPLACE_ONE, "rdp"))
    assert by_rdp.noise_multiplier == pytest.approx(1.194, rel=2e-3)
    assert calibrated_rows(sampling, steps, Budget(3.45, 1e-5, Relation.REPLACE_ONE)).noise_multiplier < 1.194


def test_the_whole_plan_is_in_the_ledger_before_the_first_row():
    plan = NoisyRows(FixedSizeSampling(2, 10), 1.0, 5)
    ledger = Ledger(relation="replace-one")
    rows = plan.release(torch.ones(10, 2), ledger, Randomness.of(0))
    next(rows)
    assert ledger.event == plan.event == FixedSizeSampling(2, 10).event(Gaussian(1.0)) * 5
    assert ledger.guarantee == Proved()


def test_a_discriminator_of_rows_has_no_record_in_its_gradient():
    """What spans the gradient is noise: the record's own embedding lies outside of it as any other one does."""
    torch.manual_seed(0)
    embeddings = nn.functional.normalize(torch.randn(5, 40))
    plan = NoisyRows(FixedSizeSampling(5, 5), 0.6, 1)
    (rows,) = plan.release(embeddings, Ledger(relation="replace-one"), Randomness.of(0))
    judge = nn.Sequential(nn.Linear(40, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Flatten(0))
    called_real(judge(rows)).backward()
    assert float(outside(judge[0].weight.grad, rows).max()) < 1e-3
    assert float(outside(judge[0].weight.grad, embeddings).min()) > 0.5


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: row_sampling("shuffled", 2, 10, 1, 0.1), "padded or fixed"),
        (
            lambda: next(
                NoisyRows(FixedSizeSampling(2, 4), 1.0, 1).release(torch.ones(4, 2), Ledger(), Randomness.of(0))
            ),
            "accounted for replace-one",
        ),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
