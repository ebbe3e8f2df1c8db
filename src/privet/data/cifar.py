"""CIFAR-10 and CIFAR-100: Python batches, whose pickles are read without running any code, and PNG sprites."""

from __future__ import annotations

import json
import pickle
import pickletools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from privet.data.dataset import Dataset, Split, check_labels
from privet.errors import InputError
from privet.io import kind_of, open_file, read_text

PIXELS = 3 * 32 * 32
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SPLITS = {"train": tuple(f"data_batch_{n}" for n in range(1, 6)), "test": ("test_batch",)}
SPLITS_100 = {"train": ("train",), "test": ("test",)}


class _DType:
    """Replaces ``numpy.dtype`` while unpickling: it keeps the name and runs nothing."""

    def __init__(self, name: Any, *rest: Any) -> None:
        self.name = name.decode("ascii") if isinstance(name, bytes) else str(name)

    def __setstate__(self, state: Any) -> None:
        pass


class _Array:
    """Replaces ``numpy.ndarray`` while unpickling: it keeps shape, type and bytes, and runs nothing."""

    shape: Any = None
    kind: Any = None
    raw: Any = None

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.kind, _, self.raw = state

    def pixels(self) -> NDArray[np.uint8]:
        if not isinstance(self.kind, _DType) or self.kind.name not in ("u1", "|u1", "uint8"):
            raise ValueError("not an array of bytes")
        if not isinstance(self.raw, bytes | bytearray):
            raise ValueError("no bytes")
        return np.frombuffer(bytearray(self.raw), dtype=np.uint8).reshape(self.shape)


def _from_buffer(raw: Any, kind: Any, shape: Any, order: Any) -> _Array:
    array = _Array()
    array.shape, array.kind, array.raw = shape, kind, raw
    return array


def _encode(text: Any, encoding: Any) -> bytes:
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("_codecs.encode")
    return str(text).encode("latin1")


def _make_array(*_: Any) -> _Array:
    return _Array()


# Every name in a batch written by any version of numpy, and its harmless replacement.
ALLOWED: Mapping[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _DType,
    ("numpy.core.multiarray", "_reconstruct"): _make_array,
    ("numpy._core.multiarray", "_reconstruct"): _make_array,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy._core.numeric", "_frombuffer"): _from_buffer,
    ("_codecs", "encode"): _encode,
}


class _ForbiddenError(Exception):
    """The pickle uses a name that no batch needs."""


class _Unpickler(pickle.Unpickler):
    """Knows only the names in ``ALLOWED``; all other names, and thus all calls of foreign code, are refused."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise _ForbiddenError(f"{module}.{name}") from None


def read_batch(path: Path) -> dict[str, Any]:
    """The dictionary in one batch file. Raises InputError if the file is not a pickle, or would run code."""
    with open_file(path) as file:
        try:
            _check_memo(file)
            content = _Unpickler(file, encoding="bytes").load()
        except _ForbiddenError as name:
            raise InputError(
                f"{path} asks to run {name}, which no CIFAR batch needs: "
                "it may be an attack; get the file from its authors."
            ) from None
        except Exception:  # a damaged pickle raises nearly anything
            raise InputError(f"{path} is not a CIFAR batch, or it is truncated: copy or download it again.") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a CIFAR batch (no dictionary inside): give data_batch_1 or the like.")
    return {_text(key): value for key, value in content.items() if isinstance(key, bytes | str)}


def _check_memo(file: BinaryIO) -> None:
    """Refuse places in the pickle's memo beyond those that the file can fill: Python would reserve memory for all of them."""
    for places, (operation, argument, _) in enumerate(pickletools.genops(file)):
        if "PUT" in operation.name and isinstance(argument, int) and not 0 <= argument <= places:
            raise pickle.UnpicklingError("a place in the memo that is too large")
    file.seek(0)


def _text(name: object) -> str:
    """Batches written by Python 2 have bytes instead of text."""
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def _records(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    batch = read_batch(path)
    labels = batch.get("labels", batch.get("fine_labels"))
    if not isinstance(batch.get("data"), _Array) or not isinstance(labels, list):
        raise InputError(f"{path} has no 'data' and 'labels': give a CIFAR batch.")
    try:
        pixels = batch["data"].pixels()
        targets = np.array(labels, dtype=np.int64)
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError):
        raise InputError(f"{path} has data or labels of the wrong type or size: copy or download it again.") from None
    if pixels.ndim != 2 or pixels.shape[1] != PIXELS or len(pixels) != len(targets) or len(pixels) == 0:
        raise InputError(f"{path} does not have {PIXELS} values for each label: copy or download it again.")
    return pixels.reshape(-1, 3, 32, 32), targets


def _class_names(folder: Path) -> tuple[str, ...]:
    for name, key in (("batches.meta", "label_names"), ("meta", "fine_label_names")):
        if (folder / name).is_file():
            names = read_batch(folder / name).get(key)
            if not isinstance(names, list) or not all(isinstance(n, bytes | str) for n in names):
                raise InputError(f"{folder / name} has no {key!r}: copy or download it again.")
            return tuple(map(_text, names))
    return CIFAR10_CLASSES


def read_cifar(path: Path) -> Dataset:
    """A folder of CIFAR-10 (``data_batch_1`` ... ``test_batch``) or CIFAR-100 (``train``, ``test``), or one batch file.

    The class names come from ``batches.meta`` or ``meta`` beside the batches; otherwise they are those of CIFAR-10. Raises
    InputError if a batch is missing, because an incomplete data set would not be noticed.
    """
    if kind_of(path) == "file":
        classes = _class_names(path.parent)
        return Dataset(path.name, classes, {"train": _read_split([path], classes)})
    classes = _class_names(path)
    layout = SPLITS_100 if (path / "train").is_file() else SPLITS
    splits = {}
    for split, names in layout.items():
        if any((path / name).exists() for name in names):
            splits[split] = _read_split([path / name for name in names], classes)
    if not splits:
        raise InputError(f"{path} has no data_batch_1 or test_batch: name the folder with the CIFAR Python batches.")
    return Dataset(path.resolve().name, classes, splits)


def _read_split(files: list[Path], classes: tuple[str, ...]) -> Split:
    inputs, labels = [], []
    for file in files:
        pixels, targets = _records(file)
        inputs.append(pixels)
        labels.append(check_labels(file, targets, classes))
    return Split(torch.from_numpy(np.concatenate(inputs)), torch.cat(labels))


def read_sprite(path: Path, height: int, width: int) -> NDArray[np.uint8]:
    """The images ``[N, 3, height, width]`` of one sprite: a picture of which each row holds the pixels of one image."""
    with open_file(path) as file:
        try:
            pixels = np.asarray(Image.open(file, formats=("PNG",)).convert("RGB"))
        except Exception:  # a damaged picture raises nearly anything
            raise InputError(f"{path} is not a readable picture: copy or download it again.") from None
    if pixels.shape[1] != height * width:
        raise InputError(
            f"{path} is {pixels.shape[1]} pixels wide, not {height * width}: it is not the sprite expected."
        )
    return np.ascontiguousarray(pixels.reshape(-1, height, width, 3).transpose(0, 3, 1, 2))


def read_sprite_labels(path: Path) -> NDArray[np.uint8]:
    """The labels from a JSON list of whole numbers from 0 to 255."""
    try:
        labels: Any = json.loads(read_text(path))
        return np.array(labels, dtype=np.uint8).reshape(-1)
    except (ValueError, OverflowError, TypeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not a JSON list of labels: copy or download it again.") from None
