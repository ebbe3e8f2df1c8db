"""LiRA and RMIA against oracles, and on models with known leakage."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import privet
from privet.attacks import Fitting, Roc, lira, membership, membership_scores, rmia
from privet.attacks.membership import log_confidence, log_likelihood_ratio, log_mean_confidence, shares_beaten
from privet.errors import InputError, PrivetError
from tests.attacks.overfitted import FIT, blobs, network, seeded

# --- LiRA ----------------------------------------------------------------------------------------------------------------


def test_lira_is_stronger_than_the_loss():
    x, y = blobs(200, 2)
    members, others = (x[:100], y[:100]), (x[100:], y[100:])
    target = FIT(members, seeded(9))
    loss = membership(target, members, others)
    strongest = lira(target, members, others, FIT, seeded(), shadows=16)
    assert strongest.how == "one vectorized pass"
    assert strongest.roc.auc > loss.auc
    assert strongest.roc.auc > 0.8


def test_the_likelihood_ratio_is_that_of_two_gaussians():
    rng = np.random.default_rng(0)
    fits = torch.from_numpy(rng.normal(size=(70, 4)))
    inside = torch.from_numpy(rng.random((70, 4)) < 0.5)
    target = torch.from_numpy(rng.normal(size=4))
    found = log_likelihood_ratio(target, fits, inside)
    for j in range(4):
        one, other = fits[inside[:, j], j].numpy(), fits[~inside[:, j], j].numpy()
        truth = stats.norm.logpdf(target[j], one.mean(), one.std(ddof=1)) - stats.norm.logpdf(
            target[j], other.mean(), other.std(ddof=1)
        )
        assert found[j] == pytest.approx(truth)


# --- RMIA ----------------------------------------------------------------------------------------------------------------


def naive_shares(target_x, mean_x, target_z, mean_z, gamma):
    """The definition, with plain probabilities: the share of z with (p(x|t) / p(x)) / (p(z|t) / p(z)) >= gamma."""
    found = []
    for p_x, m_x in zip(target_x, mean_x, strict=True):
        won = 0
        for p_z, m_z in zip(target_z, mean_z, strict=True):
            won += (p_x / m_x) / (p_z / m_z) >= gamma
        found.append(won / len(target_z))
    return found


@pytest.mark.parametrize("a", [None, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_rmia_scores_are_those_of_a_double_loop(a, gamma):
    rng = np.random.default_rng(0)
    models, asked, others, classes = 3, 8, 11, 4
    records = asked + others
    logits = torch.from_numpy(rng.normal(0, 3, (models + 1, records, classes)))
    labels = torch.from_numpy(rng.integers(0, classes, records))
    chosen = torch.from_numpy(rng.random((models, records)) < 0.6)
    chosen[0] = True  # at least one model for each record
    # The oracle: softmax, means and the correction in plain float64, record by record.
    p = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(-1, keepdims=True)
    p = p[:, np.arange(records), labels.numpy()]
    means = [float(np.mean([p[1 + k, j] for k in range(models) if chosen[k, j]])) for j in range(records)]
    if a is not None:
        means = [0.5 * ((1 + a) * mean + (1 - a)) for mean in means]
    truth = naive_shares(p[0, :asked], means[:asked], p[0, asked:], means[asked:], gamma)
    found = log_confidence(logits, labels)
    np.testing.assert_allclose(found.exp(), p, rtol=1e-12)
    mean = log_mean_confidence(found[1:], chosen, a)
    np.testing.assert_allclose(mean.exp(), means, rtol=1e-12)
    ratios = found[0] - mean
    np.testing.assert_array_equal(shares_beaten(ratios[:asked], ratios[asked:], gamma), truth)


def test_a_tie_with_gamma_counts_as_beaten():
    ratios = torch.tensor([0.0, 1.0, 2.0]).double()
    np.testing.assert_allclose(shares_beaten(ratios, ratios, 1.0), [1 / 3, 2 / 3, 1.0])
    np.testing.assert_allclose(shares_beaten(ratios, ratios, math.e**1.5), [0.0, 0.0, 1 / 3])


def test_probabilities_of_zero_stay_finite_and_those_that_are_not_a_number_are_named():
    scores = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]).log().double()
    assert log_confidence(scores, torch.tensor([1, 0])).tolist() == [[-1e6, 0.0]]
    bad = torch.tensor([float("nan")]).double()
    with pytest.raises(PrivetError, match="not a number"):
        shares_beaten(bad, torch.zeros(2).double(), 1.0)


def test_with_uninformative_shadow_models_rmia_ranks_as_the_loss_does():
    # Equal logits: p(x) is 1/3 for every record, so that the ratio is the target's confidence alone. The population's
    # records are the records in question, so that no two of them fall between the same two of the population.
    x, y = blobs(60, 7)
    members, others = (x[:30], y[:30]), (x[30:], y[30:])
    target = FIT(members, seeded())
    flat = rmia(target, members, others, (x, y), lambda records, g: lambda batch: torch.zeros(len(batch), 3), seeded())
    loss = [membership_scores(target, *side) for side in (members, others)]
    assert flat.roc.auc == pytest.approx(Roc.of(*loss).auc, abs=1e-3)
    assert flat.how.startswith("one by one")


@pytest.mark.parametrize("shadows", [1, 2, 3])
def test_offline_shadow_models_never_see_the_records_in_question(shadows):
    x, y = blobs(90, 8)
    members, others, population = ((x[i : i + 30], y[i : i + 30]) for i in (0, 30, 60))
    seen = []

    def train(records, generator):
        seen.append(records[0])
        return FIT._built(generator)

    rmia(network(), members, others, population, train, seeded(), shadows=shadows, offline=True)
    assert len(seen) == shadows
    known = {tuple(row) for row in population[0].tolist()}
    assert all(len(part) == 15 and {tuple(row) for row in part.tolist()} <= known for part in seen)


def overfitted_digits(seed: int):
    """A target trained on 200 digits, of which a tenth has random labels, and members, others and a population."""
    x, y = privet.data.load("digits").train.tensors
    generator = seeded(1000 + seed)
    chosen = torch.randperm(len(x), generator=generator)[:600]
    x, y = x[chosen].flatten(1), y[chosen]
    y = torch.where(torch.rand(600, generator=generator) < 0.1, torch.randint(10, (600,), generator=generator), y)
    train = Fitting(
        lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        epochs=10,
        batch_size=20,
        learning_rate=0.01,
    )
    sides = [(x[i : i + 200], y[i : i + 200]) for i in (0, 200, 400)]
    return train(sides[0], seeded(seed)), *sides, train


def test_rmia_with_few_models_beats_the_loss_and_keeps_up_with_lira():
    """Paired differences of the AUC over six targets; everything is seeded.

    Measured over 40 other targets (mean and deviation of the difference): RMIA with 2 models minus loss 0.111 and 0.026;
    RMIA minus LiRA with 4 models each 0.035 and 0.029. With other seeds the mean of six differences would fall below the
    bound of 0.03 with probability below 1e-9 (7 standard errors), and below that of -0.01 with probability below 1e-4
    (3.8 standard errors). An RMIA that divides by nothing is the loss attack: its first difference is 0.
    """
    over_loss, over_lira = [], []
    for seed in range(6):
        target, members, others, population, train = overfitted_digits(seed)
        found = {
            shadows: rmia(target, members, others, population, train, seeded(seed), shadows=shadows).roc.auc
            for shadows in (2, 4)
        }
        over_loss.append(found[2] - membership(target, members, others).auc)
        over_lira.append(found[4] - lira(target, members, others, train, seeded(seed), shadows=4).roc.auc)
    assert np.mean(over_loss) > 0.03
    assert np.mean(over_lira) > -0.01


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shadows": 3}, "even number of shadow models, 2 or more, and 3"),
        ({"shadows": 0, "offline": True}, "at least one shadow model, and 0"),
        ({"gamma": 0.0}, "gamma must be above 0"),
        ({"gamma": math.inf}, "gamma must be above 0"),
        ({"a": 1.5}, "between 0 and 1, and is 1.5"),
    ],
)
def test_settings_of_rmia_that_make_no_sense_are_named(settings, message):
    records = blobs(8, 0)
    with pytest.raises(InputError, match=message):
        rmia(network(), records, records, records, FIT, seeded(), **settings)


def test_rmia_needs_a_population():
    records = blobs(8, 0)
    with pytest.raises(InputError, match="at least 2 records"):
        rmia(network(), records, records, (records[0][:1], records[1][:1]), FIT, seeded())
