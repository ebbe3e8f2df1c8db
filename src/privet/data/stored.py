"""The stored form: every catalogued data set lies in the cache as IDX files, whatever it came from."""

import gzip
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from privet.data.archive import is_archive, unpack
from privet.data.cifar import read_cifar
from privet.data.download import UnavailableError
from privet.data.files import open_file, sha256
from privet.data.idx import write_idx
from privet.data.sprites import read_sprite, read_sprite_labels

DEPTH = 4  # how far below a folder its files are looked for: deep enough for npm's and torchvision's layouts


@dataclass(frozen=True)
class StoredFile:
    """One file of the cache and the SHA-256 that it must have."""

    name: str
    sha256: str


Gather = Callable[[Path, Path, Sequence[StoredFile]], None]
"""Brings what a source's folder holds into the stored form: ``gather(folder, staging, files)``.

Guaranteed on return: every file is in ``staging`` and has its checksum. Otherwise UnavailableError, or InputError for a
file that cannot be read.
"""


def gather_idx(folder: Path, staging: Path, files: Sequence[StoredFile]) -> None:
    """From IDX files, plain or gzipped, also under torchvision's layout or with ``.idx3`` for ``-idx3``."""
    for file in files:
        mismatch: Path | None = None
        for found in _find(folder, _spellings(file.name)):
            _copy(found, staging / file.name)
            if sha256(staging / file.name) == file.sha256:
                break
            mismatch = mismatch or found
        else:
            if mismatch:
                raise UnavailableError(f"{mismatch} does not have the SHA-256 of {file.name} ({file.sha256})")
            raise UnavailableError(f"{folder} does not hold {file.name} or {file.name}.gz")


def gather_cifar10(folder: Path, staging: Path, files: Sequence[StoredFile]) -> None:
    """From the stored form, PNG sprites, or the Python batches, also as the archive that the authors publish."""
    if next(_find(folder, [files[0].name, f"{files[0].name}.gz"]), None):
        gather_idx(folder, staging, files)
        return
    if sprite := next(_find(folder, ["data_batch_1.png"]), None):
        _convert_sprites(sprite.parent, staging)
    elif batch := next(_find(folder, ["data_batch_1"]), None):
        _convert_batches(batch.parent, staging)
    elif (archive := next(_find(folder, ["cifar-10-python.tar.gz"]), None)) and is_archive(archive):
        unpacked = unpack(archive, staging / "batches")
        if not (batch := next(_find(unpacked, ["data_batch_1"]), None)):
            raise UnavailableError(f"{archive} does not hold data_batch_1")
        _convert_batches(batch.parent, staging)
    else:
        raise UnavailableError(f"{folder} does not hold data_batch_1, data_batch_1.png or cifar-10-python.tar.gz")
    for file in files:
        if not (staging / file.name).exists() or sha256(staging / file.name) != file.sha256:
            raise UnavailableError(
                f"{folder} does not hold the true data set: {file.name} made of it has another SHA-256"
            )


def _convert_sprites(folder: Path, staging: Path) -> None:
    parts = {
        "train": ([f"data_batch_{n}.png" for n in range(1, 6)], "train_lables.json"),
        "test": (["test_batch.png"], "test_lables.json"),
    }
    for split, (sprites, labels) in parts.items():
        images = np.concatenate([read_sprite(folder / name, 32, 32) for name in sprites])
        write_idx(staging / f"{split}-images-idx4-ubyte", images)
        write_idx(staging / f"{split}-labels-idx1-ubyte", read_sprite_labels(folder / labels))


def _convert_batches(folder: Path, staging: Path) -> None:
    for split, part in read_cifar(folder).splits.items():
        write_idx(staging / f"{split}-images-idx4-ubyte", part.inputs.numpy())
        write_idx(staging / f"{split}-labels-idx1-ubyte", part.labels.numpy().astype(np.uint8))


def _spellings(name: str) -> list[str]:
    dotted = name.replace("-idx", ".idx")
    return [name, f"{name}.gz", dotted, f"{dotted}.gz"]


def _find(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    for depth in range(DEPTH + 1):
        for name in names:
            yield from sorted(path for path in folder.glob("*/" * depth + name) if path.is_file())


def _copy(source: Path, target: Path) -> None:
    with open_file(source) as file, target.open("wb") as copy:
        zipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            shutil.copyfileobj(gzip.GzipFile(fileobj=file) if zipped else file, copy, 1 << 20)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise UnavailableError(f"{source} is a damaged or truncated gzip file") from None
