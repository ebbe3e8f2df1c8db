"""Operations on single entries, reductions, operations along dimensions, and losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from privet.gradients.following.moved import (
    FOLLOWERS,
    Follow,
    Moved,
    aligned,
    along,
    by_broadcasting,
    dims,
    follower,
    follows,
    in_front,
    is_along,
    place,
)
from privet.gradients.marks import MEAN, SUM, UNKNOWN, position


@follows(
    # one tensor
    "abs absolute acos acosh arccos arccosh asin asinh arcsin arcsinh atan atanh arctan arctanh ceil clamp clamp_min",
    "clamp_max clip conj conj_physical resolve_conj resolve_neg cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1",
    "fix floor frac lgamma log log10 log1p log2 logit mvlgamma neg negative positive polygamma rad2deg reciprocal relu",
    "relu6 round rsqrt sigmoid sign sgn signbit sin sinc sinh softplus softsign hardtanh hardswish hardsigmoid hardshrink",
    "softshrink tanhshrink threshold elu selu celu leaky_relu gelu silu mish logsigmoid log_sigmoid sqrt square tan tanh",
    "trunc nan_to_num isnan isinf isfinite isposinf isneginf bitwise_not logical_not invert dropout alpha_dropout",
    "angle real imag i0 igamma igammac lshift rshift bitwise_left_shift bitwise_right_shift",
    "special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_digamma special_entr",
    "special_erf special_erfc special_erfcx special_erfinv special_exp2 special_expit special_expm1 special_gammainc",
    "special_gammaincc special_gammaln special_i0 special_i0e special_i1 special_i1e special_log1p special_log_ndtr",
    "special_logit special_multigammaln special_ndtr special_ndtri special_polygamma special_psi special_round special_sinc",
    "special_xlog1py special_xlogy special_zeta",
    # copies
    "clone detach alias as_subclass contiguous float double half bfloat16 long int short bool byte char type cpu cuda",
    "deepcopy __deepcopy__ requires_grad data zero fill",
    # several tensors, by broadcasting
    "add sub subtract mul multiply div divide true_divide floor_divide remainder fmod mod pow float_power rsub truediv",
    "floordiv maximum minimum fmax fmin atan2 arctan2 hypot copysign nextafter logaddexp logaddexp2 xlogy bitwise_and",
    "bitwise_or bitwise_xor logical_and logical_or logical_xor and or xor eq ne lt le gt ge not_equal less greater",
    "less_equal greater_equal isclose complex polar masked_fill lerp addcmul addcdiv heaviside ldexp copy _prelu_kernel",
    beside=by_broadcasting,
)  # fmt: skip
def _elementwise(moved: Moved) -> int:
    return aligned(moved, moved.out.shape)


def is_entrywise(name: str) -> bool:
    """Whether each number of a result is computed from numbers at the same place."""
    return follower(name) in (_elementwise, _where, _converted)


@follows("where", beside=by_broadcasting)
def _where(moved: Moved) -> int:
    """With one argument, ``where`` lists the places that are not zero."""
    return aligned(moved, moved.out.shape) if len(moved.args) + len(moved.kwargs) > 2 else UNKNOWN


@follows("broadcast_tensors", beside=by_broadcasting)
def _broadcast_tensors(moved: Moved) -> int:
    """Each result is the argument with the same index, expanded."""
    own = moved.tensors[moved.index]
    return (
        aligned(moved, moved.out.shape) if own[1] is None else aligned(replace(moved, tensors=(own,)), moved.out.shape)
    )


@follows("type_as to")
def _converted(moved: Moved) -> int:
    """Only the dtype and the device of a second tensor matter."""
    return place(moved, moved.at.dim) if moved.at and moved.args[0] is moved.source else UNKNOWN


@follows("bucketize isin")
def _first_elementwise(moved: Moved) -> int:
    return place(moved, moved.at.dim) if moved.at and moved.only_first() else UNKNOWN


def _is_reduced(moved: Moved, index: int, joined: int, default: Any = None) -> int:
    at, gone = moved.at, dims(moved, index, default)
    if at is None or not moved.only_first():
        return UNKNOWN
    if gone is None or at.dim in gone:
        return joined
    kept = moved.out.ndim == moved.source.ndim
    return place(moved, at.dim if kept else at.dim - sum(d < at.dim for d in gone))


def _reduction(index: int, joined: int = UNKNOWN, default: Any = None) -> Follow:
    return lambda moved: _is_reduced(moved, index, joined, default)


follows("sum")(_reduction(1, SUM))
follows("mean")(_reduction(1, MEAN))
follows(
    "amax amin var std var_mean std_mean logsumexp argmax argmin prod any all median nanmedian nansum nanmean",
    "count_nonzero mode aminmax special_logsumexp _is_all_true _is_any_true",
)(_reduction(1))  # fmt: skip
follows("norm linalg_norm linalg_vector_norm vector_norm kthvalue")(_reduction(2))
follows("linalg_matrix_norm")(_reduction(2, default=(-2, -1)))


@follows("quantile nanquantile")
def _quantile(moved: Moved) -> int:
    """Several quantiles at once are in a new dimension, in front."""
    at, gone, q = moved.at, dims(moved, 2, None), moved.argument(1, "q")
    if at is None or gone is None or at.dim in gone or not moved.only_first():
        return UNKNOWN
    front = int(isinstance(q, Tensor) and q.ndim == 1)
    kept = moved.out.ndim - front == moved.source.ndim
    return place(moved, front + at.dim - (0 if kept else sum(d < at.dim for d in gone)))


@follows("max min", beside=by_broadcasting)
def _extreme(moved: Moved) -> int:
    other = moved.argument(1, "other")
    return aligned(moved, moved.out.shape) if isinstance(other, Tensor) else _is_reduced(moved, 1, UNKNOWN)


follows("softmax log_softmax special_softmax special_log_softmax cumsum cumprod logcumsumexp cummax cummin unfold")(
    along(1)
)
follows("fft_fftshift fft_ifftshift")(along(1))
follows("sort argsort glu")(along(1, -1))
follows("topk fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_ihfft")(along(2, -1))
follows("diff", beside=by_broadcasting)(along(2, -1))
follows("fft_fftn fft_ifftn fft_rfftn fft_irfftn roll")(along(2))
follows("fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2")(along(2, (-2, -1)))
follows("rot90")(along(2, (0, 1)))
_NAMED = 99
"""No operation has this many positional arguments: the dimension can only be given by name."""
follows("fliplr")(along(_NAMED, 1))
follows("flipud msort")(along(_NAMED, 0))
follows("cross", beside=by_broadcasting)(along(2))
follows("linalg_cross", beside=by_broadcasting)(along(_NAMED, -1))


@follows("trapezoid trapz")
def _integrated(moved: Moved) -> int:
    return _is_reduced(moved, _NAMED, UNKNOWN, -1) if _has_equal_places(moved) else UNKNOWN


@follows("cumulative_trapezoid")
def _integrated_along(moved: Moved) -> int:
    return is_along(moved, _NAMED, -1) if _has_equal_places(moved) else UNKNOWN


def _has_equal_places(moved: Moved) -> bool:
    """Whether the values are given at the same places for every record."""
    x = moved.argument(1, "x")
    return moved.only_first() and (x is None or (isinstance(x, Tensor) and x.ndim == 1))


@follows("renorm")
def _renormalized(moved: Moved) -> int:
    """Each slice along `dim` is normalized on its own: the records must be these slices."""
    at, dim = moved.at, moved.argument(2, "dim")
    return place(moved, at.dim) if at and moved.only_first() and at.dim == dim % moved.source.ndim else UNKNOWN


@follows("stft")
def _spectrum(moved: Moved) -> int:
    return (
        place(moved, 0) if moved.only_first() and moved.source.ndim == 2 and moved.at and moved.at.dim == 0 else UNKNOWN
    )


@follows("istft")
def _signal(moved: Moved) -> int:
    return (
        place(moved, 0) if moved.only_first() and moved.source.ndim == 3 and moved.at and moved.at.dim == 0 else UNKNOWN
    )


_NONE, _MEAN_OF_ALL, _SUM_OF_ALL = 0, 1, 2
"""The numbers that stand for a reduction in torch's losses."""


