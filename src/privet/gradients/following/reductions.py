"""Reductions of dimensions, and operations along them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from privet.gradients.following.moved import Follow, Moved, aligned, along, dims, is_along, place
from privet.gradients.following.registry import by_broadcasting, follows
from privet.gradients.layout import MEAN, SUM, UNKNOWN


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
"""No operation has so many arguments: the dimension can only be named."""
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
    """What is cut along `dim` is normalized, each slice on its own: the records must be these slices."""
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
