"""Tensors of parameters that have a row for each record, in products: each record takes its own row.

A learned query that is repeated for each record and then mapped is the usual case. The rules for products have one tensor of
parameters for all records; here the tensor becomes one of records first, if its rows are one function of the parameters.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map

from privet.gradients.following.products import einsum_terms
from privet.gradients.layout import Position, position, stride_at
from privet.gradients.operation import Operation
from privet.gradients.vocabulary import tensors_in

_OF_MATRICES = frozenset("matmul __matmul__ bmm baddbmm scaled_dot_product_attention".split())


def with_own_rows(op: Operation) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of a product, where tensors of parameters with a row for each record hold records; None without one."""
    if op.name not in _OF_MATRICES and op.name != "einsum":
        return None
    tensors = tensors_in((op.args, op.kwargs))
    batched = next((t for t in tensors if op.recorder.stride(t) is not None), None)
    if batched is None or op.records == 1:
        return None
    at = position(batched.shape, op.stride(batched), op.records)
    found = {} if at is None else {id(t): dim for t in tensors if (dim := _dim_of_rows(op, batched, at, t)) is not None}
    if not found or at is None:
        return None
    own: dict[int, Tensor] = {}
    for tensor in tensors:
        if id(tensor) in found and id(tensor) not in own:
            own[id(tensor)] = _as_records(op, tensor, Position(found[id(tensor)], at.outer, at.inner))
    args, kwargs = tree_map(lambda leaf: own.get(id(leaf), leaf), (op.args, op.kwargs))
    return args, kwargs


def _dim_of_rows(op: Operation, batched: Tensor, at: Position, tensor: Tensor) -> int | None:
    """The dimension of a tensor of parameters that has as many entries as the records', and goes with it; from the right."""
    if not op.tracks(tensor):
        return None
    dim = at.dim - batched.ndim
    if op.name == "einsum":
        terms, _ = einsum_terms(op.args)
        letter = next(term[at.dim] for term, factor in terms if factor is batched)
        dim = next(
            term.find(letter) - tensor.ndim if letter in term else 0 for term, factor in terms if factor is tensor
        )
    elif dim > -3:
        return None
    fits = dim < 0 and tensor.ndim >= -dim and tensor.shape[dim] == batched.shape[at.dim]
    return dim if fits else None


def _as_records(op: Operation, tensor: Tensor, place: Position) -> Tensor:
    from privet.gradients.rules.elementwise import own_copy

    own = own_copy(op, tensor, place)
    op.recorder.set_stride(own, stride_at(own.shape, own.ndim + place.dim, place.inner))
    return own


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``scaled_dot_product_attention`` with a learned bias, in single operations, which have rules."""
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    weights = torch.softmax(scores + attn_mask, -1)
    return functional.dropout(weights, dropout_p) @ value


def has_learned_bias(op: Operation) -> bool:
    mask = op.argument(3, "attn_mask")
    return op.name == "scaled_dot_product_attention" and op.tracks(mask) and not op.argument(5, "is_causal", False)
