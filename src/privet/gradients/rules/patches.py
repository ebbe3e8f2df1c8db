"""Patches of a convolution's input as matrices: their products with the output's gradient are weight gradients.

Everywhere `x` is what the kernel moves over and `grad` what it meets there, both ``(records, images, channels,
*positions)``. For a transposed convolution these are the gradient of the output and the input, in this order.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from privet.gradients.norms import squared_norms
from privet.gradients.use import weigh

_BUFFER_BYTES = 2**20
"""Patches are copied into a reused buffer of about this size. Of 256 KiB, 1 MiB and 4 MiB it was the fastest on the
convolutions of a small CNN, ResNet8 and WRN-16-4 (AMD EPYC with AVX2, one thread, process time)."""
_ENOUGH_COLUMNS = 48
"""With fewer columns a matrix product is so slow that copying whole patches is cheaper; same measurement."""


@dataclass(frozen=True)
class Geometry:
    """How the kernel moves; one number for each spatial dimension."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    """Zeros on both sides of the input."""
    further: tuple[int, ...]
    """Zeros on the far side alone: an even kernel with ``padding="same"``."""
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = ()

    def with_still_dimension(self) -> Geometry:
        """With a dimension of size 1 in front, along which the kernel does not move."""
        return replace(
            self,
            kernel=(1, *self.kernel),
            stride=(1, *self.stride),
            padding=(0, *self.padding),
            further=(0, *self.further),
            dilation=(1, *self.dilation),
        )


class _Workspace(threading.local):
    """Memory that is used again and again: fresh memory costs a page fault for every 4 KiB."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    def take(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        size = math.prod(shape)
        kept = self.kept.get(name)
        if kept is None or kept.numel() < size or kept.dtype != like.dtype or kept.device != like.device:
            kept = like.new_empty(size)
            if size * like.element_size() <= 2 * _BUFFER_BYTES:
                self.kept[name] = kept
        return kept[:size].view(shape)


_workspace = _Workspace()


def has_channels_last(images: Tensor) -> bool:
    """Whether the channels of ``(records, images, channels, *positions)`` are next to each other in memory."""
    return images.shape[2] > 1 and images.stride(2) == 1 and images.stride(-1) != 1


@dataclass
class Instances:
    """The weight gradient of each record, in the order in which it was formed."""

    blocks: Tensor
    """``(parts, records, outputs, inputs, *rest of the kernel)``, the inputs at the end where channels are last."""
    channels_last: bool
    whole: bool
    """There is one part, which is the whole kernel."""

    def squared_norms(self) -> Tensor:
        return torch.stack([squared_norms(part) for part in self.blocks]).sum(0)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self._as_weights(torch.stack([weigh(part, weights)[None] for part in self.blocks]))[0]

    def of(self, rows: slice) -> Tensor:
        """``(records, outputs, inputs, *kernel)``"""
        return self._as_weights(self.blocks[:, rows])

    def _as_weights(self, blocks: Tensor) -> Tensor:
        ordered: Tensor = (blocks.movedim(-1, 3) if self.channels_last else blocks).movedim(0, 3)
        return ordered.squeeze(3) if self.whole else ordered


