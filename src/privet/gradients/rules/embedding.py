"""Embeddings: each record uses the rows of a table that belong to its own tokens, one by one or in bags.

Gradients are as short as the record's list of tokens. A gradient of the size of the table is formed for no record, except
chunk by chunk if its norm requires it (tied weights). Sums over the records are dense, also with ``sparse=True``, because the
noise is dense.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from privet.gradients.numerics import cached_chunks, squared_norms, summed_squared_norms
from privet.gradients.operation import REFUSED, Operation, operation
from privet.gradients.rules.linear import as_sequences
from privet.gradients.use import MemoryBudget, Use

REFUSED["embedding_renorm_"] = (
    "max_norm changes the rows of its table in place as the records use them, outside the clipped gradient. Build the "
    "embedding without max_norm"
)
_BY_FREQUENCY = (
    "scale_grad_by_freq divides gradients by how often a token occurs in the batch, which mixes records. Build the "
    "embedding with scale_grad_by_freq=False"
)
_SUM, _MEAN, _MAX = 0, 1, 2


@operation("embedding")
def embedding(op: Operation) -> Any:
    weight, tokens = op.argument(0, "weight"), op.argument(1, "indices")
    if op.argument(3, "scale_grad_by_freq", False):
        raise op.recorder.refusal(_BY_FREQUENCY)
    out = torch.embedding(weight.detach(), tokens)
    use = Embedding(op.module, op.records, {"weight": weight})
    use.padding = op.argument(2, "padding_idx", -1)
    use.input_stride, use.output_stride = op.stride(tokens), op.stride_after(tokens, out)
    return op.record(out, use, tokens)


@operation("embedding_bag")
def embedding_bag(op: Operation) -> Any:
    weight, tokens, offsets = op.argument(0, "weight"), op.argument(1, "input"), op.argument(2, "offsets")
    if op.argument(3, "scale_grad_by_freq", False):
        raise op.recorder.refusal(_BY_FREQUENCY)
    token_weights = op.argument(6, "per_sample_weights")
    if op.tracks(token_weights):
        raise op.recorder.refusal("the per_sample_weights of its bags are parameters. Multiply the embeddings by them")
    mode, padding = op.argument(4, "mode", _SUM), op.argument(8, "padding_idx")
    last = op.argument(7, "include_last_offset", False)
    padding = -1 if padding is None else padding % weight.shape[0]
    # torch.embedding_bag omits what the backward pass needs if the table requires no gradient.
    out, bag_of_token, bag_sizes, chosen = torch.ops.aten._embedding_bag(
        weight.detach(), tokens, offsets, False, mode, False, token_weights, last, padding
    )
    if len(bag_of_token) != len(tokens):
        starts = offsets[:-1] if last else offsets
        bag_of_token = torch.searchsorted(starts, torch.arange(len(tokens), device=starts.device), right=True) - 1
    use = EmbeddingBag(op.module, op.records, {"weight": weight})
    use.output_stride = op.stride_after(offsets if op.recorder.stride(offsets) is not None else tokens, out)
    use.mode, use.padding = mode, padding
    saved = (tokens, bag_of_token, bag_sizes, chosen)
    tapped = op.record(out, use, *saved, *(() if token_weights is None else (token_weights,)))
    op.recorder.set_stride(tapped, use.output_stride)
    return tapped, bag_of_token, bag_sizes, chosen


class Embedding(Use):
    """Keeps the sum of the gradients at all places of a token, for each record and token."""

    input_stride: int
    output_stride: int
    padding: int
    sums: Tensor
    """The gradients of single rows of the table for single records; `owners` and `tokens` tell which."""
    owners: Tensor
    tokens: Tensor

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: MemoryBudget) -> None:
        weight = self.slots["weight"]
        tokens = as_sequences(saved[0].unsqueeze(-1), self.input_stride, self.records).flatten(1)
        rows = as_sequences(grad, self.output_stride, self.records).reshape(-1, grad.shape[-1]).to(weight.dtype)
        self.method = "segments"
        first_key = torch.arange(self.records, device=tokens.device).unsqueeze(1) * weight.shape[0]
        keys, order = (first_key + tokens).flatten().sort()
        distinct, counts = keys.unique_consecutive(return_counts=True)
        self.owners, self.tokens = distinct // weight.shape[0], distinct % weight.shape[0]
        self.sums = torch.embedding_bag(rows, order, counts.cumsum(0) - counts)[0]
        if self.padding >= 0:
            self.sums[self.tokens == self.padding] = 0

    def form(self, rows: slice) -> dict[str, Tensor]:
        weight = self.slots["weight"]
        start, stop, _ = rows.indices(self.records)
        first, end = torch.searchsorted(self.owners, torch.tensor([start, stop], device=self.owners.device)).tolist()
        formed = weight.new_zeros((stop - start, *weight.shape), requires_grad=False)
        formed[self.owners[first:end] - start, self.tokens[first:end]] = self.sums[first:end]
        return {"weight": formed}

    def form_squared_norms(self) -> dict[str, Tensor]:
        return {"weight": summed_squared_norms(self.sums, self.owners, self.records)}

    def form_weighted_sum(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        total = torch.zeros(self.slots["weight"].shape, dtype=torch.float64, device=self.sums.device)
        factors = weights["weight"][self.owners].unsqueeze(1)
        for rows in cached_chunks(*self.sums.shape):
            total.index_add_(0, self.tokens[rows], self.sums[rows] * factors[rows])
        return {"weight": total}

    def rounding(self, slot: str) -> Tensor | None:
        return self.zeros()

    def drop(self, bad: Tensor) -> None:
        self.sums = torch.where(bad[self.owners].unsqueeze(1), torch.zeros_like(self.sums), self.sums)

    def kept_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.sums, self.owners, self.tokens))


class EmbeddingBag(Use):
    """Keeps the gradients of the bags. A record's gradient is that of its bags, times the weight of each token."""

    per_record = ("grad",)
    output_stride: int
    mode: int
    padding: int
    grad: Tensor
    """``(records, bags of one record, features)``."""
    bags: Tensor
    """``(records, bags of one record)``: where each bag is in the output."""

    def receive(self, saved: tuple[Tensor, ...], grad: Tensor, budget: MemoryBudget) -> None:
        self.tokens, self.bag_of_token, self.bag_sizes, self.chosen = saved[:4]
        # In float64, so that the norm, which is a product, and the sum agree.
        self.token_weights = saved[4].double() if len(saved) > 4 else None
        self.grad = as_sequences(grad, self.output_stride, self.records).double()
        numbered = torch.arange(grad.shape[0], device=grad.device).unsqueeze(1).expand_as(grad)
        self.bags = as_sequences(numbered, self.output_stride, self.records)[:, :, 0]
        self.method = "product" if self.bags.shape[1] == 1 else "chunks"

    def form(self, rows: slice) -> dict[str, Tensor]:
        each = [slice(i, i + 1) for i in range(*rows.indices(self.records))]
        return {"weight": torch.stack([self._summed(self.bags[one], self.grad[one]) for one in each])}

    def form_squared_norms(self) -> dict[str, Tensor]:
        if self.method == "chunks":
            return super().form_squared_norms()
        bags, of_bags = self.bags.flatten(), squared_norms(self.grad)
        if self.mode == _MAX:  # each feature of a bag comes from one row of the table
            return {"weight": of_bags * (self.bag_sizes[bags] > 0)}
        vocabulary = self.slots["weight"].shape[0]
        pairs, place = (self.bag_of_token * vocabulary + self.tokens).unique(return_inverse=True)
        counts = of_bags.new_zeros(len(pairs)).index_add_(0, place, self._counts())
        squares = of_bags.new_zeros(len(bags)).index_add_(0, pairs // vocabulary, counts.square_())
        return {"weight": of_bags * squares[bags]}

    def _counts(self) -> Tensor:
        """The weight of each token in its bag."""
        counts = (self.tokens != self.padding).double()
        if self.token_weights is not None:
            counts = torch.where(counts > 0, self.token_weights, 0.0)
        return counts / self.bag_sizes[self.bag_of_token] if self.mode == _MEAN else counts

    def form_weighted_sum(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.method == "chunks":  # sum the numbers that were measured
            return super().form_weighted_sum(weights)
        return {"weight": self._summed(self.bags, self.grad * weights["weight"].view(-1, 1, 1))}

    def _summed(self, bags: Tensor, grad: Tensor) -> Tensor:
        """The gradient of the table if only `bags` have a gradient."""
        rows = grad.new_zeros(self.bags.numel(), grad.shape[2])
        rows[bags.flatten()] = grad.flatten(0, 1)
        summed: Tensor = torch.ops.aten._embedding_bag_dense_backward(
            rows,
            self.tokens,
            self.bag_of_token,
            self.bag_sizes,
            self.chosen,
            self.slots["weight"].shape[0],
            False,
            self.mode,
            self.token_weights,
            self.padding,
        )
        return summed

    def drop(self, bad: Tensor) -> None:
        super().drop(bad)
        if self.token_weights is not None:
            bad_bags = bad.new_zeros(self.bags.numel())
            bad_bags[self.bags[bad].flatten()] = True
            self.token_weights = self.token_weights.masked_fill(bad_bags[self.bag_of_token], 0.0)
