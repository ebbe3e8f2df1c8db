"""Convolutions and transposed convolutions in one, two and three dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from privet.gradients.layout import canonical, position
from privet.gradients.operation import Operation, operation
from privet.gradients.use import Budget, Use


@dataclass(frozen=True)
class Geometry:
    """How the kernel moves over its input; one number for each spatial dimension."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    """Zeros on both sides of the input."""
    further: tuple[int, ...]
    """Zeros on the far side alone: an even kernel with ``padding="same"``."""
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    output_padding: tuple[int, ...] = ()


@operation("conv1d", "conv2d", "conv3d")
def convolution(op: Operation) -> Any:
    kernel = op.argument(1, "weight").shape[2:]
    dilation = _each(op.argument(5, "dilation", 1), kernel)
    padding: Any = op.argument(4, "padding", 0)
    further = (0,) * len(kernel)
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        padding, further = tuple(t // 2 for t in total), tuple(t % 2 for t in total)
    elif padding == "valid":
        padding = 0
    geometry = Geometry(
        stride=_each(op.argument(3, "stride", 1), kernel),
        padding=_each(padding, kernel),
        further=further,
        dilation=dilation,
        groups=op.argument(6, "groups", 1),
    )
    return _recorded(op, geometry)


@operation("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(op: Operation) -> Any:
    kernel = op.argument(1, "weight").shape[2:]
    geometry = Geometry(
        stride=_each(op.argument(3, "stride", 1), kernel),
        padding=_each(op.argument(4, "padding", 0), kernel),
        further=(0,) * len(kernel),
        dilation=_each(op.argument(7, "dilation", 1), kernel),
        groups=op.argument(6, "groups", 1),
        transposed=True,
        output_padding=_each(op.argument(5, "output_padding", 0), kernel),
    )
    return _recorded(op, geometry)


def _each(value: Any, kernel: torch.Size) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return values * len(kernel) if len(values) == 1 else values


def _recorded(op: Operation, geometry: Geometry) -> Any:
    x, weight, bias = op.argument(0, "input"), op.argument(1, "weight"), op.argument(2, "bias")
    slots = {name: t for name, t in (("weight", weight), ("bias", bias)) if op.tracks(t)}
    if op.tracks(x) or not slots:
        return op.generic()
    stride = op.stride(x)
    at = position(x.shape, stride, op.records)
    unbatched = x.ndim < weight.ndim
    if at is None or at.dim != 0 or (unbatched and op.records > 1) or op.recorder.stride(weight) is not None:
        raise op.recorder.refusal(f"`{op.name}` does not have the records in the first dimension of its input")
    known = {id(t): t.detach() for t in slots.values()}
    arguments = [known.get(id(value), value) for value in op.args]
    out = op.func(*arguments, **{key: known.get(id(value), value) for key, value in op.kwargs.items()})
    use = Convolution(op.module, op.records, slots)
    use.geometry, use.kernel, use.unbatched = geometry, weight.shape, unbatched
    use.input_stride, use.output_stride = stride, op.stride_after(x, out)
    return op.record(out, use, x)


class Convolution(Use):
    per_record = ("x", "grad")
    geometry: Geometry
    kernel: torch.Size
    unbatched: bool
    input_stride: int
    output_stride: int
    x: Tensor | None = None
    grad: Tensor | None = None
    """Both as ``(records, images, channels, *positions)``."""

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: Budget) -> None:
        dtype = next(iter(self.slots.values())).dtype
        self.x = self._images(saved[0], self.input_stride).to(dtype)
        self.grad = self._images(grad, self.output_stride).to(dtype)
        self.method = "chunks"
        if "weight" not in self.slots or budget.take(self.instance_bytes()):
            self.hold(self.form(slice(0, self.records)))
            self.x = self.grad = None

    def _images(self, tensor: Tensor, stride: int) -> Tensor:
        if self.unbatched:
            return tensor[None, None]
        return canonical(tensor, stride, self.records).flatten(1, 2)

    def form(self, rows: slice) -> dict[str, Tensor]:
        assert self.x is not None and self.grad is not None
        x, grad = self.x[rows], self.grad[rows]
        formed = {}
        if "weight" in self.slots:
            formed["weight"] = by_groups(x, grad, self.kernel, self.geometry)
        if "bias" in self.slots:
            formed["bias"] = grad.flatten(3).sum((1, 3))
        return formed


def by_groups(x: Tensor, grad: Tensor, kernel: torch.Size, geometry: Geometry) -> Tensor:
    """The weight gradient of each record: one convolution with as many groups of channels as records."""
    records = x.shape[0]
    if any(geometry.further):
        x = functional.pad(x, [size for extra in reversed(geometry.further) for size in (0, extra)])
    formed: Tensor = torch.ops.aten.convolution_backward(
        grad.transpose(0, 1).flatten(1, 2),
        x.transpose(0, 1).flatten(1, 2),
        x.new_empty(()).expand(records * kernel[0], *kernel[1:]),
        None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        geometry.transposed,
        geometry.output_padding or (0,) * len(geometry.stride),
        records * geometry.groups,
        (False, True, False),
    )[1]
    return formed.view(records, *kernel)
