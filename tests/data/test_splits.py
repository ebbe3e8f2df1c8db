import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privet.data import Dataset, Split, divide, set_aside
from privet.errors import InputError


def numbered(count: int) -> Dataset:
    split = Split(torch.arange(float(count)).reshape(-1, 1), torch.zeros(count, dtype=torch.int64))
    return Dataset("numbered", ("only",), {"train": split, "test": split.select([0])})


@given(st.integers(8, 200), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 2**31))
def test_every_record_is_in_exactly_one_part(count: int, weights: list[int], seed: int) -> None:
    total = sum(weights)
    parts = {f"part{n}": weight / total for n, weight in enumerate(weights)}
    if count * min(weights) < total:  # the smallest part might be empty
        return
    divided = divide(numbered(count), "train", parts, seed)
    assert list(divided.splits) == [*parts, "test"]
    records = torch.cat([divided[name].inputs.flatten() for name in parts])
    assert sorted(records.tolist()) == list(range(count))
    for name, fraction in parts.items():
        assert abs(len(divided[name]) - fraction * count) <= 1


def test_quarters_are_equal_and_follow_the_seed() -> None:
    parts = dict.fromkeys(["target_in", "target_out", "shadow_in", "shadow_out"], 0.25)
    first, again, other = (divide(numbered(100), "train", parts, seed) for seed in (7, 7, 8))
    assert [len(first[name]) for name in parts] == [25, 25, 25, 25]
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_a_part_may_keep_the_name_of_the_whole() -> None:
    divided = divide(numbered(50), "train", {"train": 0.9, "tune": 0.1}, torch.Generator().manual_seed(0))
    assert {name: len(split) for name, split in divided.splits.items()} == {"train": 45, "tune": 5, "test": 1}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"a": 0.5, "b": 0.6}, "do not sum to 1"),
        ({"a": 1.5, "b": -0.5}, "do not sum to 1"),
        ({"a": float("nan")}, "do not sum to 1"),
        ({}, "do not sum to 1"),
        ({"a": 0.5, "test": 0.5}, "already has a split 'test'"),
        ({"a": 0.999, "b": 0.001}, "part 'b' of 10 records would be empty"),
    ],
)
def test_refuses(parts: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        divide(numbered(10), "train", parts, 0)


def test_records_that_are_set_aside_leave_the_test_part_and_lose_their_labels():
    inputs = torch.arange(40, dtype=torch.float32).view(20, 2)
    split = Split(inputs, torch.arange(20) % 3)
    dataset = Dataset("made", ("a", "b", "c"), {"train": split, "test": split})
    divided = set_aside(dataset, 8)
    assert divided["public"].labels.tolist() == [0] * 8
    rows = [tuple(row) for part in ("public", "test") for row in divided[part].inputs.tolist()]
    assert sorted(rows) == sorted(tuple(row) for row in inputs.tolist())
    again = set_aside(Dataset("made", ("a", "b", "c"), {"train": split, "test": Split(-inputs, split.labels)}), 8)
    assert torch.equal(again["public"].inputs, -divided["public"].inputs)
    assert set_aside(dataset, 0) is dataset
    for count in (-1, 20, 21):
        with pytest.raises(InputError, match="leave at least one to test on"):
            set_aside(dataset, count)
