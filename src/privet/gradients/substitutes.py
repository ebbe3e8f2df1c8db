"""Functions of torch that are computed in another way while records are followed: losses, linear algebra, attention."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map

from privet.gradients.following.products import einsum_terms
from privet.gradients.marks import (
    FREE,
    MEAN,
    ROWS,
    STARTS,
    SUM,
    UNKNOWN,
    Mark,
    Pass,
    Position,
    canonical,
    position,
    set_mark,
    set_starts,
    stride_at,
)
from privet.gradients.operation import Operation
from privet.gradients.vocabulary import tensors_in, unguarded

if TYPE_CHECKING:
    from privet.gradients.recorder import Recorder

Loss = Callable[["Recorder", tuple[Any, ...], dict[str, Any]], Any]

_CROSS_ENTROPY = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
_GAUSSIAN = ("input", "target", "var", "full", "eps", "reduction")
_BINARY = ("input", "target", "weight", "size_average", "reduce", "reduction")
_KL_DIV = ("input", "target", "size_average", "reduce", "reduction", "log_target")


def _arguments(names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {"reduction": "mean", **dict(zip(names, args, strict=False)), **kwargs}


def cross_entropy(recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Cross-entropy with a mean over each record's own targets.

    The mean of torch divides by the number of targets of the whole batch that are not ignored, which other records decide. Here
    the loss of a record is the mean over its own targets that are not ignored (zero if there are none), and the loss is the mean
    over the records. If no target is ignored, both are equal.
    """
    return _targeted(functional.cross_entropy, recorder, _arguments(_CROSS_ENTROPY, args, kwargs))


