"""A folder of images, one folder per class."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from privet.data.dataset import Dataset, Split
from privet.data.files import list_folder, open_file
from privet.errors import InputError

GREY = {"1", "L"}
COLOUR = {"RGB", "RGBA", "P", "LA", "PA", "CMYK", "YCbCr"}


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
    pictures = {split: [_read(file) for file, _ in images] for split, images in found.items()}
    first, shape = found["train"][0][0], pictures["train"][0].shape[:2]
    for split, images in found.items():
        for (file, _), picture in zip(images, pictures[split], strict=True):
            if picture.shape[:2] != shape:
                raise InputError(
                    f"{file} is {picture.shape[1]} x {picture.shape[0]} pixels and {first} {shape[1]} x {shape[0]}: "
                    "bring all images to one size."
                )
    grey = all(picture.ndim == 2 for part in pictures.values() for picture in part)
    splits = {
        split: Split(
            torch.from_numpy(np.stack([picture if grey else _colour(picture) for picture in pictures[split]])),
            torch.tensor([label for _, label in images], dtype=torch.int64),
        )
        for split, images in found.items()
    }
    return Dataset(path.resolve().name, classes, splits)


def _class_names(folder: Path) -> tuple[str, ...]:
    names = tuple(child.name for child in list_folder(folder) if child.is_dir())
    if not names:
        raise InputError(f"{folder} holds no class folders: put the images of each class into a folder of its name.")
    return names


def _images(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    images: list[tuple[Path, int]] = []
    for child in list_folder(folder):
        if not child.is_dir():
            raise InputError(f"{child} lies beside the class folders: move it into one of them, or away.")
        if child.name not in classes:
            raise InputError(f"{child} is a class that the training images do not have: add it there, or move it away.")
        files = list_folder(child)
        if not files:
            raise InputError(f"{child} is a class folder without images: add images, or remove the folder.")
        images.extend((file, classes.index(child.name)) for file in files)
    if not images:
        raise InputError(f"{folder} holds no class folders: put the images of each class into a folder of its name.")
    return images


def _read(path: Path) -> NDArray[Any]:
    with open_file(path) as file:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # Pillow only warns of a picture too large to be honest
                image = Image.open(file)
                image.load()
        except Exception:  # a damaged picture raises nearly anything
            raise InputError(f"{path} is not an image that can be read: mend it, or move it away.") from None
    if image.mode in GREY:
        return np.array(image.convert("L"))
    if image.mode in COLOUR:
        return np.array(image.convert("RGB"))
    raise InputError(f"{path} has pixels of mode {image.mode}, not of eight bits: convert it to 8-bit grey or colour.")


def _colour(picture: NDArray[Any]) -> NDArray[Any]:
    """Height and width first becomes channels first; grey is repeated."""
    return np.stack([picture] * 3) if picture.ndim == 2 else np.ascontiguousarray(picture.transpose(2, 0, 1))
