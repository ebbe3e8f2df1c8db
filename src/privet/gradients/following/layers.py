"""Layers: recurrent ones, convolutions, pools, normalizations, attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from privet.gradients.following.moved import Moved, front, inside, outside, place
from privet.gradients.following.products import beside_matrices
from privet.gradients.following.registry import Beside, by_broadcasting, follows, in_front
from privet.gradients.layout import UNKNOWN, position, stride_at


def _states(moved: Moved) -> Sequence[Any]:
    """The initial states of a recurrent layer."""
    given = moved.args[1] if len(moved.args) > 1 else ()
    return given if isinstance(given, (tuple, list)) else (given,)


def _beside_state(dim: int) -> Beside:
    """A state of a recurrent layer holds its records in `dim`."""
    return lambda moved, constant, at: dim if any(constant is state for state in _states(moved)) else None


@follows("lstm gru rnn_tanh rnn_relu", beside=_beside_state(1))
def _recurrent(moved: Moved) -> int:
    """The output holds the records where the input does; states hold them in dimension 1."""
    if not isinstance(moved.argument(3, "has_biases"), bool):  # a packed sequence
        return UNKNOWN
    batch_dim = 0 if moved.argument(8, "batch_first") else 1
    states = _states(moved)
    found = set()
    for tensor, stride in moved.tensors:
        if stride is not None:
            at = position(tensor.shape, stride, moved.records)
            expected = batch_dim if tensor is moved.args[0] else 1 if any(tensor is s for s in states) else -1
            if at is None or at.dim != expected:
                return UNKNOWN
            found.add((at.outer, at.inner))
    if len(found) != 1:
        return UNKNOWN
    return stride_at(moved.out.shape, batch_dim if moved.index == 0 else 1, found.pop()[1])


follows("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell", beside=_beside_state(0))(front)
follows("grid_sample grid_sampler affine_grid affine_grid_generator", beside=in_front)(front)


@follows("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d")
def _convolved(moved: Moved) -> int:
    weight = moved.argument(1, "weight")
    return front(moved) if moved.only_first() and moved.source.ndim == weight.ndim else UNKNOWN


@follows("group_norm instance_norm feature_dropout feature_alpha_dropout pixel_shuffle pixel_unshuffle channel_shuffle",
          "im2col col2im native_channel_shuffle")  # fmt: skip
def _first_in_front(moved: Moved) -> int:
    return front(moved) if moved.only_first() else UNKNOWN


@follows("batch_norm")
def _batch_norm(moved: Moved) -> int:
    at = moved.at
    if at is None or at.dim == 1 or not moved.only_first() or moved.argument(5, "training"):
        return UNKNOWN
    return place(moved, at.dim)


@follows("prelu")
def _prelu(moved: Moved) -> int:
    at, weight = moved.at, moved.argument(1, "weight")
    if at is None or not moved.only_first() or (weight.numel() > 1 and at.dim == 1):
        return UNKNOWN
    return place(moved, at.dim)


@follows("layer_norm rms_norm")
def _normalized(moved: Moved) -> int:
    return outside(moved, len(moved.argument(1, "normalized_shape")))


for _spatial in (1, 2, 3):
    for _pool in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool", "lp_pool", "upsample_nearest",
                  "_upsample_nearest_exact", "fractional_max_pool"):  # fmt: skip
        follows(f"{_pool}{_spatial}d", f"{_pool}{_spatial}d_with_indices")(inside(_spatial))
    follows(f"max_unpool{_spatial}d", beside=by_broadcasting)(inside(_spatial))


follows("upsample_linear1d linear view_as_complex")(inside(1))
follows("upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa tril triu")(inside(2))
follows("upsample_trilinear3d")(inside(3))
follows("view_as_real")(inside(0))


@follows("scaled_dot_product_attention", beside=beside_matrices)
def _attention(moved: Moved) -> int:
    """Queries, keys, values and mask have their records in one dimension, left of positions and features."""
    found = set()
    for tensor, stride in moved.tensors:
        if stride is not None:
            at = position(tensor.shape, stride, moved.records)
            if at is None or tensor.ndim - at.dim < 3:
                return UNKNOWN
            dim = moved.out.ndim - (tensor.ndim - at.dim)
            if dim < 0 or moved.out.shape[dim] != tensor.shape[at.dim]:
                return UNKNOWN
            found.add((dim, at.inner))
    if len(found) != 1:
        return UNKNOWN
    dim, inner = found.pop()
    return stride_at(moved.out.shape, dim, inner)
