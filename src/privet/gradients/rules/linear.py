"""Linear maps: ``nn.Linear`` on any number of dimensions, ``F.linear``, and ``x @ parameter``."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from privet.gradients.layout import canonical
from privet.gradients.norms import scaled_squared_norms, squared_norms
from privet.gradients.operation import Operation, operation
from privet.gradients.rules.grams import GramSums, Rounding, bounded_squared_norms, product_of
from privet.gradients.use import Budget, Use
from privet.gradients.weighing import weigh

_CACHE_BYTES = 2**20

_SHORT = 16
"""Up to this length of a sequence the weighted sum is one product of matrices in float64. In longer ones it takes more
time than forming each record's gradient in float32 and adding these up in float64: 0.06 ns for each multiplication
against 0.03 and 0.5 for each number of the gradient (AMD EPYC with AVX2, one thread, process time, torch 2.13)."""

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
    chunk_bytes = _CACHE_BYTES
    input_stride: int
    output_stride: int
    x: Tensor | None = None
    grad: Tensor | None = None
    sums: Tensor | None = None

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: Budget) -> None:
        dtype = at_least_single(next(iter(self.slots.values())).dtype)
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
        for rows in self.chunks():
            torch.bmm(self.grad[rows].mT, self.x[rows], out=weight[rows])
            norms[rows] = squared_norms(weight[rows])
        formed = {"weight": weight, "bias": self.grad.sum(1)} if "bias" in self.slots else {"weight": weight}
        self.hold(formed)
        self.norms = {"weight": norms}
        self.x = self.grad = None

    def form(self, rows: slice) -> dict[str, Tensor]:
        assert self.x is not None and self.grad is not None
        formed = {}
        if "weight" in self.slots:
            formed["weight"] = torch.bmm(self.grad[rows].mT, self.x[rows])
        if "bias" in self.slots:
            formed["bias"] = self.summed_grad()[rows]
        return formed

    # --- norms ------------------------------------------------------------------------------------------------------

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
            norms["weight"] = bounded_squared_norms(self.x, self.grad, self._rounding(), self._gram_sums)
        return norms

    def _gram_sums(self, x: Tensor, grad: Tensor) -> GramSums:
        return GramSums.of(gram_blocks(x), self.grad_gram() if grad is self.grad else gram_blocks(grad))

    def grad_gram(self) -> list[Tensor]:
        assert self.grad is not None
        return gram_blocks(self.grad)

    def _rounding(self) -> Rounding:
        assert self.x is not None and self.grad is not None
        formed = torch.float64 if self._sums_at_once() else self.x.dtype
        return Rounding(self.x.shape[1], self.x.shape[2], self.grad.shape[2], 0, formed)

    def rounding(self, slot: str) -> Tensor | None:
        exact = super().rounding(slot)
        if exact is not None or self.x is None or self.grad is None:
            return exact
        if slot == "bias":
            return torch.zeros(self.records, dtype=torch.float64)
        lengths = (squared_norms(t.flatten(0, 1)).view(t.shape[:2]) for t in (self.x, self.grad))
        single = replace(self._rounding(), formed=self.x.dtype)
        return 2.0 * single.of_forming(torch.stack(list(lengths)).prod(0).sqrt_().sum(1))

    def scaled_squared_norms(self, scales: dict[str, Tensor]) -> dict[str, Tensor]:
        if not self._sums_at_once():
            return super().scaled_squared_norms(scales)
        assert self.grad is not None
        found = {}
        if "bias" in self.slots:
            found["bias"] = scaled_squared_norms(self.summed_grad(), scales["bias"])
        if "weight" in self.slots:
            scale = scales["weight"].double()
            weight = self._scaled_products if self.method == "product" else self._scaled_matrices
            found["weight"] = weight(scale)
        return found

    def _scaled_products(self, scale: Tensor) -> Tensor:
        """The square of an outer product is the outer product of the squares."""
        assert self.x is not None and self.grad is not None
        x, grad = (t[:, 0].double().square_() for t in (self.x, self.grad))
        return (grad @ scale.square()).mul_(x).sum(1)

    def _scaled_matrices(self, scale: Tensor) -> Tensor:
        """In float64, as the weighted sum is; with what another order of the additions can make of it."""
        assert self.x is not None and self.grad is not None
        rounding, found = 2.0**-50 * self.x.shape[1], []
        for rows in self.chunks():
            x, grad = self.x[rows].double(), self.grad[rows].double()
            exact = (torch.bmm(grad.mT, x) * scale).flatten(1).norm(dim=1)
            largest = (torch.bmm(grad.abs().mT, x.abs()) * scale).flatten(1).norm(dim=1)
            found.append((exact + rounding * largest).square())
        return torch.cat(found)

    # --- sums -------------------------------------------------------------------------------------------------------

    def summed_grad(self) -> Tensor:
        """The output gradients of each record summed over its sequence: the gradients of the bias."""
        if self.sums is None:
            assert self.grad is not None
            self.sums = self.grad.sum(1) if self.grad.shape[1] > 1 else self.grad.squeeze(1)
        return self.sums

    def _sums_at_once(self) -> bool:
        """Whether the weighted sum is one product of matrices in float64."""
        return self.method == "product" or (self.method == "gram" and self.x is not None and self.x.shape[1] <= _SHORT)

    def form_weighted_sum(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        if not self._sums_at_once():
            return super().form_weighted_sum(weights)
        assert self.x is not None and self.grad is not None
        summed = {}
        if "bias" in self.slots:
            summed["bias"] = weigh(self.summed_grad(), weights["bias"])
        if "weight" in self.slots:
            scale = weights["weight"].repeat_interleave(self.x.shape[1]).unsqueeze(1)
            x, grad = self.x.flatten(0, 1), self.grad.flatten(0, 1)
            if x.shape[1] < grad.shape[1]:
                x = x * scale
            else:
                grad = grad * scale
            summed["weight"] = _product(grad.double(), x.double())
        return summed


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """What gradients of parameters of this dtype are computed in."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


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
    return [product_of(rows[:, start : start + step], rows[:, start:]) for start in range(0, length, step)]
