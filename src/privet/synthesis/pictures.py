"""Pictures of artificial examples, and of the real ones that come nearest to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

COLUMNS = 10
_GAP = 2
_SCALE = 2


def draw_samples(path: Path, inputs: Tensor, labels: Tensor, rows: int = 10) -> Path:
    """The first examples of each class, one row for each (at most `rows` classes)."""
    lines = []
    for label in labels.unique()[:rows]:
        some = inputs[labels == label][:COLUMNS]
        lines.append(torch.cat([some, some.new_ones(COLUMNS - len(some), *some.shape[1:])]))
    return _sheet(path, lines)


def _sheet(path: Path, lines: list[Tensor]) -> Path:
    """Rows of images, with gaps, twice as large as they are."""
    images = torch.stack(lines).clamp(0, 1)  # rows, columns, channels, height, width
    padded = torch.nn.functional.pad(images, (0, _GAP, 0, _GAP), value=1.0)
    sheet = padded.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)
    pixels = (sheet * 255).round().byte().permute(1, 2, 0).numpy()
    pixels = np.repeat(np.repeat(pixels, _SCALE, 0), _SCALE, 1)
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(path)
    return path
