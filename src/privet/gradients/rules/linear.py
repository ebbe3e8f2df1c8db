"""Linear maps: ``nn.Linear`` on any number of dimensions, ``F.linear``, and ``x @ parameter``."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from privet.gradients.layout import canonical
from privet.gradients.norms import squared_norms
from privet.gradients.operation import Operation, operation
from privet.gradients.use import Budget, Use

_CACHE_BYTES = 2**20

_STEP, _ROUND = 32, 16
"""A Gram matrix is formed in four steps, of at least so many rows and a multiple of so many: of two to eight steps it was
the fastest at lengths of 64 to 512 (AMD EPYC with AVX2, one thread, process time, torch 2.13)."""


@operation("linear")
def linear(op: Operation) -> Any:
    x, weight, bias = op.argument(0, "input"), op.argument(1, "weight"), op.argument(2, "bias")
    slots = {name: t for name, t in (("weight", weight), ("bias", bias)) if op.tracks(t)}
    if op.tracks(x) or not slots:
        return op.generic()
    out = _applied(x, weight.detach(), None if bias is None else bias.detach())
    use = Linear(op.module, op.records, slots)
    use.input_stride, use.output_stride = op.stride(x), op.stride_after(x, out)
    return op.record(out, use, x, stride=use.output_stride)


def _applied(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The linear map as one matrix product: without a trained weight torch makes many of an input that is not contiguous."""
    rows = x.reshape(-1, x.shape[-1]) if x.ndim > 2 else x
    out = torch.nn.functional.linear(rows, weight, bias)
    return out.view(*x.shape[:-1], -1) if x.ndim > 2 else out


@operation("matmul", "__matmul__", "mm")
def matmul(op: Operation) -> Any:
    x, weight = op.argument(0, "input"), op.argument(1, "other")
    if op.tracks(x) or not op.tracks(weight) or weight.ndim != 2:
        return op.generic()
    return linear(op.replaced(torch.nn.functional.linear, (x, op.derive(weight.t, weight), None)))


