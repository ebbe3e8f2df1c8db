"""IDX, the format of MNIST: two zero bytes, a type, the number of dimensions, big-endian sizes, then the values."""

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from glob import escape
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from privet.data.dataset import TEN_DIGITS, Dataset, Split, check_labels
from privet.data.files import gunzipped
from privet.errors import InputError
from privet.io import kind_of, open_file

TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
CODES = {np.dtype(kind).newbyteorder("="): code for code, kind in TYPES.items()}
MAP_FROM_BYTES = 1 << 20  # below this a copy in memory is as quick as a map
MOST_DIMENSIONS = 8
SPLITS = {"train": ("train",), "test": ("t10k", "test")}


def read_idx(path: Path) -> NDArray[Any]:
    """The array in an IDX file, plain or gzipped, in native byte order.

    Large plain uint8 files are memory-mapped, copy on write. Raises InputError if the file is not IDX, is shorter or longer
    than its header says, or has a NaN or an infinite value.
    """
    with open_file(path) as file:
        opened = gunzipped(path, file)
        try:
            return _read(path, opened, opened is not file)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise InputError(f"{path} is a damaged or truncated gzip file: copy or download it again.") from None


def _read(path: Path, file: BinaryIO, zipped: bool) -> NDArray[Any]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or magic[3] == 0:
        raise InputError(
            f"{path} is not an IDX file (its first bytes differ): "
            "give an IDX file, or name its format, as in csv:PATH or folder:PATH."
        )
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise InputError(f"{path} is truncated within its IDX header: copy or download it again.")
    shape = struct.unpack(f">{magic[3]}I", sizes)
    kind = np.dtype(TYPES[magic[2]])
    expected = math.prod(shape) * kind.itemsize
    header = 4 + len(sizes)
    if len(shape) > MOST_DIMENSIONS:
        raise InputError(f"{path} has more than {MOST_DIMENSIONS} dimensions, the limit for IDX: give another file.")
    if expected == 0:
        raise InputError(f"{path} has no records according to its IDX header: give a file with records.")
    if not zipped:
        _check_size(path, path.stat().st_size - header, expected)
        if kind == np.uint8 and expected >= MAP_FROM_BYTES:
            return np.memmap(path, dtype=np.uint8, mode="c", offset=header, shape=shape)
    raw = _read_at_most(file, expected + 1)
    _check_size(path, len(raw), expected)
    values = np.frombuffer(raw, dtype=kind).reshape(shape)
    if kind.kind == "f" and not np.isfinite(values).all():
        record = int(np.argwhere(~np.isfinite(values))[0][0]) + 1
        raise InputError(f"{path}, record {record}: a value is NaN or infinite: fix or remove the record.")
    return values.astype(kind.newbyteorder("="), copy=False)


def _read_at_most(file: BinaryIO, size: int) -> bytearray:
    """Read piece by piece: a wrong header must not make us allocate too much memory."""
    raw = bytearray()
    while len(raw) < size and (piece := file.read(min(size - len(raw), 1 << 20))):
        raw += piece
    return raw


def _check_size(path: Path, found: int, expected: int) -> None:
    if found < expected:
        raise InputError(f"{path} is truncated (it has fewer values than its header says): copy or download it again.")
    if found > expected:
        raise InputError(
            f"{path} has more bytes than its header says: it is damaged or not IDX; copy or download it again."
        )


def write_idx(path: Path, values: NDArray[Any]) -> None:
    """Write an array as an IDX file. The bytes depend only on shape, type and values."""
    try:
        code = CODES[values.dtype.newbyteorder("=")]
    except KeyError:
        raise InputError(
            f"IDX cannot store {values.dtype}: convert the array to {', '.join(map(str, CODES))}."
        ) from None
    with path.open("wb") as file:
        file.write(struct.pack(f">HBB{values.ndim}I", 0, code, values.ndim, *values.shape))
        file.write(np.ascontiguousarray(values, dtype=TYPES[code]).tobytes())


def read_idx_split(images: Path, labels: Path, classes: Sequence[str]) -> Split:
    """Images and labels from two IDX files that belong together."""
    inputs, targets = read_idx(images), read_idx(labels)
    if targets.ndim != 1 or targets.dtype.kind not in "ui":
        raise InputError(f"{labels} does not contain labels (one integer for each record): name the file of labels.")
    if inputs.ndim < 2:
        raise InputError(f"{images} does not contain records (at least two dimensions): name the file of images.")
    if len(inputs) != len(targets):
        raise InputError(
            f"{images} does not have as many records as {labels} has labels: give two files that belong together."
        )
    return Split(torch.from_numpy(inputs), check_labels(labels, targets, classes))


def read_idx_dataset(path: Path, classes: Sequence[str] = TEN_DIGITS) -> Dataset:
    """A folder with MNIST's file names (``train-images-idx3-ubyte`` and so on, plain or ``.gz``), or one file of images.

    A file of images needs its file of labels beside it, with ``labels`` instead of ``images`` in the name; it becomes the
    split ``train``. The class names are the ten digits unless you give others; they are never taken from the labels.
    """
    if kind_of(path) == "file":
        images = path
        open_file(path).close()
        if "images" not in path.name:
            raise InputError(
                f"{path} does not have 'images' in its name, so its labels cannot be found: name the folder."
            )
        return Dataset(path.name, tuple(classes), {"train": read_idx_split(images, _labels_of(images), classes)})
    splits = {}
    for split, stems in SPLITS.items():
        for stem in stems:
            found = sorted(p for p in path.glob(f"{stem}-images*") if p.suffix != ".part")
            if found and split not in splits:
                splits[split] = read_idx_split(found[0], _labels_of(found[0]), classes)
    if not splits:
        raise InputError(f"{path} has no train-images or t10k-images file: name the folder with the IDX files.")
    return Dataset(path.resolve().name, tuple(classes), splits)


def _labels_of(images: Path) -> Path:
    prefix, _, _ = images.name.rpartition("images")
    found = sorted(images.parent.glob(f"{escape(prefix)}labels*"))
    if not found:
        raise InputError(f"{images} has no labels beside it: put {prefix}labels-idx1-ubyte into the same folder.")
    return found[0]