def _reduced_loss(moved: Moved, stride: int, index: int | None) -> int:
    """The losses of single entries, with the records at `stride`, combined as the operation's reduction says."""
    stated: Any = moved.args[slice(-1, None) if index is None else slice(index, index + 1)]
    reduction = moved.kwargs.get("reduction", stated[0] if stated else None)
    if type(reduction) is not int:  # it is a margin or a weight, and the reduction was left out
        return UNKNOWN
    return {_MEAN_OF_ALL: MEAN, _SUM_OF_ALL: SUM, _NONE: stride}.get(reduction, UNKNOWN) if stride >= 0 else UNKNOWN


def _elementwise_loss(index: int | None) -> Follow:
    def follow_loss(moved: Moved) -> int:
        shape = torch.broadcast_shapes(*(tensor.shape for tensor, _ in moved.tensors))
        stride = aligned(moved, shape)
        return _reduced_loss(moved, stride if position(shape, stride, moved.records) else UNKNOWN, index)

    return follow_loss


_ELEMENTWISE_LOSSES = (_elementwise_loss(None), _elementwise_loss(2))
"""Losses of single entries whose reduction is the last argument, and those where it is the third."""
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
    rows = (
        isinstance(moved.args[0], Tensor) and moved.args[0].ndim == 2
    )  # without a second dimension, all of it is one row
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
    """The shape that the losses had before they were combined; empty if the operation is not such a loss."""
    known = FOLLOWERS.get(name)
    if known is not _row_loss and known not in _ELEMENTWISE_LOSSES:
        return ()
    shapes = (tensor.shape for tensor, _ in moved.tensors if tensor.ndim == moved.source.ndim)
    return tuple(torch.broadcast_shapes(*shapes))
