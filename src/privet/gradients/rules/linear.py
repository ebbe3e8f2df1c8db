"""Linear maps: ``nn.Linear`` on any number of dimensions, ``F.linear``, and ``x @ parameter``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from privet.gradients.marks import canonical
from privet.gradients.numerics import add_weighed, scaled_squared_norms, squared_norms, weigh, workspace
from privet.gradients.operation import Operation, operation
from privet.gradients.rules.grams import GramSums, Rounding, bounded_squared_norms, product_of
from privet.gradients.use import MemoryBudget, Use

_PIECE_BYTES = 2**22
"""Size of the pieces in which gradients are kept. Of 1 to 8 MiB it was the fastest for sequences of a transformer and an LSTM
(AMD EPYC, one thread)."""

PASSING_BYTES = 2**21
"""Gradients that are formed, added up and discarded come in smaller pieces, in reused memory. Of 0.5 to 4 MiB it was the
fastest for sequences of an LSTM (same machine)."""

_SHORT = 16
"""Up to this sequence length the weighted sum is one product of matrices in float64. For longer ones it is faster to form each
record's gradient in float32 and to add these up in float64: 0.06 ns for each multiplication, against 0.03 ns and 0.5 ns for
each number of the gradient (AMD EPYC with AVX2, one thread, process time, torch 2.13)."""

_PRODUCT = 2**18
"""The number of entries of a matrix that are converted to float64 at a time; of 2^15 to 2^18 it was the fastest (same machine).
"""

_LARGER, _SLOWER = 1.7, 64
"""Gradients are kept if that takes less memory than the inputs and output gradients that are kept otherwise. They are also kept
if it takes up to 1.7 times as much and the Gram matrices need more than 64 multiplications for each of their numbers: keeping a
number takes about 1 ns, and a multiplication of half a matrix 0.015 ns (same machine)."""

_STEP, _ROUND = 32, 16
"""A Gram matrix is formed in four steps, each with at least the first number of rows and a multiple of the second. Of two to
eight steps it was the fastest for lengths of 64 to 512 (AMD EPYC with AVX2, one thread, process time, torch 2.13)."""


@operation("linear")
def linear(op: Operation) -> Any:
    x, weight, bias = op.argument(0, "input"), op.argument(1, "weight"), op.argument(2, "bias")
    slots = {name: t for name, t in (("weight", weight), ("bias", bias)) if op.tracks(t)}
    if op.tracks(x) or not slots:
        return op.generic()
    if bias is not None and bias.ndim != 1:
        raise op.recorder.refusal("its bias has more than one dimension")
    out = _applied(x, weight.detach(), None if bias is None else bias.detach())
    use = Linear(op.module, op.records, slots)
    use.input_stride, use.output_stride = op.stride(x), op.stride_after(x, out)
    return op.record(out, use, x, stride=use.output_stride)


def _applied(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The linear map as one matrix product: without a trained weight, torch computes many for an input that is not contiguous."""
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
    chunk_bytes = _PIECE_BYTES
    input_stride: int
    output_stride: int
    x: Tensor | None = None
    grad: Tensor | None = None
    sums: Tensor | None = None
    pieces: list[tuple[slice, Tensor]] | None = None
    """The gradients of the weight for slices of the records, if they are kept. Small pieces fit into memory that activations
    have freed; fresh memory costs a page fault for every 4 KiB."""

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: MemoryBudget) -> None:
        dtype = at_least_single(next(iter(self.slots.values())).dtype)
        x = as_sequences(saved[0], self.input_stride, self.records).to(dtype)
        grad = as_sequences(grad, self.output_stride, self.records).to(dtype)
        self.x, self.grad = x, grad
        self._choose_method(budget)

    def join(self, others: Sequence[Use], budget: MemoryBudget) -> Use | None:
        """Replace several calls by one call on the concatenated sequences."""
        parts = [use for use in (self, *others) if isinstance(use, Linear)]
        inputs = [use.x for use in parts if use.x is not None]
        grads = [use.grad for use in parts if use.grad is not None]
        if len(inputs) <= len(others) or len(grads) <= len(others):
            return None
        whole = copy(self)
        whole.x, whole.grad = torch.cat(inputs, 1), torch.cat(grads, 1)
        whole._choose_method(budget)
        return whole

    def _choose_method(self, budget: MemoryBudget) -> None:
        assert self.x is not None and self.grad is not None
        length, width, height = self.x.shape[1], self.x.shape[2], self.grad.shape[2]
        if length == 1:
            self.method = "product"
            return
        # Multiplications for each record, in addition to those of the plain weight gradient.
        gram = length * (width + height)
        if "weight" not in self.slots:
            self.hold(self.form(slice(0, self.records)))
            self.x = self.grad = None
        elif self._is_better_kept() and budget.take(self.instance_bytes()):
            self._hold_instances()
        else:
            self.method = "gram" if gram < 2 * width * height else "chunks"

    def _is_better_kept(self) -> bool:
        assert self.x is not None and self.grad is not None
        length, width, height = self.x.shape[1], self.x.shape[2], self.grad.shape[2]
        others, numbers = length * (width + height), width * height
        return others >= numbers or (_LARGER * others >= numbers and length * others >= _SLOWER * numbers)

    def _hold_instances(self) -> None:
        """Form and measure a few records at a time, so that their norms are computed in the cache."""
        self.pieces, norms = [], []
        for rows in self.chunks():
            weight = self._weights(rows)
            self.pieces.append((rows, weight))
            norms.append(squared_norms(weight))
        self.norms = {"weight": torch.cat(norms)}
        if "bias" in self.slots:
            self.summed_grad()
        self.method = "instances"
        self.x = self.grad = None

    def _weights(self, rows: slice) -> Tensor:
        assert self.x is not None and self.grad is not None
        return torch.bmm(self.grad[rows].mT, self.x[rows])

    def instantiate(self, rows: slice) -> dict[str, Tensor]:
        if self.pieces is None:
            return super().instantiate(rows)
        parts = [
            weight[max(rows.start - kept.start, 0) : rows.stop - kept.start]
            for kept, weight in self.pieces
            if kept.start < rows.stop and rows.start < kept.stop
        ]
        found = {"weight": torch.cat(parts) if len(parts) > 1 else parts[0]}
        return {**found, "bias": self.summed_grad()[rows]} if "bias" in self.slots else found

    def form(self, rows: slice) -> dict[str, Tensor]:
        formed = {}
        if "weight" in self.slots:
            formed["weight"] = self._weights(rows)
        if "bias" in self.slots:
            formed["bias"] = self.summed_grad()[rows]
        return formed

    # --- norms ------------------------------------------------------------------------------------------------------

    def form_squared_norms(self) -> dict[str, Tensor]:
        if self.pieces is not None:
            biases = {"bias": squared_norms(self.summed_grad())} if "bias" in self.slots else {}
            return self.norms | biases
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
        if slot == "bias" or self.x is None or self.grad is None:
            return self.zeros()
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
        x, grad = (t[:, 0].double().square() for t in (self.x, self.grad))
        return (grad @ scale.square()).mul_(x).sum(1)

    def _scaled_matrices(self, scale: Tensor) -> Tensor:
        """In float64, like the weighted sum, plus a bound on the effect of another order of additions."""
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
        """Whether the weighted sum is computed as one product of matrices in float64."""
        return self.method == "product" or (self.method == "gram" and self.x is not None and self.x.shape[1] <= _SHORT)

    def form_weighted_sum(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.method == "product" and len(self.slots) == 2 and weights["weight"] is weights["bias"]:
            assert self.x is not None and self.grad is not None
            weight, bias = _weighted_products(self.x.squeeze(1), self.grad.squeeze(1), weights["weight"])
            return {"weight": weight, "bias": bias}
        summed = {}
        if "bias" in self.slots:
            summed["bias"] = weigh(self.summed_grad(), weights["bias"])
        if "weight" in self.slots:
            summed["weight"] = self._weight_sum(weights["weight"])
        return summed

    def _weight_sum(self, weights: Tensor) -> Tensor:
        if self._sums_at_once():
            assert self.x is not None and self.grad is not None
            each = weights.repeat_interleave(self.x.shape[1])
            return _weighted_products(self.x.flatten(0, 1), self.grad.flatten(0, 1), each)[0]
        slot = self.slots["weight"]
        total = torch.zeros(slot.shape, dtype=torch.float64, device=slot.device)
        for rows, weight in self.pieces or self._passing():
            add_weighed(total, weight, weights[rows])
        return total

    def _passing(self) -> Iterator[tuple[slice, Tensor]]:
        """The gradients of the weight for slices of the records, each in the memory of the previous one."""
        assert self.x is not None and self.grad is not None
        # If the norms were taken of formed gradients, the same chunks are formed again.
        yield from products(self.grad, self.x, self.chunks(PASSING_BYTES if self.method == "gram" else None))

    def drop(self, bad: Tensor) -> None:
        super().drop(bad)
        for rows, weight in self.pieces or ():
            weight[bad[rows]] = 0

    def kept_bytes(self) -> int:
        return super().kept_bytes() + sum(weight.numel() * weight.element_size() for _, weight in self.pieces or ())


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which gradients of parameters of this dtype are computed."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def as_sequences(tensor: Tensor, stride: int, records: int) -> Tensor:
    """`tensor` as ``(records, length, features)``."""
    if tensor.ndim == 2 and len(tensor) == records and stride == tensor.shape[1]:
        return tensor.unsqueeze(1)
    return canonical(tensor, stride, records).reshape(records, -1, tensor.shape[-1])


def products(grad: Tensor, x: Tensor, slices: Iterable[slice]) -> Iterator[tuple[slice, Tensor]]:
    """``grad.T @ x`` of each record for slices of the records, each in the memory of the previous one."""
    for rows in slices:
        into = workspace.take("weights", (rows.stop - rows.start, grad.shape[2], x.shape[2]), x)
        yield rows, torch.bmm(grad[rows].mT, x[rows], out=into)


def _weighted_products(x: Tensor, grad: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """``grad.T @ (weights * x)`` and ``grad.T @ weights`` in float64, a few rows at a time, so that their copies stay in the
    cache."""
    # The narrower matrix goes first, which is up to six times as fast. It is also the one that is multiplied by the weights.
    swapped = grad.shape[1] > x.shape[1]
    narrow, wide = (x, grad) if swapped else (grad, x)
    width, columns = narrow.shape[1], wide.shape[1]
    step = min(max(_PRODUCT // max(columns, 1), _ROUND), max(len(x), 1))
    # If the gradient is the wide one, the weights stand beside the inputs: then the sum for the bias is a row of the product.
    scaled, copied = (
        workspace.take("scaled", (step, width + swapped), weights),
        workspace.take("copied", (step, columns), weights),
    )
    total, bias = weights.new_zeros(width + swapped, columns), weights.new_zeros(width)
    for start in range(0, len(x), step):
        stop = min(start + step, len(x))
        first, second, factors = scaled[: stop - start], copied[: stop - start], weights[start:stop].unsqueeze(1)
        torch.mul(narrow[start:stop], factors, out=first[:, :width])
        if swapped:
            first[:, width:] = factors
        else:
            bias += first.sum(0)
        total.addmm_(first.mT, second.copy_(wide[start:stop]))
    return (total[:width].mT.contiguous(), total[width]) if swapped else (total, bias)


def gram_blocks(rows: Tensor) -> list[Tensor]:
    """The Gram matrix of each ``rows[i]`` in blocks. It is symmetric, so each block covers only its own rows and the later
    columns."""
    length = rows.shape[1]
    step = max(-(-length // (4 * _ROUND)) * _ROUND, _STEP)
    return [product_of(rows[:, start : start + step], rows[:, start:]) for start in range(0, length, step)]
