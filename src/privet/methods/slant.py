"""The slant of an image: measured, taken out and put back, each image by itself.

Handwriting varies in slant more than in anything else, and shearing is far from linear in the pixels. Upright images
have a simpler distribution; the slant is one more number of it. A transform that is fixed before any record is seen costs no
privacy.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

STEEPEST = 1.0


def slant(images: Tensor) -> Tensor:
    """How far the columns shift from one row to the next, by the second moments of the brightness; within one column.

    ``(N, C, H, W)`` with values of at least 0 becomes N numbers; an empty image has none.
    """
    light = images.sum(1)
    rows, columns = (torch.linspace(1 / n - 1, 1 - 1 / n, n) for n in light.shape[1:])
    mass = light.sum((1, 2)).clamp(min=1e-6)
    by_row, by_column = light.sum(2) / mass[:, None], light.sum(1) / mass[:, None]
    middle = by_row @ rows
    spread = by_row @ rows.square() - middle**2
    together = torch.einsum("nhw,h,w->n", light, rows, columns) / mass - middle * (by_column @ columns)
    return (together / spread.clamp(min=1e-3)).clamp(-STEEPEST, STEEPEST)


def upright(images: Tensor) -> tuple[Tensor, Tensor]:
    """The images with their slant taken out, and the slants."""
    slants = slant(images)
    return sheared(images, slants), slants


def sheared(images: Tensor, slants: Tensor) -> Tensor:
    """Each image with every row moved along by its height times the slant; the opposite slant moves it back."""
    maps = torch.zeros(len(images), 2, 3)
    maps[:, 0, 0] = maps[:, 1, 1] = 1.0
    maps[:, 0, 1] = slants
    return mapped(images, maps)


def mapped(images: Tensor, maps: Tensor) -> Tensor:
    """Each image seen through its affine map ``(N, 2, 3)``, in coordinates from -1 to 1, black outside."""
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)
