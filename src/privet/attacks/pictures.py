"""Pictures: synthetic examples and the records nearest to them, distances, inversions and reversals."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from privet.attacks.classifiers import sample
from privet.attacks.inversion import Inverted, Reversed, class_means, invert
from privet.attacks.synthetic import ASKED, closeness, nearest, some
from privet.attacks.target import Target
from privet.data import Dataset
from privet.data.images import open_picture
from privet.errors import InputError
from privet.io import user_path, write_whole

INTERNAL = "internal"
COLUMNS = 10
_GAP = 2
_HEIGHT = 56
"""Approximate height of an image in a picture, in pixels."""


def draw_samples(path: Path, inputs: Tensor, labels: Tensor, rows: int = 10) -> Path:
    """The first examples of each class, one row per class (at most `rows` classes)."""
    lines = []
    for label in labels.unique()[:rows]:
        first = inputs[labels == label][:COLUMNS]
        lines.append(torch.cat([first, first.new_ones(COLUMNS - len(first), *first.shape[1:])]))
    return _sheet(path, lines, mode=0o644)


def draw_neighbors(path: Path, inputs: Tensor, training: Tensor, holdout: Tensor) -> Path:
    """Synthetic examples, and below each the nearest training record and the nearest held-out record.

    Not for release: the lower rows are records.
    """
    rows = inputs[:COLUMNS]
    near = [side[torch.cdist(rows.flatten(1), side.flatten(1)).argmin(1)] for side in (training, holdout)]
    return _sheet(path, [rows, *near], mode=0o600)


def draw_distances(path: Path, to_training: Tensor, to_holdout: Tensor) -> Path:
    """A histogram of the distances from synthetic examples to the nearest training and the nearest held-out record."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.add_subplot()
    both = torch.cat([to_training, to_holdout])
    edges = np.linspace(float(both.min()), float(both.max()) + 1e-9, 41)
    for distances, name, color in ((to_training, "training", "#1b9e77"), (to_holdout, "held-out", "#d95f02")):
        axes.hist(
            distances.numpy(), bins=list(edges), histtype="step", linewidth=1.8, label=f"{name} records", color=color
        )
    axes.set_xlabel("distance from a synthetic example to the nearest record")
    axes.set_ylabel("synthetic examples")
    axes.legend(frameon=False)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=120)
    return write_whole(path, drawn.getvalue(), mode=0o600)


def write_internal(folder: Path, target: Target, measured: Mapping[str, str]) -> Path:
    """Fill ``folder/internal`` with figures computed from the records without noise, which must not be released."""
    internal = folder / INTERNAL
    internal.mkdir(mode=0o700, exist_ok=True)
    internal.chmod(0o700)  # the folder may have existed with another mode
    lines = ["# Internal, not for release", "", "Computed from the records without noise.", ""]
    lines += [f"- {name}: {said}." for name, said in measured.items()]
    lines += [f"- {found}." for found in closeness(target)]
    generator = torch.Generator().manual_seed(0)
    members, others = (sample(side, ASKED, generator)[0] for side in (target.members, target.others))
    rows = some(target, ASKED, generator)
    size = min(len(members), len(others))
    near = [nearest(rows.flatten(1), side[:size].flatten(1)) for side in (members, others)]
    draw_distances(internal / "distances.png", *near)
    lines += ["", "![Distances](distances.png)"]
    if rows.ndim == 4:
        draw_neighbors(internal / "neighbors.png", rows, target.members.tensors[0], target.others.tensors[0])
        lines += ["", "Synthetic examples, the nearest training record, the nearest held-out record:", ""]
        lines += ["![Nearest records](neighbors.png)"]
    write_whole(internal / "quality.md", ("\n".join(lines) + "\n").encode(), mode=0o600)
    return internal


def draw_classes(path: Path, model: nn.Module, dataset: Dataset) -> Inverted:
    """Invert each class of an image classifier, and draw the images above the mean training images of the classes."""
    if len(dataset.shape) != 3:
        raise InputError(f"An inversion is drawn as images, and the records of {dataset.name} are not images.")
    classes = range(len(dataset.classes))
    found = invert(model, classes, dataset.shape, smoothness=0.002)
    draw_inversion(path, found, dataset.classes, class_means(*dataset.train.tensors, classes))
    return found


