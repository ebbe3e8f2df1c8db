"""The noisy accuracy of protected records: against exact counts, its interval, its event, and broken variants."""

import math

import pytest
import torch

from privet.errors import PrivetError
from privet.methods.private_accuracy import SHARE, PrivateAccuracy, exactly, left_for_others, measured
from privet.privacy import Budget, Gaussian, Ledger, PoissonSampled, Relation
from privet.randomness import Randomness


def classified(count: int, classes: int, right: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    wrong = torch.rand(count, generator=generator) >= right
    return torch.where(wrong, (labels + 1) % classes, labels), labels


def naive(predicted: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    pairs = list(zip(predicted.tolist(), labels.tolist(), strict=True))
    right = sum(guess == label for guess, label in pairs)
    most = max([label for _, label in pairs].count(label) for label in range(10))
    return right / len(pairs), most / len(pairs)


def test_with_hardly_any_noise_it_is_the_exact_accuracy() -> None:
    predicted, labels = classified(500, 4, 0.8, 0)
    tiny, ledger = PrivateAccuracy(1e-6), Ledger()
    tiny.charge(ledger)
    found = tiny.read(predicted, labels, 4, ledger=ledger, randomness=Randomness.of(1))
    assert (found.accuracy, found.majority) == pytest.approx(naive(predicted, labels), abs=1e-6)
    exact = exactly(predicted, labels, 4)
    assert (exact.accuracy, exact.majority) == pytest.approx(naive(predicted, labels))
    assert found.low == pytest.approx(exact.low, abs=0.01) and found.high == pytest.approx(exact.high, abs=0.01)
    assert (exact.noise, found.noise) == (0.0, 1e-6)


def test_it_is_not_read_before_it_is_charged() -> None:
    """The broken variant: a ledger with other events, even with Gaussian ones of other noise."""
    predicted, labels = classified(50, 2, 0.8, 0)
    measuring, ledger = PrivateAccuracy(5.0), Ledger()
    ledger.record(Gaussian(5.1))
    ledger.record(PoissonSampled(0.1, Gaussian(5.0)))
    with pytest.raises(PrivetError, match="must be charged"):
        measuring.read(predicted, labels, 2, ledger=ledger, randomness=Randomness.of(1))
    measuring.charge(ledger)
    measuring.read(predicted, labels, 2, ledger=ledger, randomness=Randomness.of(1))


def test_one_record_changes_one_count_by_one() -> None:
    """Sensitivity 1, which is what the event says: the same noise on neighbors gives counts that differ by 1 in one place."""
    predicted, labels = classified(60, 3, 0.7, 2)
    seen: list[torch.Tensor] = []

    def noisy(keep: slice) -> None:
        from privet.methods import private_accuracy

        measuring, ledger = PrivateAccuracy(2.0), Ledger()
        measuring.charge(ledger)
        original = private_accuracy.measured
        private_accuracy.measured = lambda counts, noise: seen.append(counts) or original(counts, noise)  # type: ignore[func-returns-value]
        try:
            measuring.read(predicted[keep], labels[keep], 3, ledger=ledger, randomness=Randomness.of(7))
        finally:
            private_accuracy.measured = original

    noisy(slice(0, 60))
    noisy(slice(0, 59))
    changed = (seen[0] - seen[1]).flatten()
    assert float(changed.norm()) == pytest.approx(1.0) and int((changed.abs() > 0.5).sum()) == 1


@pytest.mark.parametrize(("count", "classes", "right"), [(200, 2, 0.9), (2000, 10, 0.97), (100, 2, 0.5)])
def test_the_interval_covers_the_true_accuracy(count: int, classes: int, right: float) -> None:
    """Of 200 intervals of 95 % at least 180 cover: a right one fails this with probability below 0.002."""
    measuring = PrivateAccuracy.within(3.0, 1e-5)
    covered = 0
    for seed in range(200):
        ledger = Ledger()
        measuring.charge(ledger)
        found = measuring.read(
            *classified(count, classes, right, seed), classes, ledger=ledger, randomness=Randomness.of(seed)
        )
        covered += found.low <= right <= found.high
    assert covered >= 180


def test_noise_that_hides_all_records_says_nothing() -> None:
    found = measured(torch.tensor([[-3.0, 1.0], [0.5, 1.0]], dtype=torch.float64), 5.0)
    assert (found.low, found.high) == (0.0, 1.0)
    assert math.isfinite(found.accuracy) and math.isfinite(found.majority)


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-5)])
def test_its_share_and_the_rest_keep_the_budget(epsilon: float, delta: float, relation: Relation) -> None:
    measuring = PrivateAccuracy.within(epsilon, delta, relation)
    rest = left_for_others(epsilon, delta, relation)
    assert 0.9 * epsilon < rest < epsilon
    other = Gaussian(Budget(rest, delta, relation).least(Gaussian))
    total = Budget(epsilon, delta, relation).spent(other + measuring.event).epsilon
    assert total <= epsilon * (1 + 1e-3)
    assert measuring.noise_multiplier == pytest.approx(
        Budget(epsilon, delta, relation, "gdp").least(Gaussian) / math.sqrt(SHARE)
    )


def test_a_training_after_the_charge_stays_within_epsilon() -> None:
    measuring, ledger = PrivateAccuracy.within(3.0, 1e-5), Ledger()
    measuring.charge(ledger)
    budget = Budget(3.0, 1e-5)
    alone, after = (b.noise_multiplier(0.01, 1000) for b in (budget, budget.after(ledger, fixed_beforehand=True)))
    assert alone < after < 1.02 * alone  # what it costs the training
    ledger.record(PoissonSampled(0.01, Gaussian(after)), 1000)
    assert ledger.spent(1e-5).epsilon <= 3.0
