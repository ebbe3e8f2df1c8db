"""The ROC against closed forms (two Gaussians, no signal, perfect separation, ties), and its plain form."""

import dataclasses
import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from privet.attacks import AttackResult, Lira, LossThreshold, Rate, Roc
from privet.errors import InputError, PrivetError


def two_gaussians(shift: float, members: int, non_members: int, seed: int) -> Roc:
    generator = np.random.default_rng(seed)
    return Roc.of(generator.normal(shift, 1, members), generator.normal(0, 1, non_members))


def test_two_gaussians_give_their_closed_form():
    # AUC = Phi(d / sqrt 2); TPR at FPR f = Phi(d + Phi^-1(f)). Tolerances are four standard errors.
    shift, n = 1.0, 40_000
    roc = two_gaussians(shift, n, n, seed=1)
    assert roc.auc == pytest.approx(stats.norm.cdf(shift / math.sqrt(2)), abs=4 * roc.auc_standard_error)
    for fpr in (0.001, 0.01, 0.1):
        truth = stats.norm.cdf(shift + stats.norm.ppf(fpr))
        slope = stats.norm.pdf(shift + stats.norm.ppf(fpr)) / stats.norm.pdf(stats.norm.ppf(fpr))
        error = math.sqrt(truth * (1 - truth) / n + slope**2 * fpr * (1 - fpr) / n)
        assert roc.tpr_at(fpr) == pytest.approx(truth, abs=4 * error)


def test_the_area_and_the_curve_agree_with_scikit_learn_when_scores_tie():
    generator = np.random.default_rng(2)
    members, others = generator.integers(0, 9, 300) + 1.0, generator.integers(0, 9, 200) * 1.0
    roc = Roc.of(members, others)
    truth = np.r_[np.ones(300), np.zeros(200)]
    assert roc.auc == pytest.approx(metrics.roc_auc_score(truth, np.r_[members, others]))
    fpr, tpr, thresholds = metrics.roc_curve(truth, np.r_[members, others], drop_intermediate=False)
    np.testing.assert_allclose(roc.false_positive_rate, fpr)
    np.testing.assert_allclose(roc.true_positive_rate, tpr)
    np.testing.assert_array_equal(roc.thresholds, thresholds)
    assert np.trapezoid(roc.true_positive_rate, roc.false_positive_rate) == pytest.approx(roc.auc)


def test_delongs_standard_error_is_the_double_loop_of_the_definition():
    generator = np.random.default_rng(3)
    members, others = generator.normal(0.4, 1, 31).round(1), generator.normal(0, 2, 23).round(1)
    wins = (members[:, None] > others) + 0.5 * (members[:, None] == others)
    variance = wins.mean(axis=1).var(ddof=1) / 31 + wins.mean(axis=0).var(ddof=1) / 23
    roc = Roc.of(members, others)
    assert roc.auc == pytest.approx(wins.mean())
    assert roc.auc_standard_error == pytest.approx(math.sqrt(variance))


def test_the_standard_error_without_leakage_is_the_known_one():
    # sqrt((m + n + 1) / 12 m n): .0041 at 9,988 a side, .0037 at 12,500.
    for n, known in ((9_988, 0.0041), (12_500, 0.0037)):
        assert two_gaussians(0, n, n, seed=4).auc_standard_error == pytest.approx(known, abs=5e-5)


@pytest.mark.parametrize(("shift", "members", "non_members"), [(0.0, 200, 200), (0.0, 60, 400), (1.5, 80, 80)])
def test_the_interval_covers_at_the_stated_rate(shift, members, non_members):
    # 1,000 draws with a fixed seed: 95 % coverage has a standard error of .69 %; the bounds are four of them.
    generator = np.random.default_rng(5)
    truth = stats.norm.cdf(shift / math.sqrt(2))
    covered = [
        truth in Roc.of(generator.normal(shift, 1, members), generator.normal(0, 1, non_members)).auc_interval(0.95)
        for _ in range(1000)
    ]
    assert 0.922 <= np.mean(covered) <= 0.978


def test_perfect_separation():
    roc = Roc.of(np.arange(50.0) + 100, np.arange(50.0))
    assert roc.auc == 1
    assert roc.tpr_at(0) == roc.tpr_at(0.001) == 1
    interval = roc.auc_interval()
    assert interval.method == "Newcombe"
    assert 0.9 < interval.low < 1  # fifty records a side do not prove certainty
    assert interval.high == 1
    assert Roc.of(np.arange(50.0), np.arange(50.0) + 100).auc_interval().low == 0


