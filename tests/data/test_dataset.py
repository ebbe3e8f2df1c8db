import copy
import hashlib
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from privet.data import Dataset, Split, as_float, load
from privet.errors import InputError


def images(count: int = 4) -> Split:
    return Split(torch.arange(count * 6, dtype=torch.uint8).reshape(count, 2, 3), torch.arange(count) % 2)


def test_pixels_become_floats_with_a_channel() -> None:
    x, y = images()[1]
    assert x.shape == (1, 2, 3)
    assert x.dtype == torch.float32
    assert torch.equal(x.flatten() * 255, torch.arange(6.0, 12.0))
    assert y == 1


def test_white_is_one_and_black_zero() -> None:
    assert as_float(torch.tensor([[[0, 255]]], dtype=torch.uint8)).tolist() == [[[[0.0, 1.0]]]]


def test_features_keep_shape_and_values() -> None:
    values = torch.randn(5, 3)
    assert torch.equal(as_float(values), values)


def test_item_batch_and_tensors_agree() -> None:
    split = images(6)
    x, y = split.tensors
    bx, by = split.batch([3, 1])
    assert torch.equal(bx, x[[3, 1]])
    assert torch.equal(by, y[[3, 1]])
    assert all(torch.equal(split[i][0], x[i]) for i in range(6))
    assert len(list(split)) == len(split) == 6
    with pytest.raises(IndexError):
        split[6]


def test_works_in_a_data_loader() -> None:
    batches = list(DataLoader(images(5), batch_size=2))
    assert [tuple(x.shape) for x, _ in batches] == [(2, 1, 2, 3), (2, 1, 2, 3), (1, 1, 2, 3)]


def test_it_can_be_pickled_and_copied_for_workers() -> None:
    dataset = Dataset("d", ("a", "b"), {"train": images()})
    for other in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        assert other.fingerprint == dataset.fingerprint


def test_storage_stays_uint8() -> None:
    split = images().select([2, 0])
    assert split.inputs.dtype == torch.uint8
    assert split.inputs[0, 0, 0] == 12


def test_digits_are_always_there() -> None:
    digits = load("digits")
    assert {name: len(split) for name, split in digits.splits.items()} == {"train": 1437, "test": 360}
    assert digits.shape == (1, 8, 8)
    assert len(digits) == 1797
    x, y = digits.train.tensors
    assert (float(x.min()), float(x.max())) == (0.0, 1.0)
    assert torch.bincount(y).min() > 100
    assert torch.bincount(digits.test.labels).min() > 20
    assert digits.fingerprint == "4bad9f26cb6a22d7e79736e3d5aaa1ea0d7c3ccb78ef3d542317fe760064f2d5"


def test_fingerprint_against_a_plain_computation() -> None:
    split = images(2)
    digest = hashlib.sha256(b"('a', 'b')")
    digest.update(b"('train', (2, 2, 3), 'torch.uint8')" + bytes(range(12)))
    digest.update(b"('train', (2,), 'torch.int64')" + np.array([0, 1]).tobytes())
    assert Dataset("any name", ("a", "b"), {"train": split}).fingerprint == digest.hexdigest()


def test_fingerprint_sees_every_change() -> None:
    split = images()
    base = Dataset("d", ("a", "b"), {"train": split})
    other = split.inputs.clone()
    other[3, 1, 2] += 1
    changed = [
        Dataset("d", ("a", "c"), {"train": split}),
        Dataset("d", ("a", "b"), {"test": split}),
        Dataset("d", ("a", "b"), {"train": Split(other, split.labels)}),
        Dataset("d", ("a", "b"), {"train": Split(split.inputs, 1 - split.labels)}),
        Dataset("d", ("a", "b"), {"train": Split(split.inputs.reshape(4, 3, 2), split.labels)}),
        Dataset("d", ("a", "b"), {"train": split.select([0, 1, 3, 2])}),
    ]
    prints = {base.fingerprint, *(dataset.fingerprint for dataset in changed)}
    assert len(prints) == 7
    assert Dataset("renamed", ("a", "b"), {"train": split}).fingerprint == base.fingerprint


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (torch.zeros(2, 3), torch.zeros(2, 1), "one-dimensional"),
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64), "inputs and labels do not match"),
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), "has no records"),
        (torch.zeros(2, 3), torch.tensor([0, -1]), "must not be negative"),
    ],
)
def test_a_split_refuses(inputs: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Split(inputs, labels)


def test_a_data_set_refuses() -> None:
    with pytest.raises(InputError, match="a label is out of range for 1 classes"):
        Dataset("d", ("a",), {"train": images()})
    with pytest.raises(InputError, match="no splits"):
        Dataset("d", ("a",), {})
    with pytest.raises(InputError, match="has no split 'test': it has train"):
        _ = Dataset("d", ("a", "b"), {"train": images()}).test
    with pytest.raises(InputError, match="different shapes"):
        Dataset("d", ("a", "b"), {"train": images(), "test": Split(torch.zeros(1, 2), torch.tensor([0]))})
