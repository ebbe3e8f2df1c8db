"""Convolutions and transposed convolutions in one, two and three dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from privet.gradients.marks import canonical, position
from privet.gradients.numerics import scaled_squared_norms, squared_norms, weigh
from privet.gradients.operation import Operation, operation
from privet.gradients.rules.grams import Rounding, bounded_squared_norms
from privet.gradients.rules.linear import at_least_single
from privet.gradients.rules.patches import Geometry, Instances, Patches, by_patches, by_pixels, has_channels_last
from privet.gradients.use import MemoryBudget, Use

_MULTIPLY, _COPY, _KEEP, _SHIFT, _GRAM = 0.03, 0.4, 1.2, 0.7, 10_000
"""Costs in nanoseconds: of a multiplication in a matrix product; of a number copied into a patch; of a number of an instance
that is kept (written to fresh memory, squared, read again); of a number of a Gram matrix added at an offset; and of the Gram
matrices of a record, however small. Fitted to the convolutions of a small CNN, ResNet8 and WRN-16-4 (AMD EPYC with AVX2, one
thread, process time, torch 2.13)."""

_PIECE_BYTES, _PASSING_BYTES = 2**22, 2**23
"""Instances are kept in pieces of about the first size, which fit into memory that activations have freed; larger pieces need
fresh memory, which costs a page fault for every 4 KiB. Instances that are formed, added up and discarded come in larger pieces,
because adding several at a time is faster."""


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
    stride = _each(op.argument(3, "stride", 1), kernel)
    groups = op.argument(6, "groups", 1)
    return _recorded(op, Geometry(tuple(kernel), stride, _each(padding, kernel), further, dilation, groups))


@operation("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(op: Operation) -> Any:
    kernel = op.argument(1, "weight").shape[2:]
    geometry = Geometry(
        kernel=tuple(kernel),
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
    use.geometry, use.unbatched = geometry, unbatched
    use.input_stride, use.output_stride = stride, op.stride_after(x, out)
    return op.record(out, use, x, stride=use.output_stride)


class Convolution(Use):
    per_record = ("x", "grad", "sums")
    geometry: Geometry
    unbatched: bool
    input_stride: int
    output_stride: int
    x: Tensor | None = None
    grad: Tensor | None = None
    """The tensor that the kernel moves over and the tensor it is multiplied with, ``(records, images, channels, *positions)``.
    """
    sums: Tensor | None = None
    """The gradient of the bias for each record."""
    instances: list[tuple[slice, Instances]] | None = None
    """The gradients of the weight for slices of the records, if they are kept."""

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: MemoryBudget) -> None:
        dtype = at_least_single(next(iter(self.slots.values())).dtype)
        x, grad = self._images(saved[0], self.input_stride).to(dtype), self._images(grad, self.output_stride).to(dtype)
        if "bias" in self.slots:
            self.sums, self.method = grad.flatten(3).sum((1, 3)), "sums"
        if "weight" not in self.slots:
            return
        self.x, self.grad = (grad, x) if self.geometry.transposed else (x, grad)
        self.method = cheapest_method(self.x, self.grad, self.geometry, lambda: budget.take(self.instance_bytes()))
        if self.method == "instances":
            self.instances, norms = [], []
            for rows, piece in self._formed(self.chunks(_PIECE_BYTES)):
                self.instances.append((rows, piece))
                norms.append(piece.squared_norms())  # now, while the piece is in the cache
            self.norms["weight"] = torch.cat(norms)
            self.x = self.grad = None

    def _images(self, tensor: Tensor, stride: int) -> Tensor:
        if self.unbatched:
            return tensor[None, None]
        return canonical(tensor, stride, self.records).flatten(1, 2)

    def _pieces(self) -> Iterable[tuple[slice, Instances]]:
        """The gradients of the weight for slices of the records. Each is valid until the next one is requested; every pass over
        them yields the same numbers."""
        return self._formed(self.chunks(_PASSING_BYTES), passing=True) if self.instances is None else self.instances

    def _formed(self, slices: Iterable[slice], *, passing: bool = False) -> Iterator[tuple[slice, Instances]]:
        assert self.x is not None and self.grad is not None
        x, grad, geometry = self.x, self.grad, self.geometry
        if self.method not in _GRAMS and goes_by_groups(x, grad, geometry):
            yield from ((chunk, by_groups(x[chunk], grad[chunk], geometry)) for chunk in slices)
        else:
            patches = Patches(x, grad, geometry)
            yield from ((chunk, patches.instances(chunk, passing=passing)) for chunk in slices)

    def instantiate(self, rows: slice) -> dict[str, Tensor]:
        found = {}
        if "weight" in self.slots:
            found["weight"] = self._instantiated(rows)
        if self.sums is not None:
            found["bias"] = self.sums[rows]
        return found

    def _instantiated(self, rows: slice) -> Tensor:
        if self.instances is None:
            return torch.cat([piece.of(slice(None)) for _, piece in self._formed((rows,))])
        return torch.cat(
            [
                piece.of(slice(max(rows.start - kept.start, 0), rows.stop - kept.start))
                for kept, piece in self.instances
                if kept.start < rows.stop and rows.start < kept.stop
            ]
        )

    def squared_norms(self) -> dict[str, Tensor]:
        norms = {} if self.sums is None else {"bias": squared_norms(self.sums)}
        if "weight" in self.slots:
            norms["weight"] = self._weight_norms()
        return norms

    def _weight_norms(self) -> Tensor:
        if "weight" in self.norms:
            return self.norms["weight"]
        if self.method not in _GRAMS:
            return torch.cat([piece.squared_norms() for _, piece in self._pieces()])
        assert self.x is not None and self.grad is not None
        x, grad, geometry = self.x, self.grad, self.geometry
        kernel = math.prod(geometry.kernel)
        # Dot products of pixels are shorter; they are then added up over the kernel.
        width, further = (x.shape[2], kernel) if self.method == "gram of pixels" else (x.shape[2] * kernel, 0)
        rounding = Rounding(x.shape[1] * math.prod(grad.shape[3:]), width, grad.shape[2], further, x.dtype)
        return bounded_squared_norms(x, grad, rounding, lambda x, grad: _GRAMS[self.method](x, grad, geometry))

    def scaled_squared_norms(self, scales: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {} if self.sums is None else {"bias": scaled_squared_norms(self.sums, scales["bias"])}
        if "weight" in self.slots:
            pieces = (piece.of(slice(None)) for _, piece in self._pieces())
            found["weight"] = torch.cat([scaled_squared_norms(piece, scales["weight"]) for piece in pieces])
        return found

    def weighted_sum(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        summed = {} if self.sums is None else {"bias": weigh(self.sums, weights["bias"])}
        if "weight" in self.slots:
            summed["weight"] = Instances.weighted_sum(self._pieces(), weights["weight"])
        return summed

    def rounding(self, slot: str) -> Tensor | None:
        exact = slot == "bias" or self.instances is not None
        return self.zeros() if exact else None

    def drop(self, bad: Tensor) -> None:
        super().drop(bad)
        for rows, piece in self.instances or ():
            piece.blocks[:, bad[rows]] = 0

    def kept_bytes(self) -> int:
        blocks = [piece.blocks for _, piece in self.instances or ()]
        return super().kept_bytes() + sum(block.numel() * block.element_size() for block in blocks)


_GRAMS = {"gram of patches": by_patches, "gram of pixels": by_pixels}


def _weight_gradient(x: Tensor, grad: Tensor, weight: Tensor, geometry: Geometry, groups: int) -> Tensor:
    if any(geometry.further):
        x = functional.pad(x, [size for extra in reversed(geometry.further) for size in (0, extra)])
    formed: Tensor = torch.ops.aten.convolution_backward(
        x if geometry.transposed else grad,
        grad if geometry.transposed else x,
        weight,
        None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        geometry.transposed,
        geometry.output_padding or (0,) * len(geometry.stride),
        groups,
        (False, True, False),
    )[1]
    return formed


def by_groups(x: Tensor, grad: Tensor, geometry: Geometry) -> Instances:
    """The weight gradients of all records by one convolution with a group of channels for each record."""
    records, groups = x.shape[0], geometry.groups
    kernel = (grad.shape[2], x.shape[2] // groups, *geometry.kernel)
    stand_in = x.new_empty(()).expand(records * kernel[0], *kernel[1:])
    folded_x, folded_grad = x.transpose(0, 1).flatten(1, 2), grad.transpose(0, 1).flatten(1, 2)
    formed = _weight_gradient(folded_x, folded_grad, stand_in, geometry, records * groups)
    return Instances(formed.view(1, records, *kernel), (*range(1, 2 + len(kernel)), 0))


def goes_by_groups(x: Tensor, grad: Tensor, geometry: Geometry) -> bool:
    """Whether `by_groups` is faster than patches: it is for few channels in row-major order."""
    if geometry.groups > 1:
        return True
    few = x.shape[2] >= 8 and grad.shape[2] <= 32 and math.prod(grad.shape[3:]) >= 128
    return few and not has_channels_last(x)


def cheapest_method(x: Tensor, grad: Tensor, geometry: Geometry, may_keep: Callable[[], bool]) -> str:
    """The cheapest way to compute the norms. All methods form the weight gradient of each record for the sum, so only the
    additional cost counts."""
    inputs, outputs, kernel = x.shape[2] // geometry.groups, grad.shape[2], math.prod(geometry.kernel)
    places, pixels = x.shape[1] * math.prod(grad.shape[3:]), math.prod(x.shape[3:])
    numbers = inputs * kernel * outputs
    costs = {"chunks": numbers * places * _MULTIPLY + inputs * kernel * places * _COPY}
    if geometry.groups == 1:
        grams = (inputs * kernel + outputs) * places**2
        costs["gram of patches"] = _GRAM + grams * _MULTIPLY + inputs * kernel * places * _COPY
        if x.shape[1] == math.prod(geometry.stride) == 1 and not geometry.transposed:
            grams = inputs * pixels**2 + outputs * places**2
            costs["gram of pixels"] = _GRAM + grams * _MULTIPLY + kernel * places**2 * _SHIFT
    # The cost of grouped convolutions was not measured: their instances are kept if the budget allows it.
    if (geometry.groups > 1 or numbers * _KEEP <= min(costs.values())) and may_keep():
        return "instances"
    return min(costs, key=lambda method: costs[method])