def nll_loss(recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Like `cross_entropy`, for log-probabilities."""
    return _targeted(functional.nll_loss, recorder, _arguments(_CROSS_ENTROPY[:-1], args, kwargs))


def _targeted(function: Callable[..., Tensor], recorder: Recorder, given: dict[str, Any]) -> Any:
    scores, target, reduction = given["input"], given["target"], given["reduction"]
    if given.get("size_average") is not None or given.get("reduce") is not None:
        return NotImplemented
    each = function(**{**given, "reduction": "none"})
    stride, why = _place_of_targets(recorder, scores, target, each, given.get("weight"))
    if reduction == "mean" and given.get("weight") is not None and stride != UNKNOWN and recorder.records > 1:
        stride, why = (
            UNKNOWN,
            (
                "a class-weighted mean divides by a number that other records decide; use reduction='none' and take the mean"
            ),
        )
    at = position(each.shape, stride, recorder.records)
    if at is None or reduction == "none":
        out = each if reduction == "none" else getattr(each, reduction)()
        recorder.note(out, (stride if recorder.records > 1 else 0) if not why else UNKNOWN, why, each)
        return out
    out = (
        each.sum()
        if reduction == "sum"
        else _own_mean(each, target, given.get("ignore_index", -100), at, stride, recorder)
    )
    recorder.note(out, SUM if reduction == "sum" else MEAN, why, each)
    return out


def _own_mean(each: Tensor, target: Tensor, ignored: int, at: Position, stride: int, recorder: Recorder) -> Tensor:
    """The mean over the records of the mean over each record's own targets."""
    if (at.outer == at.inner == 1 and each.ndim == 1) or target.is_floating_point():
        return each.mean()
    counts = canonical(target != ignored, stride, recorder.records).flatten(1).sum(1).clamp_(min=1)
    return (canonical(each, stride, recorder.records).flatten(1).sum(1) / counts).mean()


def _place_of_targets(
    recorder: Recorder, scores: Tensor, target: Tensor, each: Tensor, weight: Tensor | None
) -> tuple[int, str]:
    """Where the records are in the losses of the targets, and why they are not known to be kept apart, if so."""
    why = recorder.doubt_of(scores) or recorder.doubt_of(target)
    if weight is not None and recorder.stride(weight) is not None:
        why = why or "the class weights of a cross-entropy depend on the records"
    if recorder.records == 1:
        return (0 if not why else UNKNOWN), why
    found = set()
    for tensor in (scores, target):
        stride = recorder.stride(tensor)
        if stride is None:
            continue
        at = position(tensor.shape, stride, recorder.records)
        has_classes = tensor is scores or target.is_floating_point()
        if at is None or (has_classes and (at.dim == 1 or tensor.ndim == 1)):
            return UNKNOWN, why or "the records of a cross-entropy are not in the first dimension of its input"
        dim = at.dim - (has_classes and at.dim > 1)
        if each.shape[dim] != tensor.shape[at.dim]:
            return UNKNOWN, "a cross-entropy's input and target hold the records in different places"
        found.add(stride_at(each.shape, dim, at.inner))
    if len(found) != 1:
        return UNKNOWN, why or "a cross-entropy's input and target hold the records in different places"
    stride = found.pop()
    at = position(each.shape, stride, recorder.records)
    for tensor in (scores, target):
        if recorder.stride(tensor) is None and at is not None:
            has_classes = tensor is scores or target.is_floating_point()
            dim = at.dim + (has_classes and at.dim > 0)
            why = why or recorder.doubt_of_constant(tensor, Position(dim, at.outer, at.inner))
    return stride, why


def kl_div(recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``reduction="batchmean"`` is the mean over the rows of the input, each of which is a record or a part of one."""
    given = _arguments(_KL_DIV, args, kwargs)
    stride = recorder.stride(given["input"])
    if given["reduction"] != "batchmean" or stride is None:
        return NotImplemented
    at = position(given["input"].shape, stride, recorder.records)
    each = functional.kl_div(**{**given, "reduction": "none"})
    other = recorder.stride(given["target"])
    apart = at is not None and at.dim == 0 and each.shape == given["input"].shape
    if other is not None and position(given["target"].shape, other, recorder.records) != at:
        apart = False
    out = each.sum() / each.shape[0]
    why = recorder.doubt_of(given["input"]) or recorder.doubt_of(given["target"])
    if other is None and at is not None and recorder.records > 1 and given["target"].shape == given["input"].shape:
        why = why or recorder.doubt_of_constant(given["target"], at)
    if not apart and recorder.records > 1:
        why = why or "`kl_div` with 'batchmean' needs the records in the first dimension of its input and target"
    recorder.note(out, MEAN if not why else UNKNOWN, why, each)
    return out


def gaussian_nll_loss(recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch raises if a variance is negative, so one record could end the run. Here the loss of that record is not a number."""
    given = {**_arguments(_GAUSSIAN, args, kwargs)}
    scores, target, var, reduction = given["input"], given["target"], given["var"], given["reduction"]
    if not isinstance(var, Tensor) or reduction not in ("none", "mean", "sum"):
        return NotImplemented
    short = var.shape == scores.shape[:-1]
    single = var.ndim == scores.ndim and sum(n for m, n in zip(scores.shape, var.shape, strict=True) if m != n) == 1
    if var.shape != scores.shape and not short and not single:
        return NotImplemented
    with recorder:
        var = var.unsqueeze(-1) if short and var.shape != scores.shape else var
        valid = torch.where(var < 0, math.nan, 1.0)
        bounded = var.clone()
        with torch.no_grad():
            bounded.clamp_(min=given.get("eps", 1e-6))
        each = 0.5 * (torch.log(bounded) + (scores - target) ** 2 / bounded) * valid
        if given.get("full", False):
            each = each + 0.5 * math.log(2 * math.pi)
        return each if reduction == "none" else getattr(each, reduction)()


def binary_cross_entropy(recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch raises if a probability or a target lies outside [0, 1] or is no number. Here the loss of that record is NaN."""
    given = _arguments(_BINARY, args, kwargs)
    scores, target, reduction = given["input"], given["target"], given["reduction"]
    stated = given.get("size_average") is not None or given.get("reduce") is not None
    if stated or reduction not in ("none", "mean", "sum") or scores.shape != target.shape:
        return NotImplemented
    with recorder:
        valid = (scores >= 0) & (scores <= 1) & (target >= 0) & (target <= 1)
        half = [torch.where(valid, tensor, 0.5) for tensor in (scores, target)]
        each = unguarded(functional.binary_cross_entropy)(*half, given.get("weight"), reduction="none")
        each = each * torch.where(valid, 1.0, math.nan)
        return each if reduction == "none" else getattr(each, reduction)()


def l1_loss(recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Refuse the weight of ``F.l1_loss``: torch 2.13 does not pass it to a mode, so it is looked up in the caller's frame."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not functional.l1_loss.__code__ and frame.f_back is not None:
        frame = frame.f_back
    if frame.f_code is functional.l1_loss.__code__ and frame.f_locals.get("weight") is not None:
        raise recorder.refusal("the weight of `l1_loss` is not seen; multiply F.l1_loss(..., reduction='none') by it")
    return NotImplemented


LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "nll_loss": nll_loss,
    "kl_div": kl_div,
    "l1_loss": l1_loss,
}
"""Losses that are computed here, by the name of their function in ``torch.nn.functional``."""
NAN_INSTEAD: dict[str, Loss] = {
    "binary_cross_entropy": binary_cross_entropy,
    "gaussian_nll_loss": gaussian_nll_loss,
}
"""Losses of which one record could end the run."""


# --- linear algebra that raises if a matrix is singular, so that one record could end the run ------------------------
# The substitutes return NaN for such a matrix instead, and a record that is not finite contributes nothing.


def _or_nan(result: Tensor, info: Tensor, dims: int = 2) -> Tensor:
    return result * torch.where(info[(..., *(None,) * dims)] != 0, math.nan, 1.0)


def inv(A: Tensor) -> Tensor:
    return _or_nan(*torch.linalg.inv_ex(A))


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    return _or_nan(*torch.linalg.cholesky_ex(A, upper=upper))


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    result, info = torch.linalg.solve_ex(A, B, left=left)
    return _or_nan(result, info, result.ndim - info.ndim)


WITHOUT_RAISING: dict[str, Callable[..., Tensor]] = {
    "linalg_inv": inv,
    "inverse": inv,
    "linalg_cholesky": cholesky,
    "linalg_solve": solve,
}
"""What is computed instead of an operation, by its name."""


# --- products with tensors of parameters that have a row for each record ---------------------------------------------
# The usual case is a learned query that is repeated for each record and then multiplied. The rules for products expect one
# tensor of parameters for all records. Here it becomes a tensor of records first, if its rows are one function of parameters.

_OF_MATRICES = frozenset("matmul __matmul__ bmm baddbmm scaled_dot_product_attention".split())


def with_own_rows(op: Operation) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of a product, with tensors of parameters that have a row for each record turned into records; None if there
    is no such tensor."""
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
    """The dimension of a tensor of parameters, counted from the right, that is aligned with the records and has as many
    entries."""
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
    from privet.gradients.rules.generic import own_copy

    own = own_copy(op, tensor, place)
    op.recorder.set_stride(own, stride_at(own.shape, own.ndim + place.dim, place.inner))
    return own


# --- bags of different lengths ----------------------------------------------------------------------------------------

_OFFSETS, _TOKEN_WEIGHTS, _WITH_LAST = 2, 6, 7
"""The places of arguments of ``torch.embedding_bag``."""


def bags_of_records(
    current: Pass, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments of ``torch.embedding_bag(table, words, offsets)``, if the words of the records stand one after another and
    the offsets say where each record begins: then each bag is made of the words of its own record. None otherwise."""
    if name != "embedding_bag" or kwargs or len(args) <= _WITH_LAST:
        return None
    held = [current.ragged.get(id(args[place]), (None, 0))[1] for place in (1, _OFFSETS)]
    token_weights = args[_TOKEN_WEIGHTS]
    if held != [ROWS, STARTS]:
        return None
    if token_weights is not None and current.ragged.get(id(token_weights), (None, 0))[1] != ROWS:
        return None
    with torch._C.DisableTorchFunction():
        words, starts = args[1].detach(), args[_OFFSETS].detach()
        starts = starts[:-1] if args[_WITH_LAST] else starts
        token_weights = None if token_weights is None else token_weights.detach()
    if len(starts) != current.records * current.each:
        return None
    set_mark(words, FREE)
    set_starts(starts)
    for tensor in (starts, token_weights):
        if tensor is not None:
            set_mark(tensor, Mark(current.token, current.each))
    changed = {1: words, _OFFSETS: starts, _TOKEN_WEIGHTS: token_weights, _WITH_LAST: False}
    return tuple(changed.get(place, value) for place, value in enumerate(args)), {}


# --- products with parameters, written as the linear map that they are ------------------------------------------------


def as_linear(op: Operation) -> Callable[[], Tensor] | None:
    """A product of one tensor of records with one of parameters as ``F.linear``, which has a rule; None where it is no linear
    map of the records' last dimensions, or has a rule itself."""
    if op.name in ("matmul", "__matmul__") and len(op.args) == 2 and op.tracks(op.args[0]):
        return _left_product(*op.args)
    if (
        op.name == "addmm"
        and len(op.args) == 3
        and not op.kwargs
        and op.args[0].ndim == 1
        and not op.tracks(op.args[1])
    ):
        bias, x, weight = op.args  # a layer of GPT-2
        return lambda: functional.linear(x, weight.t(), bias)
    return _contraction(op) if op.name == "einsum" and isinstance(op.args[0], str) else None


def _left_product(weight: Tensor, x: Tensor) -> Callable[[], Tensor] | None:
    """``weight @ x``, as a learned query reads the positions of a sequence."""
    if weight.ndim > 2 or x.ndim < 2:
        return None
    if weight.ndim == 1:
        return lambda: functional.linear(x.transpose(-2, -1), weight.unsqueeze(0)).squeeze(-1)
    return lambda: functional.linear(x.transpose(-2, -1), weight).transpose(-2, -1)


def _contraction(op: Operation) -> Callable[[], Tensor] | None:
    """An ``einsum`` of two factors that share only the letters that are summed."""
    terms, output = einsum_terms(op.args)
    if len(terms) != 2 or op.tracks(terms[0][1]) == op.tracks(terms[1][1]):
        return None
    (of_x, x), (of_weight, weight) = sorted(terms, key=lambda term: op.tracks(term[1]))
    summed = [letter for letter in of_x if letter in of_weight]
    kept, made = ([letter for letter in term if letter not in summed] for term in (of_x, of_weight))
    plain = len({*of_x}) == len(of_x) and len({*of_weight}) == len(of_weight) and summed and kept
    if not plain or sorted(output) != sorted([*kept, *made]):
        return None

    def call() -> Tensor:
        left = x.permute([of_x.index(letter) for letter in [*kept, *summed]]).flatten(len(kept))
        right = weight.permute([of_weight.index(letter) for letter in [*made, *summed]])
        out = functional.linear(left, right.reshape(-1, left.shape[-1]))
        out = out.unflatten(-1, [weight.shape[of_weight.index(letter)] for letter in made]) if made else out.squeeze(-1)
        return out.permute([[*kept, *made].index(letter) for letter in output])

    return call


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
    """``scaled_dot_product_attention`` with a learned bias, as single operations that have rules."""
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    weights = torch.softmax(scores + attn_mask, -1)
    return functional.dropout(weights, dropout_p) @ value


def has_learned_bias(op: Operation) -> bool:
    mask = op.argument(3, "attn_mask")
    return op.name == "scaled_dot_product_attention" and op.tracks(mask) and not op.argument(5, "is_causal", False)


# --- questions about records that other libraries ask in order to save work ------------------------------------------
# The models of Hugging Face check whether a batch has padding at all, and leave out the mask if it has none. One record would
# decide that for all. The answer here is always the same, so that nothing depends on it: the mask is always made.

_ANSWERS = {
    ("transformers.masking_utils", "_ignore_causal_mask_sdpa"): False,
    ("transformers.masking_utils", "_ignore_bidirectional_mask_sdpa"): False,
    ("transformers.masking_utils", "create_recurrent_attention_mask"): False,
    ("transformers.modeling_attn_mask_utils", "_ignore_causal_mask_sdpa"): False,
    ("transformers.modeling_attn_mask_utils", "_prepare_4d_attention_mask_for_sdpa"): False,
}
"""The answers, by the module and the name of the function that asks."""


def answer() -> bool | None:
    """The fixed answer if one of these functions asks for a truth value; None otherwise."""
    frame = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(("privet.", "torch.")):
            return _ANSWERS.get((module, frame.f_code.co_name))
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None
