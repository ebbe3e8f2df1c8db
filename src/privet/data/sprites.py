"""Pictures as rows of one large picture: each row is one image, its pixels row after row, red-green-blue."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from privet.data.files import open_file, read_text
from privet.errors import InputError


def read_sprite(path: Path, height: int, width: int) -> NDArray[np.uint8]:
    """The images ``[N, 3, height, width]`` of one sprite of N rows and height * width columns."""
    with open_file(path) as file:
        try:
            pixels = np.asarray(Image.open(file).convert("RGB"))
        except (UnidentifiedImageError, OSError, SyntaxError) as error:
            raise InputError(f"{path} is not a readable picture ({error}): copy or download it again.") from None
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
    except (ValueError, OverflowError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not a JSON list of labels: copy or download it again.") from None
