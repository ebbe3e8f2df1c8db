"""Losses of torch, with their reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from privet.gradients.following.moved import Follow, Moved, aligned
from privet.gradients.following.registry import FOLLOWERS, by_broadcasting, follows, in_front
from privet.gradients.layout import MEAN, SUM, UNKNOWN, position

_NONE, _MEAN_OF_ALL, _SUM_OF_ALL = 0, 1, 2
"""How torch's own losses are told their reduction."""


def _reduced_loss(moved: Moved, stride: int, index: int | None) -> int:
    """A loss for each entry, whose records are at `stride`, joined as the operation's reduction says."""
    stated: Any = moved.args[slice(-1, None) if index is None else slice(index, index + 1)]
    reduction = moved.kwargs.get("reduction", stated[0] if stated else None)
    if type(reduction) is not int:  # a margin, a weight: the reduction was left out
        return UNKNOWN
    return {_MEAN_OF_ALL: MEAN, _SUM_OF_ALL: SUM, _NONE: stride}.get(reduction, UNKNOWN) if stride >= 0 else UNKNOWN


def _elementwise_loss(index: int | None) -> Follow:
    def follow_loss(moved: Moved) -> int:
        shape = torch.broadcast_shapes(*(tensor.shape for tensor, _ in moved.tensors))
        stride = aligned(moved, shape)
        return _reduced_loss(moved, stride if position(shape, stride, moved.records) else UNKNOWN, index)

    return follow_loss


_ELEMENTWISE_LOSSES = (_elementwise_loss(None), _elementwise_loss(2))
"""Losses of single entries whose reduction is their last argument, and those where it is the third."""
follows(
    "mse_loss l1_loss binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss poisson_nll_loss",
    "margin_ranking_loss hinge_embedding_loss",
    beside=by_broadcasting,
)(_ELEMENTWISE_LOSSES[0])
follows("smooth_l1_loss huber_loss kl_div", beside=by_broadcasting)(_ELEMENTWISE_LOSSES[1])


@follows("cosine_embedding_loss multi_margin_loss multilabel_margin_loss triplet_margin_loss", beside=in_front)
def _row_loss(moved: Moved) -> int:
    """A loss for each row; the records are in front of every argument, one row each or several."""
    at = moved.shared()
    rows = isinstance(moved.args[0], Tensor) and moved.args[0].ndim == 2  # without rows, all of it is one row
    if at is None or at.dim != 0 or not rows or any(tensor.ndim > 2 for tensor, _ in moved.tensors):
        return UNKNOWN
    weight = moved.argument(4, "weight")  # of multi_margin_loss: one for each class
    if any(tensor is weight and stride is not None for tensor, stride in moved.tensors):
        return UNKNOWN
    return _reduced_loss(moved, at.inner, None)


@follows("ctc_loss")
def _ctc(moved: Moved) -> int:
    """Scores of the shape (steps, records, classes), targets of the shape (records, length), and a length of each."""
    scores, targets = moved.args[:2]
    lengths = moved.args[2:4]
    strides = {id(tensor): stride for tensor, stride in moved.tensors}
    if not isinstance(targets, Tensor) or scores.ndim != 3 or targets.ndim != 2 or len(lengths) != 2:
        return UNKNOWN
    for given, dim in ((scores, 1), (targets, 0), (lengths[0], 0), (lengths[1], 0)):
        stride = strides.get(id(given))
        at = None if stride is None else position(given.shape, stride, moved.records)
        if at is not None and (at.dim != dim or at.outer != 1 or at.inner != 1):
            return UNKNOWN
        if at is None and (dim == 1 or given is targets or not _all_alike(given)):
            return UNKNOWN
    return _reduced_loss(moved, 1, 5)


def _all_alike(lengths: Any) -> bool:
    return len(set(lengths.tolist() if isinstance(lengths, Tensor) else lengths)) == 1


def joined_shape(name: str, moved: Moved) -> Sequence[int]:
    """The shape of the losses of a loss that has joined its records, before it has; empty where it is no such loss."""
    known = FOLLOWERS.get(name)
    if known is not _row_loss and known not in _ELEMENTWISE_LOSSES:
        return ()
    shapes = (tensor.shape for tensor, _ in moved.tensors if tensor.ndim == moved.source.ndim)
    return tuple(torch.broadcast_shapes(*shapes))
