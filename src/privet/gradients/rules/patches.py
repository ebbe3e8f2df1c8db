"""Patches of a convolution's input as matrices: their products with the output's gradient are weight gradients.

Everywhere `x` is the tensor that the kernel moves over and `grad` the tensor that it is multiplied with, both of shape
``(records, images, channels, *positions)``. For a convolution these are the input and the gradient of the output; for a
transposed convolution they are the gradient of the output and the input.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from privet.gradients.numerics import add_weighed, squared_norms, workspace
from privet.gradients.rules.grams import GramSums, product_of

_BUFFER_BYTES = 2**20
"""Patches are copied into a reused buffer of about this size. Of 256 KiB, 1 MiB and 4 MiB it was the fastest on the
convolutions of a small CNN, ResNet8 and WRN-16-4 (AMD EPYC with AVX2, one thread, process time)."""
_FEW_COLUMNS, _SOME_COLUMNS, _FEW_PLACES = 48, 128, 64
"""A matrix product with few columns, or with some columns and few places of the kernel, is so slow that it pays to join the
parts of the kernel; same measurement."""
_ENOUGH_CHANNELS, _SHORT_ROW = 16, 12
"""Runs of this many channels are copied faster than rows of positions that are scattered or shorter than this."""


@dataclass(frozen=True)
class Geometry:
    """How the kernel moves; one number for each spatial dimension."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    """Zeros on both sides of the input."""
    further: tuple[int, ...]
    """Zeros on the far side only: an even kernel with ``padding="same"``."""
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = ()


def has_channels_last(images: Tensor) -> bool:
    """Whether the channels of ``(records, images, channels, *positions)`` are next to each other in memory."""
    return images.shape[2] > 1 and images.stride(2) == 1 and images.stride(-1) != 1


@dataclass
class Instances:
    """The weight gradient of each record, in the order in which it was formed."""

    blocks: Tensor
    """``(parts, records, outputs, ...)``: one part for each step along the kernel's first dimension, or a single one."""
    order: tuple[int, ...]
    """The permutation of these dimensions to ``(records, outputs, inputs, *kernel)``, followed by the parts if there is a
    single one."""

    def squared_norms(self) -> Tensor:
        norms = [squared_norms(part) for part in self.blocks]
        return torch.stack(norms).sum(0) if len(norms) > 1 else norms[0]

    def of(self, rows: slice) -> Tensor:
        """``(records, outputs, inputs, *kernel)``"""
        return self._as_weights(self.blocks[:, rows])

    def _as_weights(self, blocks: Tensor) -> Tensor:
        ordered = blocks.permute(self.order)
        return ordered.squeeze(-1) if self.order[-1] == 0 else ordered

    @staticmethod
    def weighted_sum(pieces: Iterable[tuple[slice, Instances]], weights: Tensor) -> Tensor:
        """The float64 sum over the records of pieces with the same layout, permuted to the weight's shape at the end."""
        total = None
        for rows, piece in pieces:
            if total is None:
                one = piece
                total = torch.zeros_like(
                    piece.blocks[:, :1], dtype=torch.float64, memory_format=torch.contiguous_format
                )
            for into, block in zip(total, piece.blocks, strict=True):
                add_weighed(into[0], block, weights[rows])
        assert total is not None
        return one._as_weights(total)[0]


