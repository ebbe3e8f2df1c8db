"""CIFAR-10 comes as sprites or as batches, and is stored the same either way."""

import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from privet.data.files import sha256
from privet.data.idx import read_idx, write_idx
from privet.data.sources import StoredFile, UnavailableError, gather_cifar10
from privet.errors import InputError

NAMES = ("train-images-idx4-ubyte", "train-labels-idx1-ubyte", "test-images-idx4-ubyte", "test-labels-idx1-ubyte")
PER_BATCH = 3


@pytest.fixture
def pictures() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (6 * PER_BATCH, 3, 32, 32), dtype=np.uint8)


@pytest.fixture
def stored(pictures: NDArray[np.uint8], tmp_path: Path) -> tuple[StoredFile, ...]:
    """The files as they must come out, written without the code under test's conversions."""
    folder = tmp_path / "stored"
    folder.mkdir()
    labels = np.arange(6 * PER_BATCH, dtype=np.uint8) % 10
    cut = 5 * PER_BATCH
    for name, values in zip(NAMES, (pictures[:cut], labels[:cut], pictures[cut:], labels[cut:]), strict=True):
        write_idx(folder / name, values)
    return tuple(StoredFile(name, sha256(folder / name)) for name in NAMES)


def write_sprites(folder: Path, pictures: NDArray[np.uint8]) -> None:
    folder.mkdir(parents=True)
    for n, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        rows = [
            [tuple(int(p[c, y, x]) for c in range(3)) for y in range(32) for x in range(32)]
            for p in pictures[n * PER_BATCH : (n + 1) * PER_BATCH]
        ]
        Image.fromarray(np.array(rows, dtype=np.uint8)).save(folder / f"{name}.png")
    labels = [n % 10 for n in range(len(pictures))]
    (folder / "train_lables.json").write_text(json.dumps(labels[: 5 * PER_BATCH]))
    (folder / "test_lables.json").write_text(json.dumps(labels[5 * PER_BATCH :]))


def write_batches(folder: Path, pictures: NDArray[np.uint8]) -> None:
    folder.mkdir(parents=True)
    for n, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        part = slice(n * PER_BATCH, (n + 1) * PER_BATCH)
        labels = [k % 10 for k in range(len(pictures))][part]
        (folder / name).write_bytes(pickle.dumps({b"data": pictures[part].reshape(-1, 3072), b"labels": labels}))


@pytest.mark.parametrize("form", ["sprites", "batches", "archive", "stored"])
def test_every_form_is_stored_the_same(pictures: Any, stored: Any, tmp_path: Path, form: str) -> None:
    given, staging = tmp_path / "given", tmp_path / "staging"
    staging.mkdir()
    if form == "sprites":
        write_sprites(given / "package", pictures)
    elif form == "batches":
        write_batches(given / "cifar-10-batches-py", pictures)
    elif form == "archive":
        write_batches(tmp_path / "made" / "cifar-10-batches-py", pictures)
        given.mkdir()
        with tarfile.open(given / "cifar-10-python.tar.gz", "w:gz") as tar:
            tar.add(tmp_path / "made" / "cifar-10-batches-py", "cifar-10-batches-py")
    else:
        given = tmp_path / "stored"
    gather_cifar10(given, staging, stored)
    for name in NAMES:
        assert (staging / name).read_bytes() == (tmp_path / "stored" / name).read_bytes()
    np.testing.assert_array_equal(read_idx(staging / NAMES[0]), pictures[: 5 * PER_BATCH])


def test_other_pictures_are_refused(pictures: Any, stored: Any, tmp_path: Path) -> None:
    (tmp_path / "staging").mkdir()
    write_sprites(tmp_path / "given", pictures[:, ::-1])  # blue, green, red
    with pytest.raises(
        UnavailableError, match=f"does not contain the true data set: {NAMES[0]} converted from it has another SHA-256"
    ):
        gather_cifar10(tmp_path / "given", tmp_path / "staging", stored)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_2.png", b"no picture", "data_batch_2.png is not a readable picture"),
        ("test_lables.json", b"{", "test_lables.json is not a JSON list of labels"),
        ("test_lables.json", b"[300]", "test_lables.json is not a JSON list of labels"),
        ("test_lables.json", b"\xff", "not UTF-8"),
    ],
)
def test_damaged_sprites(pictures: Any, stored: Any, tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / "staging").mkdir()
    write_sprites(tmp_path / "given", pictures)
    (tmp_path / "given" / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        gather_cifar10(tmp_path / "given", tmp_path / "staging", stored)


def test_a_folder_without_any_form(stored: Any, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    with pytest.raises(
        UnavailableError, match=r"does not contain data_batch_1, data_batch_1.png or cifar-10-python.tar.gz"
    ):
        gather_cifar10(tmp_path / "given", tmp_path, stored)
