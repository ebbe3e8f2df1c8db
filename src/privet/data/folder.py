"""A folder of images, one folder per class.

The folders' names are the classes, and so public. A file's name may be that of a person: messages count files instead.
"""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from privet.data.dataset import Dataset, Split
from privet.data.files import list_folder
from privet.errors import InputError

GREY = {"1", "L"}
COLOUR = {"RGB", "RGBA", "P", "LA", "PA", "CMYK", "YCbCr"}


@dataclass(frozen=True)
class _Image:
    """One file; as text, its place in the order of names, by which messages call it."""

    file: Path
    label: int
    place: str

    def __str__(self) -> str:
        return f"{self.place} (in the order of names)"


def read_folder(path: Path) -> Dataset:
    """``PATH/CLASS/IMAGE``, or ``PATH/train/CLASS/IMAGE`` with ``PATH/test/CLASS/IMAGE``.

    Classes are the folders' names in sorted order; those of ``train`` count for every split. Images must have one
    size. They stay uint8: ``[N, H, W]`` where all are grey, else ``[N, 3, H, W]``, transparency dropped.
    """
    parts = {split: path / split for split in ("train", "test") if (path / split).is_dir()}
    if "train" not in parts:
        parts = {"train": path}
    classes = _class_names(parts["train"])
    found = {split: _images(part, classes) for split, part in parts.items()}
    pictures = {split: [_read(image) for image in images] for split, images in found.items()}
    shape = pictures["train"][0].shape[:2]
    for split, images in found.items():
        for image, picture in zip(images, pictures[split], strict=True):
            if picture.shape[:2] != shape:
                raise InputError(f"{image} has another size than the first image of all: bring all images to one size.")
    grey = all(picture.ndim == 2 for part in pictures.values() for picture in part)
    splits = {
        split: Split(
            torch.from_numpy(np.stack([picture if grey else _colour(picture) for picture in pictures[split]])),
            torch.tensor([image.label for image in images], dtype=torch.int64),
        )
        for split, images in found.items()
    }
    return Dataset(path.resolve().name, classes, splits)


def _class_names(folder: Path) -> tuple[str, ...]:
    names = tuple(child.name for child in list_folder(folder) if child.is_dir())
    if not names:
        raise InputError(f"{folder} holds no class folders: put the images of each class into a folder of its name.")
    return names


def _images(folder: Path, classes: tuple[str, ...]) -> list[_Image]:
    images: list[_Image] = []
    for number, child in enumerate(list_folder(folder), 1):
        if not child.is_dir():
            raise InputError(
                f"{folder}: a file lies beside the class folders (number {number} in the order of names): move it into one of "
                "them, or away."
            )
        if child.name not in classes:
            raise InputError(
                f"{folder}: class folder {number} (in the order of names) is none of the training images: add it there, or "
                "move it away."
            )
        files = list_folder(child)
        if not files:
            raise InputError(f"{child} is a class folder without images: add images, or remove the folder.")
        label = classes.index(child.name)
        images.extend(_Image(file, label, f"image {place} of {child}") for place, file in enumerate(files, 1))
    if not images:
        raise InputError(f"{folder} holds no class folders: put the images of each class into a folder of its name.")
    return images


def _read(image: _Image) -> NDArray[Any]:
    try:
        with image.file.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("error")  # Pillow only warns of a picture too large to be honest
            picture = Image.open(file)
            picture.load()
    except OSError as error:
        if error.errno is not None:
            raise InputError(
                f"{image} cannot be read ({os.strerror(error.errno)}): mend it, or move it away."
            ) from None
        raise InputError(f"{image} is not an image that can be read: mend it, or move it away.") from None
    except Exception:  # a damaged picture raises nearly anything
        raise InputError(f"{image} is not an image that can be read: mend it, or move it away.") from None
    if picture.mode in GREY:
        return np.array(picture.convert("L"))
    if picture.mode in COLOUR:
        return np.array(picture.convert("RGB"))
    raise InputError(f"{image} has pixels that are not of eight bits: convert it to 8-bit grey or colour.")


def _colour(picture: NDArray[Any]) -> NDArray[Any]:
    """Height and width first becomes channels first; grey is repeated."""
    return np.stack([picture] * 3) if picture.ndim == 2 else np.ascontiguousarray(picture.transpose(2, 0, 1))
