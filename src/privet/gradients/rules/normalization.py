"""Normalizations that keep records apart, and PReLU: the gradient of a record is a sum over its positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from privet.gradients.marks import Position, canonical, position
from privet.gradients.operation import Operation, Receive, operation
from privet.gradients.rules.generic import own_copy
from privet.gradients.use import MemoryBudget, Use

_CHUNK_BYTES = 2**20
"""Elementwise passes use chunks of this size, so that the next pass finds its input in the cache. Of 64 KiB to 4 MiB it was the
fastest for the shapes of ResNet8, WRN-16-4 and a transformer (AMD EPYC, one thread, process time)."""
_ROW = 512
"""Coefficients for each channel are repeated to rows of this length: elementwise operations on rows of 16 are slow."""


_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_channels_last(x: Tensor) -> bool:
    return x.ndim in _CHANNELS_LAST and x.is_contiguous(memory_format=_CHANNELS_LAST[x.ndim])


def in_format_of(x: Tensor, tensor: Tensor) -> Tensor:
    """`tensor` in channels-last order if `x` is, else in row-major order."""
    if is_channels_last(x) and not x.is_contiguous():
        return tensor.contiguous(memory_format=_CHANNELS_LAST[x.ndim])
    return tensor.contiguous()


def _positions_and_channels(x: Tensor) -> Tensor:
    """A channels-last tensor as ``(rows, positions, channels)``."""
    return x.movedim(1, -1).flatten(1, -2)


def _chunks(rows: int, size: int) -> Iterator[slice]:
    step = max(_CHUNK_BYTES * rows // max(size, 1), 1)
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def _products(a: Tensor, b: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """``a * b``, chunk by chunk in one buffer, without writing all of it to memory."""
    buffer = None
    for rows in _chunks(a.shape[0], a.numel() * a.element_size()):
        buffer = torch.empty_like(a[rows]) if buffer is None else buffer[: rows.stop - rows.start]
        yield rows, torch.mul(a[rows], b[rows], out=buffer)


def summed_products(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """``(a * b).sum(dim)``."""
    sums = a.new_empty(a.shape[:dim] + a.shape[dim + 1 :])
    for rows, product in _products(a, b):
        torch.sum(product, dim, out=sums[rows])
    return sums


def weighted_products(a: Tensor, b: Tensor, weights: Tensor) -> Tensor:
    """``weights @ (a * b)`` for each row."""
    sums = a.new_empty(a.shape[0], weights.shape[1], a.shape[2])
    for rows, product in _products(a, b):
        torch.bmm(weights[rows], product, out=sums[rows])
    return sums


def channel_sums(x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """``(grad * x)`` and ``grad`` summed over the positions: ``(rows, channels)`` each."""
    if is_channels_last(x) and not x.is_contiguous():
        x, grad, dim = _positions_and_channels(x), _positions_and_channels(grad), 1
    else:
        x, grad, dim = x.reshape(*x.shape[:2], -1), grad.reshape(*x.shape[:2], -1), 2
    return summed_products(x, grad, dim), grad.sum(dim)


def combined(grad: Tensor, x: Tensor, of_grad: Tensor, of_x: Tensor, constant: Tensor) -> Tensor:
    """``of_grad * grad + of_x * x + constant`` with factors for each row and channel, in channels-last order."""
    result = torch.empty_like(x)
    rows, channels, positions = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    repeat = math.gcd(max(_ROW // channels, 1), positions)
    views = [_positions_and_channels(t).view(rows, -1, repeat * channels) for t in (result, grad, x)]
    factors = [t.repeat(1, 1, repeat) for t in (of_grad, of_x, constant)]
    for chunk in _chunks(rows, x.numel() * x.element_size()):
        out, grads, inputs = (view[chunk] for view in views)
        torch.addcmul(factors[2][chunk], grads, factors[0][chunk], out=out).addcmul_(inputs, factors[1][chunk])
    return result


@operation("group_norm")
def group_norm(op: Operation) -> Any:
    x, weight, bias = op.argument(0, "input"), op.argument(2, "weight"), op.argument(3, "bias")
    groups, eps = op.argument(1, "num_groups"), op.argument(4, "eps", 1e-5)
    if weight is None or x.dtype != weight.dtype or not (x.is_contiguous() or is_channels_last(x)):
        return _affine(op, x, weight, bias, lambda x: _group_statistics(x, groups, eps))
    use = GroupNorm(op.module, op.records, _slots(op, x, weight, bias))
    use.at, use.weight = _records_in_front(op, x), weight.detach()
    size = (x.shape[0], x.shape[1], math.prod(x.shape[2:]))
    with torch.no_grad():
        out, mean, rstd = torch.native_group_norm(x, use.weight, _detached(op, bias), *size, groups, eps)
    anchor = torch.empty((), requires_grad=True)
    return _WithInputGradient.apply(x, anchor, use, op.receiver(use), out, mean, rstd)  # type: ignore[no-untyped-call]


@operation("batch_norm")
def batch_norm(op: Operation) -> Any:
    x, weight, bias = (op.argument(i, name) for i, name in enumerate(("input", "weight", "bias")))
    mean, variance, eps = op.argument(3, "running_mean"), op.argument(4, "running_var"), op.argument(7, "eps")
    return _affine(op, x, weight, bias, lambda _: (mean, (variance + eps).rsqrt()))


@operation("instance_norm")
def instance_norm(op: Operation) -> Any:
    x, weight, bias, mean, variance = op.args[:5]
    if op.args[5] and mean is not None:
        raise op.recorder.refusal("it keeps running statistics of the records; build it with track_running_stats=False")
    rows, channels = x.shape[:2]
    at = _records_in_front(op, x)

    def folded(tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        own = own_copy(op, tensor, Position(-2, at.outer, at.inner)) if op.tracks(tensor) else tensor
        return own.expand(rows, channels).reshape(-1)

    # As in torch, the batch is folded into the channels, but each record has its own copy of the parameters. Three
    # dimensions, because torch's backward pass is wrong if one of two images is channels-last.
    images = x.contiguous().view(1, rows * channels, -1)
    out = torch.batch_norm(images, folded(weight), folded(bias), folded(mean), folded(variance), *op.args[5:])
    return out.view(x.shape)


@operation("prelu")
def prelu(op: Operation) -> Any:
    x, weight = op.argument(0, "input"), op.argument(1, "weight")
    at = _records_in_front(op, x)
    channels = (weight.numel(),) + (1,) * (x.ndim - 2) if x.ndim > 1 else ()
    shaped = op.derive(lambda: weight.view(channels), weight)
    own = own_copy(op, shaped, Position(-x.ndim, at.outer, at.inner))
    return torch._prelu_kernel(x, own.to(x.dtype))


@operation("layer_norm")
def layer_norm(op: Operation) -> Any:
    x, shape, weight, bias = (op.argument(i, n) for i, n in enumerate(("input", "normalized_shape", "weight", "bias")))
    use = LayerNorm(op.module, op.records, _slots(op, x, weight, bias))
    use.stride = _records_outside(op, x, len(shape))
    weight, bias = _detached(op, weight), _detached(op, bias)
    out, mean, rstd = torch.native_layer_norm(x, shape, weight, bias, op.argument(4, "eps", 1e-5))
    return op.record(out, use, x, mean.detach(), rstd.detach())


@operation("rms_norm")
def rms_norm(op: Operation) -> Any:
    x, shape, weight, eps = (op.argument(i, n) for i, n in enumerate(("input", "normalized_shape", "weight", "eps")))
    use = RmsNorm(op.module, op.records, _slots(op, x, weight, None))
    use.stride, use.eps = _records_outside(op, x, len(shape)), eps
    return op.record(torch.rms_norm(x, shape, weight.detach(), eps), use, x)


# --- what the rules share --------------------------------------------------------------------------------------------


def _slots(op: Operation, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> dict[str, Tensor]:
    if op.tracks(x) or op.recorder.stride(x) is None:
        raise op.recorder.refusal(f"`{op.name}` normalizes a parameter with values that depend on the records")
    return {name: t for name, t in (("weight", weight), ("bias", bias)) if t is not None and op.tracks(t)}


def _detached(op: Operation, tensor: Tensor | None) -> Tensor | None:
    return tensor.detach() if tensor is not None and op.tracks(tensor) else tensor


def _records_in_front(op: Operation, x: Tensor) -> Position:
    at = position(x.shape, op.stride(x), op.records)
    if at is None or at.dim != 0:
        raise op.recorder.refusal(f"`{op.name}` does not have the records in the first dimension of its input")
    return at


def _records_outside(op: Operation, x: Tensor, normalized: int) -> int:
    at = position(x.shape, op.stride(x), op.records)
    if at is None or (at.dim >= x.ndim - normalized and op.records > 1):
        raise op.recorder.refusal(f"`{op.name}` normalizes over the records")
    return op.stride(x)


def _affine(
    op: Operation,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> Tensor:
    use = Affine(op.module, op.records, _slots(op, x, weight, bias))
    use.at, use.statistics = _records_in_front(op, x), statistics
    known = {id(t): t.detach() for t in use.slots.values()}
    out = op.func(
        *(known.get(id(value), value) for value in op.args),
        **{key: known.get(id(value), value) for key, value in op.kwargs.items()},
    )
    return op.record(out, use, x)


def _group_statistics(x: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    rows, channels, size = x.shape[0], x.shape[1], math.prod(x.shape[2:])
    _, mean, rstd = torch.native_group_norm(x.contiguous(), None, None, rows, channels, size, groups, eps)
    return mean.repeat_interleave(channels // groups, 1), rstd.repeat_interleave(channels // groups, 1)


# --- uses ------------------------------------------------------------------------------------------------------------


class _PerChannel(Use):
    """A weight and a bias for each channel, which is dimension 1."""

    at: Position

    def hold_rows(self, budget: MemoryBudget, **rows: Tensor) -> None:
        """Keep the sums of each row of the batch, added up if several rows belong to one record."""
        budget.take(self.instance_bytes())
        split = (self.at.outer, self.records, self.at.inner)
        self.hold({name: rows[name].unflatten(0, split).sum((0, 2)) for name in self.slots}, "sums")


class Affine(_PerChannel):
    """``(x - mean) * rstd * weight + bias`` with statistics that are known or cheap."""

    statistics: Callable[[Tensor], tuple[Tensor, Tensor]]

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: MemoryBudget) -> None:
        dtype = next(iter(self.slots.values())).dtype
        x = saved[0].to(dtype)
        grad = in_format_of(x, grad.to(dtype))
        products, sums = channel_sums(x, grad)
        mean, rstd = self.statistics(x)
        self.hold_rows(budget, weight=(products - sums * mean) * rstd, bias=sums)


class _WithInputGradient(torch.autograd.Function):
    """An operation whose use computes the gradient of its input in the same passes as those of its parameters."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, _anchor: Tensor, use: GroupNorm, receive: Receive, out: Tensor, *statistics: Tensor
    ) -> Tensor:
        ctx.save_for_backward(x, *statistics)
        ctx.use, ctx.receive = use, receive
        return out.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ctx.use.wants_input_gradient = ctx.needs_input_grad[0]
        ctx.receive(ctx.saved_tensors, grad)
        x_grad, ctx.use.input_gradient = ctx.use.input_gradient, None
        return x_grad, None, None, None, None, *(None for _ in ctx.saved_tensors[1:])