class Linear(Use):
    per_record = ("x", "grad", "sums")
    input_stride: int
    output_stride: int
    x: Tensor | None = None
    grad: Tensor | None = None
    sums: Tensor | None = None

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: Budget) -> None:
        dtype = next(iter(self.slots.values())).dtype
        x = as_sequences(saved[0], self.input_stride, self.records).to(dtype)
        grad = as_sequences(grad, self.output_stride, self.records).to(dtype)
        self.x, self.grad = x, grad
        self._choose_method(budget)

    def join(self, others: Sequence[Use], budget: Budget) -> Use | None:
        """Several calls are one call on the joined sequences."""
        parts = [use for use in (self, *others) if isinstance(use, Linear)]
        inputs = [use.x for use in parts if use.x is not None]
        grads = [use.grad for use in parts if use.grad is not None]
        if len(inputs) <= len(others) or len(grads) <= len(others):
            return None
        whole = copy(self)
        whole.x, whole.grad = torch.cat(inputs, 1), torch.cat(grads, 1)
        whole._choose_method(budget)
        return whole

    def _choose_method(self, budget: Budget) -> None:
        assert self.x is not None and self.grad is not None
        length, width, height = self.x.shape[1], self.x.shape[2], self.grad.shape[2]
        if length == 1:
            self.method = "product"
            return
        # Multiplications per record, beyond those of the plain weight gradient.
        gram = length * (width + height)
        if "weight" not in self.slots:
            self.hold(self.form(slice(0, self.records)))
            self.x = self.grad = None
        elif gram >= width * height and budget.take(self.instance_bytes()):
            self._hold_instances()
        else:
            self.method = "gram" if gram < 2 * width * height else "chunks"

    def _hold_instances(self) -> None:
        """Form and measure a few records at a time, so that their norms are taken in the cache."""
        assert self.x is not None and self.grad is not None
        weight = self.x.new_empty(self.records, self.grad.shape[2], self.x.shape[2])
        norms = torch.empty(self.records, dtype=torch.float64)
        for rows in self.chunks(_CACHE_BYTES):
            torch.bmm(self.grad[rows].mT, self.x[rows], out=weight[rows])
            norms[rows] = squared_norms(weight[rows])
        formed = {"weight": weight, "bias": self.grad.sum(1)} if "bias" in self.slots else {"weight": weight}
        self.hold(formed)
        self.norms = {"weight": norms}
        self.x = self.grad = None

    def form(self, rows: slice) -> dict[str, Tensor]:
        assert self.x is not None and self.grad is not None
        grad = self.grad[rows]
        formed = {}
        if "weight" in self.slots:
            formed["weight"] = torch.bmm(grad.mT, self.x[rows])
        if "bias" in self.slots:
            formed["bias"] = grad.sum(1)
        return formed

    def form_squared_norms(self) -> dict[str, Tensor]:
        assert self.x is not None and self.grad is not None
        if self.method == "chunks":
            return super().form_squared_norms()
        norms = {}
        if self.method == "product":
            norms["bias"] = squared_norms(self.grad)
            if "weight" in self.slots:
                norms["weight"] = squared_norms(self.x) * norms["bias"]
            return norms
        if "bias" in self.slots:
            norms["bias"] = squared_norms(self.summed_grad())
        if "weight" in self.slots:
            norms["weight"] = gram_squared_norms(self.x, self.grad_gram())
        return norms

    def scaled_squared_norms(self, scales: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.method != "product":
            return super().scaled_squared_norms(scales)
        assert self.x is not None and self.grad is not None
        # The square of an outer product is the outer product of the squares.
        x, grad = self.x[:, 0].square(), self.grad[:, 0].square()
        products = {
            "weight": lambda scale: (grad @ scale).mul_(x).sum(1, dtype=torch.float64),
            "bias": lambda scale: (grad * scale).sum(1, dtype=torch.float64),
        }
        return {name: products[name](scales[name].square()) for name in self.slots}

    def summed_grad(self) -> Tensor:
        """The output gradients of each record summed over its sequence: the gradients of the bias."""
        if self.sums is None:
            assert self.grad is not None
            self.sums = self.grad.sum(1) if self.grad.shape[1] > 1 else self.grad.squeeze(1)
        return self.sums

    def grad_gram(self) -> list[Tensor]:
        assert self.grad is not None
        return gram_blocks(self.grad)

    def form_weighted_sum(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        assert self.x is not None and self.grad is not None
        summed = {}
        if "bias" in self.slots:
            summed["bias"] = weights["bias"].to(self.grad.dtype) @ self.summed_grad()
        if "weight" in self.slots:
            x, grad, scale = self.x, self.grad, weights["weight"].to(self.grad.dtype)
            if self.method == "product":
                x, grad, scale = x.squeeze(1), grad.squeeze(1), scale.unsqueeze(1)
            elif grad.stride(0) < grad.stride(1):
                # Records inside sequences: then so they are flattened, without a copy.
                x, grad, scale = x.transpose(0, 1), grad.transpose(0, 1), scale[:, None]
            else:
                scale = scale[:, None, None]
            if x.shape[-1] < grad.shape[-1]:
                x = x * scale
            else:
                grad = grad * scale
            summed["weight"] = _product(grad.flatten(0, -2), x.flatten(0, -2))
        return summed


def as_sequences(tensor: Tensor, stride: int, records: int) -> Tensor:
    """`tensor` as ``(records, length, features)``."""
    if tensor.ndim == 2 and len(tensor) == records and stride == tensor.shape[1]:
        return tensor.unsqueeze(1)
    return canonical(tensor, stride, records).reshape(records, -1, tensor.shape[-1])


def _product(grad: Tensor, x: Tensor) -> Tensor:
    """``grad.T @ x``: the narrower matrix goes first, which is up to six times as fast."""
    return grad.mT @ x if grad.shape[1] <= x.shape[1] else (x.mT @ grad).mT.contiguous()


def gram_blocks(rows: Tensor) -> list[Tensor]:
    """The Gram matrix of each ``rows[i]``, by steps: it is symmetric, so each meets only itself and what comes after."""
    length = rows.shape[1]
    step = max(-(-length // (4 * _ROUND)) * _ROUND, _STEP)
    return [torch.bmm(rows[:, start : start + step], rows[:, start:].mT) for start in range(0, length, step)]


def gram_squared_norms(x: Tensor, grad_gram: list[Tensor]) -> Tensor:
    """Squared norms of ``grad[i].T @ x[i]`` without forming it: the sum of the product of two Gram matrices."""
    total = torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
    for block, of_grad in zip(gram_blocks(x), grad_gram, strict=True):
        products = block.mul_(of_grad)
        # All but the square in front stand for their mirror images, too.
        square = products[:, :, : products.shape[1]]
        total += 2 * products.sum((1, 2), dtype=torch.float64) - square.sum((1, 2), dtype=torch.float64)
    return total.clamp_(min=0)
