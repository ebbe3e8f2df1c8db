import pickle
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privet.data import load
from privet.data.cifar import CIFAR10_CLASSES, read_batch
from privet.errors import InputError


def batch(count: int = 2, **more: Any) -> dict[Any, Any]:
    pixels = np.arange(count * 3072, dtype=np.uint32).astype(np.uint8).reshape(count, 3072)
    return {b"data": pixels, b"labels": [n % 10 for n in range(count)], **more}


def python2_batch(pixels: bytes, labels: tuple[int, int]) -> bytes:
    """Two records, byte for byte as Python 2 and the numpy of 2009 pickled them."""
    return (
        b"\x80\x02}q\x00(U\x04datacnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
        b"(K\x01K\x02M\x00\x0c\x86cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<I", len(pixels))
        + pixels
        + b"tbU\x06labels](K"
        + bytes([labels[0]])
        + b"K"
        + bytes([labels[1]])
        + b"eu."
    )


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_every_pickle_protocol(tmp_path: Path, protocol: int) -> None:
    (tmp_path / "batch").write_bytes(pickle.dumps(batch(), protocol=protocol))
    dataset = load(f"cifar:{tmp_path}/batch")
    assert dataset.shape == (3, 32, 32)
    np.testing.assert_array_equal(dataset.train.inputs.numpy().reshape(2, 3072), batch()[b"data"])
    assert dataset.train.labels.tolist() == [0, 1]
    assert dataset.classes == CIFAR10_CLASSES


def test_the_authors_own_form(tmp_path: Path) -> None:
    pixels = bytes(range(256)) * 24
    (tmp_path / "batch").write_bytes(python2_batch(pixels, (3, 7)))
    split = load(f"cifar:{tmp_path}/batch").train
    assert split.inputs.numpy().tobytes() == pixels
    assert split.labels.tolist() == [3, 7]


def test_a_folder_of_cifar10(tmp_path: Path) -> None:
    for n in range(1, 6):
        (tmp_path / f"data_batch_{n}").write_bytes(pickle.dumps(batch(n)))
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch(3)))
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"class %d" % n for n in range(10)]}))
    dataset = load(f"cifar:{tmp_path}")
    assert {name: len(split) for name, split in dataset.splits.items()} == {"train": 15, "test": 3}
    assert dataset.classes[9] == "class 9"
    (tmp_path / "data_batch_4").unlink()
    with pytest.raises(InputError, match="data_batch_4 does not exist"):
        load(f"cifar:{tmp_path}")


def test_a_folder_of_cifar100(tmp_path: Path) -> None:
    content = batch(2)
    content[b"fine_labels"] = [99, 0]
    del content[b"labels"]
    (tmp_path / "train").write_bytes(pickle.dumps(content))
    (tmp_path / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"n{n}" for n in range(100)]}))
    dataset = load(f"cifar:{tmp_path}")
    assert dataset.train.labels.tolist() == [99, 0]
    assert len(dataset.classes) == 100


class Attack:
    def __init__(self, target: Any, *arguments: Any) -> None:
        self.call = (target, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("target", [exec, open, getattr, __import__, np.load, pickle.loads])
def test_nothing_in_a_pickle_is_run(tmp_path: Path, target: Any, protocol: int) -> None:
    proof = tmp_path / "proof"
    attack = Attack(exec, f"open({str(proof)!r}, 'w')") if target is exec else Attack(target, str(proof))
    (tmp_path / "batch").write_bytes(pickle.dumps(batch(extra=attack), protocol=protocol))
    with pytest.raises(InputError, match=r"asks to run .*, which no CIFAR batch needs"):
        read_batch(tmp_path / "batch")
    assert not proof.exists()


@given(st.binary(min_size=1, max_size=80))
def test_any_bytes_give_a_dictionary_or_an_input_error(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "batch"
    path.write_bytes(raw)
    with suppress(InputError):
        assert isinstance(read_batch(path), dict)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "no dictionary inside"),
        ({"names": 1}, "has no 'data' and 'labels'"),
        ({b"data": np.zeros((2, 5), dtype=np.uint8), b"labels": [0, 1]}, "3072 values for each label"),
        ({b"data": np.zeros((2, 3072), dtype=np.uint8), b"labels": [0]}, "3072 values for each label"),
        ({b"data": np.zeros((2, 3072)), b"labels": [0, 1]}, "of the wrong type or size"),
        ({b"data": np.zeros((1, 3072), dtype=np.uint8), b"labels": ["x"]}, "of the wrong type or size"),
        ({b"data": np.zeros((1, 3072), dtype=np.uint8), b"labels": [10]}, "record 1: the label is out of range"),
    ],
)
def test_refuses(tmp_path: Path, content: Any, message: str) -> None:
    (tmp_path / "batch").write_bytes(pickle.dumps(content))
    with pytest.raises(InputError, match=message):
        load(f"cifar:{tmp_path}/batch")