def test_newcombes_interval_solves_its_equation_at_the_ends():
    roc = Roc.of(np.ones(40), np.zeros(25))
    low, z = roc.auc_interval().low, stats.norm.ppf(0.975)
    size = (40 + 25) / 2 - 1
    variance = low * (1 - low) * (1 + size * ((1 - low) / (2 - low) + low / (1 + low))) / (40 * 25)
    assert 1 - low == pytest.approx(z * math.sqrt(variance))


def test_scores_that_all_tie_say_nothing():
    roc = Roc.of(np.zeros(100), np.zeros(100))
    assert roc.auc == 0.5
    assert roc.tpr_at(0.01) == 0  # either everyone is called a member or nobody
    assert 0.4 < roc.auc_interval().low < 0.5 < roc.auc_interval().high < 0.6


def test_infinite_scores_are_ordinary_scores():
    roc = Roc.of([np.inf, 1.0], [-np.inf, 0.0])
    assert roc.auc == 1


def test_the_rate_at_a_false_positive_rate_is_never_interpolated():
    roc = Roc.of([4.0, 3.0, 2.0, 1.0], [3.5, 0.0])
    assert roc.tpr_at(0.49) == 0.25
    assert roc.tpr_at(0.5) == 1
    assert not roc.resolves(0.49)
    assert roc.resolves(0.5)
    interval = roc.tpr_interval(0.49)
    assert (interval.low, interval.high) == pytest.approx(stats.binomtest(1, 4).proportion_ci(method="exact"))
    assert roc.tpr_interval(0.5).high == 1
    assert Roc.of([0.0], [1.0]).tpr_interval(0).low == 0


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Roc.of([], [1.0]), InputError, "scores of the members must be one non-empty row"),
        (lambda: Roc.of([1.0], [[1.0]]), InputError, "scores of the non-members must be one non-empty row"),
        (lambda: Roc.of([math.nan], [1.0]), PrivetError, "1 scores of the members are not a number"),
        (lambda: Roc.of([1.0], [0.0]).tpr_at(1.5), InputError, "between 0 and 1"),
        (lambda: Roc.of([1.0], [0.0]).auc_interval(95), InputError, "between 0 and 1"),
    ],
)
def test_bad_scores_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_precision_and_recall_at_a_threshold():
    roc = Roc.of([3.0, 2.0, 0.0], [2.0, -1.0])
    assert (roc.at(2.0).precision, roc.at(2.0).recall) == (2 / 3, 2 / 3)
    assert roc.at(9.0).precision is None
    assert roc.at(9.0).recall == 0


def test_the_plain_form_says_which_attack_ran_when_and_with_which_settings():
    roc = two_gaussians(0.5, 2000, 1000, seed=8)
    result = AttackResult.of("LiRA (8 shadow models)", roc, attack=Lira(shadows=8), power="everything")
    assert (result.key, result.power, result.command) == ("lira", "everything", ())
    assert result.settings == {"shadows": 8, "records": 2000, "epochs": 20, "seed": 0}
    written = datetime.fromisoformat(result.date)
    assert written.tzinfo == UTC
    assert timedelta(seconds=-1) <= datetime.now(UTC) - written < timedelta(minutes=5)
    assert (result.members, result.non_members, result.auc) == (2000, 1000, roc.auc)
    assert [rate.fpr for rate in result.rates] == [0.001, 0.01]
    assert len(result.false_positive_rate) == len(result.true_positive_rate) <= 400
    assert result.resolves(Rate(0.001, 0, 0, 0)) and not result.resolves(Rate(0.0009, 0, 0, 0))
    json.dumps(dataclasses.asdict(result), allow_nan=False)


def test_settings_that_json_does_not_know_become_text():
    @dataclasses.dataclass(frozen=True)
    class Odd(LossThreshold):
        folder: Path = Path("a/b")
        limit: float = math.inf

    settings = AttackResult.of("odd", two_gaussians(0.5, 20, 10, seed=8), attack=Odd()).settings
    assert settings == {"signal": "loss", "outputs": "logits", "batch_size": 1000, "folder": "a/b", "limit": "inf"}