def draw_inversion(path: str | Path, inverted: Inverted, names: Sequence[str], real: Tensor | None = None) -> Path:
    """A picture of inverted images, one column per class; below them `real`, for example the mean image of each class."""
    from matplotlib.figure import Figure

    rows = [inverted.records] if real is None else [inverted.records, real]
    if inverted.records.ndim not in (3, 4) or len(names) != len(inverted.records):
        raise InputError("Only images can be drawn, with one name for each class.")
    figure = Figure(figsize=(1.1 * len(names), 1.2 * len(rows) + 0.2))
    grid = figure.subplots(
        len(rows), len(names), squeeze=False, gridspec_kw={"left": 0, "right": 1, "bottom": 0.02, "top": 0.88}
    )
    for row, images in zip(grid, rows, strict=True):
        for axes, image in zip(row, images, strict=True):
            pixels = image if image.ndim == 2 else image.permute(1, 2, 0).squeeze(-1)
            axes.imshow(pixels.numpy(), cmap="gray", vmin=0, vmax=1)
            axes.set_axis_off()
    for axes, name, confidence in zip(grid[0], names, inverted.confidence.tolist(), strict=True):
        axes.set_title(f"{name}: {100 * confidence:.0f} %", fontsize=8)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=150, format=Path(path).suffix[1:] or "png")
    write_whole(Path(path), drawn.getvalue(), mode=0o600)  # means of records are private
    return Path(path)


def draw_reversal(path: str | Path, found: dict[str, Reversed]) -> Path:
    """A picture of each reversal, one per row: original, features and recovered image."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 1.9 * len(found) + 0.3), layout="constrained")
    grid = figure.subplots(len(found), 3, squeeze=False)
    for row, (name, each) in zip(grid, found.items(), strict=True):
        titles = ("original", f"features: {name}", f"recovered, RMSE {each.rmse:.3f}")
        for axes, image, title in zip(row, (each.original, each.features, each.recovered), titles, strict=True):
            axes.imshow(_shown(image).permute(1, 2, 0).numpy())
            axes.set_title(title, fontsize=8)
            axes.set_axis_off()
    figure.savefig(path, dpi=110)
    return Path(path)


def picture(path: str | Path | None = None, side: int = 160) -> Tensor:
    """An image file (or a sample image of scikit-learn) as channels x height x width, between 0 and 1.

    It is scaled down to at most `side` pixels on each side.
    """
    if path is None:
        from sklearn.datasets import load_sample_image

        image = Image.fromarray(load_sample_image("china.jpg"))
    else:
        image = open_picture(user_path(path), path).convert("RGB")
    image.thumbnail((side, side))
    return torch.from_numpy(np.asarray(image, dtype=np.float32).copy()).permute(2, 0, 1) / 255


def _sheet(path: Path, lines: list[Tensor], *, mode: int) -> Path:
    """Rows of images with gaps, enlarged by an integer factor if they are small."""
    images = torch.stack(lines).clamp(0, 1)  # rows, columns, channels, height, width
    padded = torch.nn.functional.pad(images, (0, _GAP, 0, _GAP), value=1.0)
    sheet = padded.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2)
    pixels = (sheet * 255).round().byte().permute(1, 2, 0).numpy()
    scale = max(1, _HEIGHT // images.shape[-2])
    pixels = np.repeat(np.repeat(pixels, scale, 0), scale, 1)
    drawn = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(drawn, format="png")
    return write_whole(path, drawn.getvalue(), mode=mode)


def _shown(image: Tensor) -> Tensor:
    """An image scaled to the range of a picture, if its values go beyond it."""
    low, high = float(image.quantile(0.01)), float(image.quantile(0.99))
    if low >= -0.05 and high <= 1.05:
        return image.clamp(0, 1)
    return ((image - low) / max(high - low, 1e-9)).clamp(0, 1)
