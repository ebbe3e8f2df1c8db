"""Model inversion (Fredrikson et al. 2015): climb the confidence in a class to a picture of what the model thinks it is."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privet.attacks.answers import evaluating
from privet.errors import InputError
from privet.io import write_whole


@dataclass(frozen=True, eq=False)
class Inverted:
    """One record for each class, and the model's confidence that it is of that class."""

    records: Tensor
    confidence: Tensor


def invert(
    model: nn.Module,
    classes: Sequence[int],
    shape: tuple[int, ...],
    *,
    steps: int = 300,
    learning_rate: float = 0.05,
    smoothness: float = 0.0,
    start: float = 0.0,
    low: float = 0.0,
    high: float = 1.0,
) -> Inverted:
    """Start from a constant record and follow the gradient of log p(class | record), staying between `low` and `high`.

    The best record that was met is kept. `smoothness` weighs the total variation of images, which stands for the
    denoising of the paper. What comes out is what the model holds of a class, not of a record: it resembles a person only
    where the class is a person.
    """
    if not classes or not shape:
        raise InputError("An inversion needs at least one class and the shape of a record.")
    wanted = torch.as_tensor(list(classes), dtype=torch.int64)
    records = torch.full((len(wanted), *shape), start).requires_grad_(True)
    best, reached = records.detach().clone(), torch.full((len(wanted),), -math.inf)
    optimizer = torch.optim.Adam([records], lr=learning_rate)
    with evaluating(model):
        for step in range(steps + 1):
            logits: Tensor = model(records)
            fit = F.log_softmax(logits, dim=1)[torch.arange(len(wanted)), wanted]
            better = fit.detach() > reached
            best[better], reached[better] = records.detach()[better], fit.detach()[better]
            if step == steps:
                break
            cost = smoothness * _variation(records) - fit.sum()
            (records.grad,) = torch.autograd.grad(cost, records)
            optimizer.step()
            with torch.no_grad():
                records.clamp_(low, high)
    return Inverted(best, reached.exp())


def draw_inversion(path: str | Path, inverted: Inverted, names: Sequence[str], real: Tensor | None = None) -> Path:
    """A picture of inverted images, one column a class; beneath them `real`, such as the mean image of each class."""
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
    write_whole(Path(path), drawn.getvalue(), mode=0o600)  # means of records are not for everybody
    return Path(path)


def class_means(inputs: Tensor, labels: Tensor, classes: Sequence[int]) -> Tensor:
    """The mean record of each class."""
    return torch.stack([inputs[labels == label].mean(dim=0) for label in classes])


def _variation(records: Tensor) -> Tensor:
    if records.ndim < 3:
        return records.new_zeros(())
    return records.diff(dim=-1).abs().sum() + records.diff(dim=-2).abs().sum()