class Patches:
    """The patches of `x`, in the memory format of `x`, chunk by chunk in one buffer.

    Of a kernel's dimensions all but the first are unrolled by copying. Along the first, a patch is the same copy
    further on: that saves two thirds of the copies of a 3x3 kernel. Rows are sorted by their remainder by the stride, so
    that the rows which one part of the kernel meets lie one after the other. `whole` unrolls the first one as well.
    """

    def __init__(self, x: Tensor, grad: Tensor, geometry: Geometry, *, whole: bool = False) -> None:
        whole = whole or x.shape[1] > 1 or x.shape[2] * math.prod(geometry.kernel[1:]) < _ENOUGH_COLUMNS
        if whole:
            geometry, x, grad = geometry.with_still_dimension(), x.unsqueeze(3), grad.unsqueeze(3)
        self.whole, self.geometry = whole, geometry
        self.images, self.inputs, self.outputs = x.shape[1], x.shape[2], grad.shape[2]
        self.size, self.positions = x.shape[3:], grad.shape[3:]
        self.columns = self.inputs * math.prod(geometry.kernel[1:])
        # Runs of few channels are copied more slowly than runs of positions.
        self.channels_last = has_channels_last(x) and self.columns >= _ENOUGH_COLUMNS
        self.x = x.movedim(2, -1) if self.channels_last else x
        if has_channels_last(grad):
            self.grad = grad.movedim(2, -1).flatten(1, -2).mT
        else:
            self.grad = grad.transpose(1, 2).flatten(2)
        """``(records, outputs, images * positions)``"""

    # --- weight gradients -------------------------------------------------------------------------------------------

    def instances(self, rows: slice) -> Instances:
        """The weight gradients of the records in `rows`."""
        parts, count = self.geometry.kernel[0], rows.stop - rows.start
        formed = self.x.new_empty(parts, count, self.outputs, self.columns)
        for chunk, matrices in self.chunks(rows):
            grad, into = self.grad[chunk], slice(chunk.start - rows.start, chunk.stop - rows.start)
            for part, matrix in enumerate(matrices):
                torch.bmm(grad, matrix, out=formed[part, into])
        kernel = self.geometry.kernel[1:]
        numbers = (*kernel, self.inputs) if self.channels_last else (self.inputs, *kernel)
        return Instances(formed.view(parts, count, self.outputs, *numbers), self.channels_last, self.whole)

    def squared_norms(self) -> Tensor:
        """The squared norms of the weight gradients, none of which is kept."""
        found = []
        for chunk, matrices in self.chunks(slice(0, self.x.shape[0])):
            grad, shape = self.grad[chunk], (chunk.stop - chunk.start, self.outputs, self.columns)
            formed = _workspace.take("gradients", shape, self.x)
            norms = [squared_norms(torch.bmm(grad, matrix, out=formed)) for matrix in matrices]
            found.append(torch.stack(norms).sum(0) if len(norms) > 1 else norms[0])
        return torch.cat(found)

    # --- patches ----------------------------------------------------------------------------------------------------

    def chunks(self, rows: slice) -> Iterator[tuple[slice, list[Tensor]]]:
        """Slices of the records, and their patches: for each part of the kernel, along its first dimension, a matrix
        ``(records, images * positions, columns)``."""
        g, x = self.geometry, self.x
        padded = [s + 2 * p + f for s, p, f in zip(self.size, g.padding, g.further, strict=True)]
        steps = -(-padded[0] // g.stride[0])
        padded[0] = steps * g.stride[0]
        moves = (self.images, g.stride[0], steps, *self.positions[1:])
        if padded == list(self.size):
            windows, inside = self._windows(x, moves)[rows], None
            if math.prod(g.kernel) == math.prod(g.stride) == 1:
                yield rows, self._matrices(windows)
                return
        per_record = self.columns * math.prod(moves) * x.element_size()
        count = min(max(_BUFFER_BYTES // per_record, 1), rows.stop - rows.start)
        if padded != list(self.size):
            frame = _workspace.take("frame", self._ordered((count, self.images), self.inputs, tuple(padded)), x).zero_()
            within = tuple(slice(p, p + s) for p, s in zip(g.padding, self.size, strict=True))
            inside = frame[self._ordered((slice(None), slice(None)), slice(None), within)]
            windows = self._windows(frame, moves)
        copied = _workspace.take("patches", (count, *windows.shape[1:]), x)
        matrices = self._matrices(copied)
        for start in range(rows.start, rows.stop, count):
            stop = min(start + count, rows.stop)
            if inside is None:
                copied[: stop - start].copy_(windows[start - rows.start : stop - rows.start])
            else:
                inside[: stop - start].copy_(x[start:stop])
                copied.copy_(windows)
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

    def _matrices(self, copied: Tensor) -> list[Tensor]:
        g, found = self.geometry, []
        unrolled = len(g.kernel)  # its other dimensions, and the channels
        for part in range(g.kernel[0]):
            first, remainder = divmod(part * g.dilation[0], g.stride[0])
            rows = slice(first, first + self.positions[0])
            if self.channels_last:
                found.append(copied.flatten(-unrolled)[:, :, remainder, rows].flatten(1, -2))
            else:
                found.append(copied.flatten(1, unrolled)[:, :, :, remainder, rows].flatten(2).mT)
        return found
