"""Sums over records: what one record can do to them."""

import pytest
import torch

from privet.clipping.bounded import clipped_sum, normalized_second_moment, symmetric
from privet.errors import InputError


def rows(count, *shape, scale=1.0, seed=0):
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed)) * scale


def test_a_clipped_sum_is_the_loop_over_records():
    records = rows(7, 3, 2, scale=2.0)
    expected = torch.zeros(3, 2, dtype=torch.float64)
    for record in records.double():
        expected += record / max(1.0, float(record.norm()) * (1 + 1e-5) / 1.5)
    found = clipped_sum(records, 1.5)
    assert torch.allclose(found.tensors["sum"], expected, atol=1e-6)
    assert (found.sensitivity, found.records, found.bad) == (1.5, 7, 0)


def test_a_second_moment_is_the_loop_over_records():
    records = rows(5, 4, 3)
    expected = torch.zeros(3, 3, dtype=torch.float64)
    for record in records.double():
        expected += record.mT @ record / record.norm() ** 2
    found = normalized_second_moment(records)
    assert torch.allclose(symmetric(found.tensors), expected, rtol=1e-4, atol=1e-6)
    assert found.sensitivity == 1.0
    assert torch.allclose(
        symmetric(normalized_second_moment(records[:, 0]).tensors),
        symmetric(normalized_second_moment(records[:, :1]).tensors),
    )


@pytest.mark.parametrize("size", [1e-40, 1e-30, 1e-20, 1.0, 1e18])
@pytest.mark.parametrize("statistic", [lambda r: clipped_sum(r, 2.0), normalized_second_moment])
def test_neighbours_differ_by_at_most_the_sensitivity(statistic, size):
    records = rows(6, 5)
    records[0] *= size
    whole, without = statistic(records), statistic(records[1:])
    moved = sum(float((whole.tensors[n] - without.tensors[n]).square().sum()) for n in whole.tensors) ** 0.5
    assert moved <= whole.sensitivity * (1 + 1e-9)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_bad_record_contributes_nothing_and_is_counted(value):
    records = rows(4, 5)
    records[2, 1] = value
    good = records[[0, 1, 3]]
    for statistic in (lambda r: clipped_sum(r, 2.0), normalized_second_moment):
        found, expected = statistic(records), statistic(good)
        assert found.bad == 1
        assert all(torch.allclose(found.tensors[n], expected.tensors[n]) for n in found.tensors)


def test_parts_add_up():
    records = rows(10, 5)
    joined = normalized_second_moment(records[:4]) + normalized_second_moment(records[4:])
    assert torch.allclose(joined.tensors["above"], normalized_second_moment(records).tensors["above"])


def test_a_bound_must_be_positive():
    with pytest.raises(InputError, match="positive"):
        clipped_sum(rows(2, 2), 0.0)