class GroupNorm(_PerChannel):
    weight: Tensor
    wants_input_gradient: bool = True
    input_gradient: Tensor | None = None

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: MemoryBudget) -> None:
        x, mean, rstd = saved
        method = self._folded if x.is_contiguous() else self._channels_last
        weight, bias = method(x, mean, rstd, grad)
        self.hold_rows(budget, weight=weight, bias=bias)

    def _folded(self, x: Tensor, mean: Tensor, rstd: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """torch's own backward pass, with the rows of the batch as additional channels."""
        rows, channels, size = x.shape[0], x.shape[1], math.prod(x.shape[2:])
        self.input_gradient, weight, bias = torch.ops.aten.native_group_norm_backward(
            grad.contiguous().view(1, rows * channels, size),
            x.view(1, rows * channels, size),
            mean.view(1, -1),
            rstd.view(1, -1),
            self.weight.repeat(rows),
            1,
            rows * channels,
            size,
            mean.numel(),
            (self.wants_input_gradient, True, True),
        )
        if self.input_gradient is not None:
            self.input_gradient = self.input_gradient.view(x.shape)
        return weight.view(rows, channels), bias.view(rows, channels)

    def _channels_last(self, x: Tensor, mean: Tensor, rstd: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """The same in channels-last order, where torch's backward pass does not separate rows."""
        rows, channels, groups = x.shape[0], x.shape[1], mean.shape[1]
        grad = in_format_of(x, grad)
        products, sums = channel_sums(x, grad)
        grouped = (rows, groups, channels // groups)
        products, sums, weight = products.view(grouped), sums.view(grouped), self.weight.view(grouped[1:])
        mean, rstd = mean[..., None], rstd[..., None]
        if self.wants_input_gradient:
            share = 1 / (x[0].numel() // groups)
            sum_of_normal = (sums * weight).sum(2, keepdim=True)
            of_x = (sum_of_normal * mean - (products * weight).sum(2, keepdim=True)) * rstd**3 * share
            constant = -of_x * mean - sum_of_normal * rstd * share
            factors = [t.expand(grouped).reshape(rows, 1, channels) for t in (weight * rstd, of_x, constant)]
            self.input_gradient = combined(grad, x, *factors)
        return ((products - sums * mean) * rstd).view(rows, channels), sums.view(rows, channels)


class _PerFeature(Use):
    """A weight and a bias for each of the last dimensions."""

    stride: int

    def sequences(self, tensor: Tensor, stride: int) -> Tensor:
        """``(records, length, features)``; a statistic has one feature."""
        slot = next(iter(self.slots.values()))
        features = math.prod(tensor.shape[tensor.ndim - slot.ndim :])
        return canonical(tensor, stride, self.records).reshape(self.records, -1, features).to(slot.dtype)

    def hold_features(self, budget: MemoryBudget, **sums: Tensor | None) -> None:
        budget.take(self.instance_bytes())
        found = {name: t.view(self.records, *self.slots[name].shape) for name, t in sums.items() if t is not None}
        self.hold(found, "sums")


class LayerNorm(_PerFeature):
    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: MemoryBudget) -> None:
        x, mean, rstd = saved
        weight = bias = None
        x, grad = self.sequences(x, self.stride), self.sequences(grad, self.stride)
        mean, rstd = (self.sequences(t, self.stride // x.shape[2]).mT for t in (mean, rstd))
        if "weight" in self.slots:
            weight = weighted_products(x, grad, rstd) - torch.bmm(mean * rstd, grad)
        if "bias" in self.slots:
            bias = grad.sum(1)
        self.hold_features(budget, weight=weight, bias=bias)


class RmsNorm(_PerFeature):
    eps: float | None

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: MemoryBudget) -> None:
        shape = self.slots["weight"].shape
        normal = torch.rms_norm(saved[0], list(shape), None, self.eps)
        self.hold_features(
            budget, weight=summed_products(self.sequences(normal, self.stride), self.sequences(grad, self.stride), 1)
        )
