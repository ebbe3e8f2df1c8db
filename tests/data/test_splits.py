from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from privet.data import Dataset, Split, divide, set_aside, with_test_records
from privet.errors import InputError


def numbered(count: int) -> Dataset:
    split = Split(torch.arange(float(count)).reshape(-1, 1), torch.zeros(count, dtype=torch.int64))
    return Dataset("numbered", ("only",), {"train": split, "test": split.select([0])})


@given(st.integers(60, 300), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 2**31))
def test_every_record_is_in_exactly_one_part(count: int, weights: list[int], seed: int) -> None:
    total = sum(weights)
    parts = {f"part{n}": weight / total for n, weight in enumerate(weights)}
    try:
        divided = divide(numbered(count), "train", parts, seed)
    except InputError:  # a small part happened to be empty
        return
    assert list(divided.splits) == [*parts, "test"]
    records = torch.cat([divided[name].inputs.flatten() for name in parts])
    assert sorted(records.tolist()) == list(range(count))


def test_sizes_are_binomial() -> None:
    """Chi-squared over 60 seeds: a false alarm once in a thousand versions of the hash."""
    parts = {"a": 0.5, "b": 0.3, "c": 0.2}
    squares = 0.0
    for seed in range(60):
        divided = divide(numbered(2000), "train", parts, seed)
        squares += sum((len(divided[n]) - 2000 * f) ** 2 / (2000 * f) for n, f in parts.items())
    assert chi2.sf(squares, 120) > 1e-3
    assert chi2.cdf(squares, 120) > 1e-3  # and they vary: exact sizes would tell of the other records


def test_quarters_follow_the_seed() -> None:
    parts = dict.fromkeys(["target_in", "target_out", "shadow_in", "shadow_out"], 0.25)
    first, again, other = (divide(numbered(100), "train", parts, seed) for seed in (7, 7, 8))
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_a_part_may_keep_the_name_of_the_whole() -> None:
    divided = divide(numbered(50), "train", {"train": 0.9, "tune": 0.1}, torch.Generator().manual_seed(0))
    assert set(divided.splits) == {"train", "tune", "test"}
    assert len(divided) == 51


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16, torch.int64])
def test_one_more_record_moves_no_other(dtype: torch.dtype) -> None:
    """Neighboring files stay neighbors, wherever the record stands. `randperm` moved 955 of 3,000."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(256, (3001, 5), generator=generator).to(dtype)
    labels = torch.randint(3, (3001,), generator=generator)
    kept = torch.arange(3001) != 1234
    more, fewer = (
        with_test_records(Dataset("file", ("a", "b", "c"), {"train": Split(inputs[k], labels[k])}), "file")
        for k in (torch.ones(3001, dtype=torch.bool), kept)
    )
    rows = [Counter(_rows(each[part])) for part in ("train", "test") for each in (more, fewer)]
    differences = (rows[0] - rows[1]) + (rows[1] - rows[0]), (rows[2] - rows[3]) + (rows[3] - rows[2])
    assert sum(differences[0].values()) + sum(differences[1].values()) == 1
    without = [_rows(more[part]) for part in ("train", "test")]
    for part in without:
        with suppress(ValueError):
            part.remove((*inputs[1234].tolist(), int(labels[1234])))
    assert without == [_rows(fewer[part]) for part in ("train", "test")]  # in the order of the file


def _rows(split: Split) -> list[tuple[float, ...]]:
    return [(*row, label) for row, label in zip(split.inputs.tolist(), split.labels.tolist(), strict=True)]


def test_copies_stay_together_and_labels_are_part_of_the_record() -> None:
    inputs = torch.zeros(400, 2)
    labels = torch.arange(400) % 40
    divided = divide(
        Dataset("copies", tuple(map(str, range(40))), {"train": Split(inputs, labels)}),
        "train",
        {"a": 0.5, "b": 0.5},
        0,
    )
    one, other = (set(divided[name].labels.tolist()) for name in "ab")
    assert one | other == set(range(40)) and not one & other


@pytest.mark.parametrize(
    "keys",
    [
        [f"user {n % 30}" for n in range(300)],
        [b"user %d" % (n % 30) for n in range(300)],
        torch.arange(300) % 30,
        np.arange(300) % 30,
    ],
)
def test_the_records_of_a_user_stay_together(keys: object) -> None:
    divided = divide(numbered(300), "train", {"a": 0.5, "b": 0.5}, 0, keys=keys)  # type: ignore[arg-type]
    users = [{int(x) % 30 for x in divided[name].inputs.flatten()} for name in "ab"]
    assert users[0] | users[1] == set(range(30)) and not users[0] & users[1]
    assert all(divided[name].unit == "user" and divided[name].units == len(users[n]) for n, name in enumerate("ab"))
    few = divide(numbered(60), "train", {"a": 0.5, "b": 0.5}, 0, keys=keys[:60])  # type: ignore[index]
    assert set(few["a"].users.tolist()) <= set(divided["a"].users.tolist())  # type: ignore[union-attr]


def test_a_key_that_is_missing_is_refused() -> None:
    with pytest.raises(InputError, match="no user"):
        divide(numbered(300), "train", {"a": 0.5, "b": 0.5}, 0, keys=[*range(299), None])  # type: ignore[list-item]


def test_one_key_for_each_record() -> None:
    with pytest.raises(InputError, match="more or fewer user keys than records"):
        divide(numbered(300), "train", {"a": 0.5, "b": 0.5}, 0, keys=["a", "b"])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"a": 0.5, "b": 0.6}, "do not sum to 1"),
        ({"a": 1.5, "b": -0.5}, "do not sum to 1"),
        ({"a": float("nan")}, "do not sum to 1"),
        ({}, "do not sum to 1"),
        ({"a": 0.5, "test": 0.5}, "already has a split 'test'"),
        ({"a": 1 - 1e-9, "b": 1e-9}, "part 'b' of numbered would be empty"),
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
        with pytest.raises(InputError, match="leave at least one for testing"):
            set_aside(dataset, count)