class Patches:
    """The patches of `x`, chunk by chunk in one buffer.

    All dimensions of the kernel except the first are unrolled by copying. Along the first, a patch is the same copy at an offset:
    that saves two thirds of the copies of a 3x3 kernel. Rows are sorted by their remainder modulo the stride, so that the rows
    that belong to one part of the kernel are contiguous. If one matrix is better than one for each part, the parts are joined by
    a second copy, of long runs.
    """

    def __init__(self, x: Tensor, grad: Tensor, geometry: Geometry, *, joined: bool = False) -> None:
        self.geometry = geometry
        self.images, self.inputs, self.outputs = x.shape[1], x.shape[2], grad.shape[2]
        self.size, self.positions = x.shape[3:], grad.shape[3:]
        self.columns = self.inputs * math.prod(geometry.kernel[1:])
        few = _SOME_COLUMNS if math.prod(self.positions) <= _FEW_PLACES else _FEW_COLUMNS
        self.joined = joined or self.images > 1 or self.columns < few
        runs = has_channels_last(x) or self.positions[-1] < _SHORT_ROW
        self.channels_last = self.inputs >= _ENOUGH_CHANNELS and runs
        self.x = x.movedim(2, -1) if self.channels_last else x
        if has_channels_last(grad):
            self.grad = grad.movedim(2, -1).flatten(1, -2).mT
        else:
            self.grad = grad.transpose(1, 2).flatten(2)
        """``(records, outputs, images * positions)``"""
        self._passing: Tensor | None = None

    # --- weight gradients -------------------------------------------------------------------------------------------

    def instances(self, rows: slice, *, passing: bool = False) -> Instances:
        """The weight gradients of the records in `rows`; with `passing`, the next call overwrites them."""
        count, kernel = rows.stop - rows.start, self.geometry.kernel
        parts, inner = ((), kernel) if self.joined else (kernel[:1], kernel[1:])
        formed = self._room(parts[0] if parts else 1, count, self.inputs * math.prod(inner), passing)
        for chunk, matrices in self.chunks(rows):
            grad, into = self.grad[chunk], slice(chunk.start - rows.start, chunk.stop - rows.start)
            for part, matrix in enumerate(matrices):
                torch.bmm(grad, matrix, out=formed[part, into])
        if self.channels_last:
            shape, inputs = (*inner, self.inputs), 3 + len(inner)
        elif self.joined:
            shape, inputs = (kernel[0], self.inputs, *kernel[1:]), 4
        else:
            shape, inputs = (self.inputs, *inner), 3
        others = [dim for dim in range(3, 4 + len(inner)) if dim != inputs]
        order = (1, 2, inputs, *others, 0) if self.joined else (1, 2, inputs, 0, *others)
        return Instances(formed.unflatten(3, shape), order)

    def _room(self, parts: int, count: int, columns: int, passing: bool) -> Tensor:
        """Memory for instances, reused if they are passing: fresh memory costs a page fault for every 4 KiB."""
        if passing and self._passing is not None and self._passing.shape[1] >= count:
            return self._passing[:, :count]
        room = self.x.new_empty(parts, count, self.outputs, columns)
        if passing:
            self._passing = room
        return room

    # --- patches ----------------------------------------------------------------------------------------------------

    def chunks(self, rows: slice) -> Iterator[tuple[slice, list[Tensor]]]:
        """Slices of the records, and their patches as matrices ``(records, images * positions, columns)``: one for each
        part of the kernel along its first dimension, or one for the whole kernel."""
        g, x = self.geometry, self.x
        padded = [s + 2 * p + f for s, p, f in zip(self.size, g.padding, g.further, strict=True)]
        steps = -(-padded[0] // g.stride[0])
        padded[0] = steps * g.stride[0]
        moves = (self.images, g.stride[0], steps, *self.positions[1:])
        bare = padded == list(self.size)
        if bare and math.prod(g.kernel) == math.prod(g.stride) == 1:
            yield rows, [matrix.flatten(1, -2) for matrix in self._parts(self._windows(x, moves)[rows])]
            return
        numbers = max(math.prod(moves), self.joined * g.kernel[0] * self.grad.shape[2])
        count = min(max(_BUFFER_BYTES // (self.columns * numbers * x.element_size()), 1), rows.stop - rows.start)
        if bare:
            inside, windows = None, self._windows(x, moves)
        else:
            frame = workspace.take("frame", self._ordered((count, self.images), self.inputs, tuple(padded)), x).zero_()
            within = tuple(slice(p, p + s) for p, s in zip(g.padding, self.size, strict=True))
            inside = frame[self._ordered((slice(None), slice(None)), slice(None), within)]
            windows = self._windows(frame, moves)
        copied = workspace.take("patches", (count, *windows.shape[1:]), x)
        if self.joined:
            matrices, joins = self._joined(copied)
        else:
            matrices, joins = [part.flatten(1, -2) for part in self._parts(copied)], []
        for start in range(rows.start, rows.stop, count):
            stop = min(start + count, rows.stop)
            if inside is None:
                copied[: stop - start].copy_(windows[start:stop])
            else:
                inside[: stop - start].copy_(x[start:stop])
                copied.copy_(windows)
            for into, part in joins:
                into.copy_(part)
            yield slice(start, stop), [matrix[: stop - start] for matrix in matrices]

    def _ordered(self, records: tuple[Any, Any], channels: Any, positions: tuple[Any, ...]) -> tuple[Any, ...]:
        return (*records, *positions, channels) if self.channels_last else (*records, channels, *positions)

    def _windows(self, frame: Tensor, moves: tuple[int, ...]) -> Tensor:
        """A view of the frame: for each place of the kernel, the patch under it."""
        g = self.geometry
        record, image = frame.stride()[:2]
        channel = frame.stride(-1) if self.channels_last else frame.stride(2)
        position = frame.stride()[2:-1] if self.channels_last else frame.stride()[3:]
        inside = tuple(d * p for d, p in zip(g.dilation[1:], position[1:], strict=True))
        moved = tuple(s * p for s, p in zip(g.stride, position, strict=True))
        across = (image, position[0], *moved)
        if self.channels_last:
            shape = (len(frame), *moves, *g.kernel[1:], self.inputs)
            return frame.as_strided(shape, (record, *across, *inside, channel))
        shape = (len(frame), self.inputs, *g.kernel[1:], *moves)
        return frame.as_strided(shape, (record, channel, *inside, *across))

    def _by_row(self, copied: Tensor) -> Tensor:
        """``(records, images, remainder, row, rest of the row, columns)``, a view."""
        unrolled = len(self.geometry.kernel)  # dimensions of a patch: the channels and all of the kernel but its first
        split = copied.flatten(-unrolled) if self.channels_last else copied.flatten(1, unrolled).movedim(1, -1)
        return split.flatten(4, -2) if split.ndim > 5 else split.unsqueeze(4)

    def _parts(self, copied: Tensor) -> list[Tensor]:
        """For each part of the kernel ``(records, images, row, rest of the row, columns)``, views."""
        g, rows = self.geometry, self._by_row(copied)
        found = []
        for part in range(g.kernel[0]):
            first, remainder = divmod(part * g.dilation[0], g.stride[0])
            found.append(rows[:, :, remainder, first : first + self.positions[0]])
        return found

    def _joined(self, copied: Tensor) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
        """The matrix of whole patches, and the copies that fill it: all parts with the same remainder at once."""
        g, rows, height = self.geometry, self._by_row(copied), self.positions[0]
        shared = math.gcd(g.stride[0], g.dilation[0])
        period, step = g.stride[0] // shared, g.dilation[0] // shared
        count, images, rest = rows.shape[0], self.images, rows.shape[4]
        shape = (count, images, height, rest, g.kernel[0], self.columns)
        if self.channels_last:
            matrix = workspace.take("joined", shape, copied)
            merged = matrix.flatten(4).flatten(1, 3)
        else:
            positions_last = workspace.take("joined", (count, *shape[4:], *shape[1:4]), copied)
            matrix = positions_last.movedim((1, 2), (4, 5))
            merged = positions_last.flatten(3).flatten(1, 2).mT
        joins = []
        for part in range(min(period, g.kernel[0])):
            first, remainder = divmod(part * g.dilation[0], g.stride[0])
            into = matrix[..., part::period, :]
            windows = rows[:, :, remainder, first:].unfold(2, height, step).movedim(-1, 2).movedim(3, -2)
            joins.append((into, windows[..., : into.shape[4], :]))
        return [merged], joins


_GRAM_BYTES = 2**21


def by_patches(x: Tensor, grad: Tensor, geometry: Geometry) -> GramSums:
    """Gram sums from the products of all pairs of patches and of the gradients at their places."""
    patches, found = Patches(x, grad, geometry, joined=True), []
    for rows, (matrix,) in patches.chunks(slice(0, x.shape[0])):
        of_grad = patches.grad[rows].mT
        found.append(GramSums.of([product_of(matrix, matrix)], [product_of(of_grad, of_grad)]))
    return _joined(found)


def by_pixels(x: Tensor, grad: Tensor, geometry: Geometry) -> GramSums:
    """The same for a kernel that moves in single steps: the product of two patches is a sum, over the kernel, of products of
    two pixels, which are computed only once."""
    pixels, gradients = _pixels(x), _pixels(grad)
    size, places = x.shape[3:], grad.shape[3:]
    step = max(_GRAM_BYTES // (math.prod(size) ** 2 * x.element_size()), 1)
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
    """The pixels that this part of the kernel covers, without padding, and the places where it does."""
    taken, into = [], []
    for index, dilation, padding, pixels, count in zip(
        part, geometry.dilation, geometry.padding, size, places, strict=True
    ):
        shift = index * dilation - padding
        first, last = max(0, -shift), max(min(count, pixels - shift), 0)
        into.append(slice(first, max(last, first)))
        taken.append(slice(first + shift, max(last, first) + shift))
    return tuple(taken), tuple(into)
