"""Attacks on synthetic data: copies are caught, independent samples are not."""

import sys

import numpy as np
import pytest
import torch

from privet.attacks import closest_records, density_ratio, distance_attack, exact_copies, linkability, singling_out
from privet.attacks.synthetic import nearest
from privet.errors import InputError, PrivetError


def sample(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))


TRAINING, HOLDOUT, REFERENCE, INDEPENDENT = (sample(300, seed) for seed in range(4))
COPIED = TRAINING + 0.05 * sample(300, 9)


def test_distances_are_those_of_a_double_loop():
    truth = [min(float((a - b).norm()) for b in HOLDOUT[:50]) for a in TRAINING[:20]]
    np.testing.assert_allclose(nearest(TRAINING[:20].double(), HOLDOUT[:50].double()), truth, rtol=1e-6)


def test_rows_made_from_the_records_lie_closer_to_them():
    generator = torch.Generator().manual_seed(0)
    leaking = closest_records(COPIED, TRAINING, HOLDOUT, generator)
    assert leaking.share > 0.9 and leaking.leaks
    assert leaking.to_training < leaking.to_holdout
    assert ", more than chance explains: dividing the same 600 records at random gives" in str(leaking)
    innocent = closest_records(INDEPENDENT, TRAINING, HOLDOUT, generator, level=0.999)
    assert not innocent.leaks and innocent.share in innocent.by_chance
    assert 0.5 in innocent.by_chance
    uneven = closest_records(INDEPENDENT, TRAINING, HOLDOUT[:100], generator)
    assert uneven.records == 100


def test_membership_by_distance_and_by_density():
    members, others = TRAINING[:100], HOLDOUT[:100]
    for attack in (distance_attack, lambda s, m, o: density_ratio(s, REFERENCE, m, o)):
        assert attack(COPIED[:100], members, others).auc > 0.8
        assert 0.5 in attack(INDEPENDENT, members, others).auc_interval(0.999)


def test_copies_are_counted_exactly_and_within_a_tolerance():
    synthetic = torch.cat([TRAINING[:3], HOLDOUT[:1], TRAINING[3:5] + 1e-3])
    assert (exact := exact_copies(synthetic, TRAINING, HOLDOUT)).of_training == 3
    assert exact.of_holdout == 1
    near = exact_copies(synthetic, TRAINING, HOLDOUT, tolerance=0.01)
    assert (near.of_training, near.of_holdout) == (5, 1)
    assert "5 of 6 synthetic rows are copies within 0.01 of one of 300 training records" in str(near)
    assert exact_copies(torch.tensor([[0.0]]), torch.tensor([[-0.0]]), torch.tensor([[1.0]])).of_training == 1


def test_arrays_and_images_will_do():
    images = TRAINING.view(300, 1, 2, 2)
    assert exact_copies(images.numpy(), TRAINING, HOLDOUT).of_training == 300


@pytest.mark.parametrize(
    ("rows", "message"),
    [(torch.zeros(0, 2), "needs rows"), (torch.zeros(3), "needs rows"), (TRAINING * float("nan"), "finite")],
)
def test_what_cannot_be_attacked_is_named(rows, message):
    with pytest.raises(InputError, match=message):
        exact_copies(rows, TRAINING, HOLDOUT)
    with pytest.raises(InputError, match="more rows"):
        density_ratio(TRAINING[:2], REFERENCE, TRAINING, HOLDOUT)


def test_tables_without_the_extra_say_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "anonymeter.evaluators", None)
    for attack in (lambda: singling_out(1, 2, 3), lambda: linkability(1, 2, 3, (["a"], ["b"]))):
        with pytest.raises(PrivetError, match=r"pip install 'privet\[anonymeter\]'"):
            attack()


def test_tables_are_singled_out_and_linked_where_they_are_copies():
    pytest.importorskip("anonymeter", reason="anonymeter needs NumPy below 1.27: pip install 'privet[anonymeter]'")
    import pandas

    def table(rows: torch.Tensor) -> pandas.DataFrame:
        return pandas.DataFrame(rows.numpy(), columns=list("abcd"))

    training, holdout = table(TRAINING), table(HOLDOUT)
    copied, innocent = (
        singling_out(training, training, holdout, attacks=100),
        singling_out(training, table(INDEPENDENT), holdout, attacks=100),
    )
    assert copied.risk > 0.9 > 0.2 > innocent.risk
    linked = linkability(training, training, holdout, (["a", "b"], ["c", "d"]), attacks=100)
    assert linked.risk > 0.9
    assert "Linkability: risk" in str(linked)


def test_chance_is_what_a_random_division_of_the_records_gives_however_the_rows_depend_on_each_other():
    """A generator that saw neither side draws near the middle, where few records are closest to all: no alarm, but once in 20."""
    alarms, binomial = 0, 0
    for seed in range(60):
        training, holdout = (sample(100, 2 * seed + side) for side in (100, 101))
        rows = 0.2 * sample(300, 1000 + seed)
        found = closest_records(rows, training, holdout, torch.Generator().manual_seed(seed))
        assert found.closest < 40
        alarms += found.share not in found.by_chance
        binomial += abs(found.share - 0.5) > 1.96 * 0.5 / 300**0.5
    assert alarms <= 9  # Binomial(60, .05): more with probability .001
    assert binomial > 20  # what rows taken as independent would have said


def test_chance_is_that_of_every_division_where_there_are_few():
    """Three rows with a closest record each, of four: every division into two and two gives one of these rows, or two."""
    training, holdout = torch.tensor([[0.0], [1.0]]), torch.tensor([[2.0], [3.0]])
    found = closest_records(torch.tensor([[0.1], [1.1], [2.1]]), training, holdout, torch.Generator().manual_seed(0))
    assert found.share == pytest.approx(2 / 3)
    assert (found.by_chance.low, found.by_chance.high) == pytest.approx((1 / 3, 2 / 3))
    assert found.closest == pytest.approx(3)
