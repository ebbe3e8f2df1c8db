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
    assert leaking.interval.low > 0.9
    assert leaking.to_training < leaking.to_holdout
    assert "95 % interval" in str(leaking)
    innocent = closest_records(INDEPENDENT, TRAINING, HOLDOUT, generator, level=0.999)
    assert 0.5 in innocent.interval
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
    assert "5 of 6 synthetic rows are copies within 0.01" in str(near)
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
