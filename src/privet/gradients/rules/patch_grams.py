"""Norms of convolution gradients from Gram matrices: no weight gradient of a record is formed."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor

from privet.gradients.rules.grams import GramSums, product_of
from privet.gradients.rules.patches import Geometry, Patches, has_channels_last

_BUFFER_BYTES = 2**21


def by_patches(x: Tensor, grad: Tensor, geometry: Geometry) -> GramSums:
    """From the products of all pairs of patches with those of the gradients at their places."""
    patches, found = Patches(x, grad, geometry, joined=True), []
    for rows, (matrix,) in patches.chunks(slice(0, x.shape[0])):
        of_grad = patches.grad[rows].mT
        found.append(GramSums.of([product_of(matrix, matrix)], [product_of(of_grad, of_grad)]))
    return _joined(found)


def by_pixels(x: Tensor, grad: Tensor, geometry: Geometry) -> GramSums:
    """The same where the kernel moves in single steps: the product of two patches is a sum, over the kernel, of products
    of two pixels, and these are computed once for all of them."""
    pixels, gradients = _pixels(x), _pixels(grad)
    size, places = x.shape[3:], grad.shape[3:]
    step = max(_BUFFER_BYTES // (math.prod(size) ** 2 * x.element_size()), 1)
    found = []
    for start in range(0, x.shape[0], step):
        rows = slice(start, start + step)
        of_x = product_of(pixels[rows], pixels[rows]).view(-1, *size, *size)
        of_grad = product_of(gradients[rows], gradients[rows])
        of_patches = torch.zeros_like(of_grad).view(-1, *places, *places)
        for part in product(*map(range, geometry.kernel)):
            taken, into = _overlap(part, size, places, geometry)
            of_patches[(slice(None), *into, *into)] += of_x[(slice(None), *taken, *taken)]
        found.append(GramSums.of([of_patches.view_as(of_grad)], [of_grad]))
    return _joined(found)


def _joined(found: list[GramSums]) -> GramSums:
    return GramSums(
        *(
            torch.cat(parts)
            for parts in zip(*((one.products, one.lengths, one.of_x, one.of_grad) for one in found), strict=True)
        )
    )


def _pixels(images: Tensor) -> Tensor:
    """``(records, positions, channels)`` of one image for each record."""
    image = images[:, 0]
    return image.movedim(1, -1).flatten(1, -2) if has_channels_last(images) else image.flatten(2).mT


def _overlap(
    part: tuple[int, ...], size: torch.Size, places: torch.Size, geometry: Geometry
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Where this part of the kernel meets pixels that are not zeros of the padding: the pixels, and the places."""
    taken, into = [], []
    for index, dilation, padding, pixels, count in zip(
        part, geometry.dilation, geometry.padding, size, places, strict=True
    ):
        shift = index * dilation - padding
        first, last = max(0, -shift), max(min(count, pixels - shift), 0)
        into.append(slice(first, max(last, first)))
        taken.append(slice(first + shift, max(last, first) + shift))
    return tuple(taken), tuple(into)
