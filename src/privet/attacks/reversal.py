"""Reversal: from the features of a network back to its input, where the network is read as a differential equation.

A residual network is Euler's method for dx = F(x) dt, and whoever knows F goes back the same way. With noise,
dx = F(x) dt + gamma dB, the way back is not known. After the first figure of the residual-perturbation paper, whose F is not
given: ours is `convolved`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from privet.errors import InputError

Field = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Reversed:
    """What went in, the features that came out, and what was recovered from them."""

    original: Tensor
    features: Tensor
    recovered: Tensor

    @property
    def rmse(self) -> float:
        """The root of the mean squared error of the recovery."""
        return float((self.recovered - self.original).double().square().mean().sqrt())


def reverse(
    original: Tensor,
    field: Field,
    *,
    gamma: float = 0.0,
    multiplicative: bool = False,
    steps: int = 100,
    time: float = 1.0,
    generator: torch.Generator | None = None,
) -> Reversed:
    """Euler('s and Maruyama's) method forward in time and, from the features alone, backward.

    Args:
        original: the input.
        field: F, which both ways know.
        gamma: of the noise; 0 is the ordinary equation.
        multiplicative: noise in proportion to the features, as in strategy II.
        steps, time: the step is time / steps.
        generator: of the noise, which is drawn afresh both ways.
    """
    if steps < 1 or not time > 0:
        raise InputError("A reversal needs at least one step and a time above 0.")
    step = time / steps

    def noisy(x: Tensor) -> Tensor:
        if not gamma:
            return x
        noise = gamma * math.sqrt(step) * torch.randn(x.shape, dtype=x.dtype, generator=generator)
        return x + (x * noise if multiplicative else noise)

    features = original
    for _ in range(steps):
        features = noisy(features + step * field(features))
    recovered = features
    for _ in range(steps):
        recovered = noisy(recovered - step * field(recovered))
    return Reversed(original, features, recovered)


def convolved(seed: int = 0, size: int = 5, gain: float = 2.0) -> Field:
    """tanh of a fixed random convolution of each channel, as a residual mapping might be: F of the demonstration."""
    kernel = torch.randn(1, 1, size, size, generator=torch.Generator().manual_seed(seed)) * gain / size

    def field(images: Tensor) -> Tensor:
        maps = images.reshape(-1, 1, *images.shape[-2:])
        around = F.pad(maps, (size // 2,) * 4, mode="circular")
        return torch.tanh(F.conv2d(around, kernel.to(images.dtype))).reshape(images.shape)

    return field


def picture(path: str | Path | None = None, side: int = 160) -> Tensor:
    """An image as channels x height x width between 0 and 1, at most `side` pixels a side: a file, or one of scikit-learn's."""
    import numpy as np
    from PIL import Image

    if path is None:
        from sklearn.datasets import load_sample_image

        image = Image.fromarray(load_sample_image("china.jpg"))
    else:
        try:
            image = Image.open(path).convert("RGB")
        except OSError as error:
            raise InputError(f"{path} is not an image that can be read ({error}): give another.") from None
    image.thumbnail((side, side))
    return torch.from_numpy(np.asarray(image, dtype=np.float32).copy()).permute(2, 0, 1) / 255


def draw_reversal(path: str | Path, found: dict[str, Reversed]) -> Path:
    """A picture of each reversal: original, features and what was recovered, one line each."""
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


def _shown(image: Tensor) -> Tensor:
    """Values beyond those of a picture are brought back to its range, all by one scale."""
    low, high = float(image.quantile(0.01)), float(image.quantile(0.99))
    if low >= -0.05 and high <= 1.05:
        return image.clamp(0, 1)
    return ((image - low) / max(high - low, 1e-9)).clamp(0, 1)
