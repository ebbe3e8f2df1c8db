"""Images: a folder with one subfolder per class, and SVHN's MATLAB files.

The names of the class folders are public. The name of a file may be the name of a person, so messages count files instead.
"""

from __future__ import annotations

import math
import os
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from privet.data.dataset import TEN_DIGITS, Dataset, Split
from privet.data.files import UNPACKED_LIMIT, too_large
from privet.errors import InputError
from privet.io import kind_of, list_folder, open_file

GRAY = {"1", "L"}
COLOR = {"RGB", "RGBA", "P", "LA", "PA", "CMYK", "YCbCr"}
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""Other formats are not read: for some of them Pillow runs other programs."""


@dataclass(frozen=True)
class _Image:
    """One file; messages name it by its place in the order of names."""

    file: Path
    label: int
    place: str

    def __str__(self) -> str:
        return f"{self.place} (in the order of names)"


def read_folder(path: Path) -> Dataset:
    """``PATH/CLASS/IMAGE``, or ``PATH/train/CLASS/IMAGE`` with ``PATH/test/CLASS/IMAGE``.

    Classes are the names of the folders of ``train`` in sorted order. All images must have the same size. They stay uint8:
    ``[N, H, W]`` if all are gray, else ``[N, 3, H, W]`` without transparency.
    """
    parts = {split: path / split for split in ("train", "test") if (path / split).is_dir()}
    if "train" not in parts:
        parts = {"train": path}
    classes = _class_names(parts["train"])
    found = {split: _images(part, classes) for split, part in parts.items()}
    pictures: dict[str, list[NDArray[Any]]] = {split: [] for split in found}
    for split, images in found.items():
        for image in images:
            pictures[split].append(_read(image))
            if pictures[split][-1].shape[:2] != pictures["train"][0].shape[:2]:
                raise InputError(f"{image} does not have the size of the first image: resize all images to one size.")
    gray = all(picture.ndim == 2 for part in pictures.values() for picture in part)
    splits = {
        split: Split(
            torch.from_numpy(np.stack([picture if gray else _color(picture) for picture in pictures[split]])),
            torch.tensor([image.label for image in images], dtype=torch.int64),
        )
        for split, images in found.items()
    }
    return Dataset(path.resolve().name, classes, splits)


def _class_names(folder: Path) -> tuple[str, ...]:
    names = tuple(child.name for child in list_folder(folder) if child.is_dir())
    if not names:
        raise InputError(f"{folder} has no class folders: put the images of each class into a folder of its name.")
    return names


def _images(folder: Path, classes: tuple[str, ...]) -> list[_Image]:
    images: list[_Image] = []
    for number, child in enumerate(list_folder(folder), 1):
        if not child.is_dir():
            raise InputError(
                f"{folder}: there is a file beside the class folders (number {number} in the order of names): move it into "
                "one of them, or away."
            )
        if child.name not in classes:
            raise InputError(
                f"{folder}: class folder {number} (in the order of names) is not among the training images: add it there, or "
                "move it away."
            )
        files = list_folder(child)
        if not files:
            raise InputError(f"{child} is a class folder without images: add images, or remove the folder.")
        label = classes.index(child.name)
        images.extend(_Image(file, label, f"image {place} of {child}") for place, file in enumerate(files, 1))
    if not images:
        raise InputError(f"{folder} has no class folders: put the images of each class into a folder of its name.")
    return images


def open_picture(path: Path, named: object) -> Image.Image:
    """An image file, read whole; `named` stands for it in messages. Everything but a picture of ordinary size is refused."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError(f"{named} is not a file: move it away.")
        with path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("error")  # Pillow only warns of a picture so large that it may be an attack
            picture = Image.open(file, formats=FORMATS)
            picture.load()
    except InputError:
        raise
    except OSError as error:
        if error.errno is not None:
            raise InputError(f"{named} cannot be read ({os.strerror(error.errno)}): fix it, or move it away.") from None
        raise InputError(f"{named} is not an image that can be read: fix it, or move it away.") from None
    except Exception:  # a damaged picture raises nearly anything
        raise InputError(f"{named} is not an image that can be read: fix it, or move it away.") from None
    return picture


def _read(image: _Image) -> NDArray[Any]:
    picture = open_picture(image.file, image)
    if picture.mode in GRAY:
        return np.array(picture.convert("L"))
    if picture.mode in COLOR:
        return np.array(picture.convert("RGB"))
    raise InputError(f"{image} does not have eight bits per channel: convert it to 8-bit gray or color.")


def _color(picture: NDArray[Any]) -> NDArray[Any]:
    """Move the channels to the front; gray is repeated."""
    return np.stack([picture] * 3) if picture.ndim == 2 else np.ascontiguousarray(picture.transpose(2, 0, 1))


SPLITS = {"train": "train_32x32.mat", "test": "test_32x32.mat", "extra": "extra_32x32.mat"}


def read_svhn(path: Path) -> Dataset:
    """SVHN's cropped digits: one MATLAB file, or a folder with ``train_``, ``test_`` or ``extra_32x32.mat``."""
    if kind_of(path) == "file":
        return Dataset(path.name, TEN_DIGITS, {"train": read_svhn_split(path)})
    splits = {split: read_svhn_split(path / name) for split, name in SPLITS.items() if (path / name).exists()}
    if not splits:
        raise InputError(f"{path} has no train_32x32.mat or test_32x32.mat: name the folder with the SVHN files.")
    return Dataset(path.resolve().name, TEN_DIGITS, splits)


def read_svhn_split(path: Path) -> Split:
    """The records of one file as uint8 ``[N, 3, 32, 32]`` with labels 0 to 9; SVHN's label 10 is the digit 0."""
    from scipy.io import loadmat, whosmat  # slow to import, and most runs do not need it

    with open_file(path) as file:
        try:
            # The header says how large a variable is when it is unpacked.
            sizes = [math.prod(shape) for name, shape, _ in whosmat(file) if name in ("X", "y")]
            if sum(sizes) > UNPACKED_LIMIT:
                raise too_large(path)
            file.seek(0)
            content = loadmat(file, variable_names=["X", "y"])
        except InputError:
            raise
        except NotImplementedError:
            raise InputError(f"{path} is a MATLAB 7.3 file: save it with -v7, as SVHN's authors did.") from None
        except Exception:  # a damaged file raises nearly anything
            raise InputError(f"{path} is not a MATLAB file, or it is truncated: copy or download it again.") from None
    if "X" not in content or "y" not in content:
        raise InputError(f"{path} does not have both X and y: give SVHN's cropped digits, such as train_32x32.mat.")
    pixels, labels = content["X"], np.asarray(content["y"]).reshape(-1)
    if (
        pixels.ndim != 4
        or pixels.shape[:3] != (32, 32, 3)
        or pixels.dtype != np.uint8
        or pixels.shape[3] != len(labels)
    ):
        raise InputError(
            f"{path} does not have X as uint8 of shape (32, 32, 3, N) for N labels: give SVHN's cropped digits."
        )
    if len(labels) == 0:
        raise InputError(f"{path} has no records: give a file with records.")
    wrong = np.flatnonzero(~np.isin(labels, np.arange(1, 11)))
    if len(wrong):
        raise InputError(
            f"{path}, record {wrong[0] + 1}: the label is out of range for SVHN (1 to 10): fix the record."
        )
    inputs = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    return Split(torch.from_numpy(inputs), torch.from_numpy(labels.astype(np.int64) % 10))
