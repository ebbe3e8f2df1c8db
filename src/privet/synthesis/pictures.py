"""Pictures of artificial examples, and of the real ones that come nearest to them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from privet.io import write_whole

COLUMNS = 10
_GAP = 2
_HEIGHT = 56
"""About so many pixels of the picture are given to an image."""


def draw_samples(path: Path, inputs: Tensor, labels: Tensor, rows: int = 10) -> Path:
    """The first examples of each class, one row for each (at most `rows` classes)."""
    lines = []
    for label in labels.unique()[:rows]:
        some = inputs[labels == label][:COLUMNS]
        lines.append(torch.cat([some, some.new_ones(COLUMNS - len(some), *some.shape[1:])]))
    return _sheet(path, lines, mode=0o644)


def draw_neighbours(path: Path, inputs: Tensor, training: Tensor, holdout: Tensor) -> Path:
    """Artificial examples, beneath each the training record and the held-out record that are nearest to it.

    Not for release: the lower rows are records.
    """
    rows = inputs[:COLUMNS]
    near = [side[torch.cdist(rows.flatten(1), side.flatten(1)).argmin(1)] for side in (training, holdout)]
    return _sheet(path, [rows, *near], mode=0o600)


def draw_distances(path: Path, to_training: Tensor, to_holdout: Tensor) -> Path:
    """How far artificial examples are from the nearest training record, and from the nearest held-out one."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.add_subplot()
    both = torch.cat([to_training, to_holdout])
    edges = np.linspace(float(both.min()), float(both.max()) + 1e-9, 41)
    for distances, name, colour in ((to_training, "training", "#1b9e77"), (to_holdout, "held-out", "#d95f02")):
        axes.hist(
            distances.numpy(), bins=list(edges), histtype="step", linewidth=1.8, label=f"{name} records", color=colour
        )
    axes.set_xlabel("distance of an artificial example to the nearest record")
    axes.set_ylabel("artificial examples")
    axes.legend(frameon=False)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120)
    return write_whole(path, drawn.getvalue(), mode=0o600)


def _sheet(path: Path, lines: list[Tensor], *, mode: int) -> Path:
    """Rows of images, with gaps, enlarged by a whole number where they are small."""
    images = torch.stack(lines).clamp(0, 1)  # rows, columns, channels, height, width
    padded = torch.nn.functional.pad(images, (0, _GAP, 0, _GAP), value=1.0)
    sheet = padded.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)
    pixels = (sheet * 255).round().byte().permute(1, 2, 0).numpy()
    scale = max(1, _HEIGHT // images.shape[-2])
    pixels = np.repeat(np.repeat(pixels, scale, 0), scale, 1)
    drawn = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(drawn, format="png")
    return write_whole(path, drawn.getvalue(), mode=mode)
