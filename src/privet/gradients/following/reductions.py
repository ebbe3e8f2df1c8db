"""Reductions of dimensions, and operations along them."""

from __future__ import annotations

from torch import Tensor

from privet.gradients.following.moved import Follow, Moved, aligned, along, dims, place
from privet.gradients.following.registry import by_broadcasting, follows
from privet.gradients.layout import MEAN, SUM, UNKNOWN


def _is_reduced(moved: Moved, index: int, joined: int) -> int:
    at, gone = moved.at, dims(moved, index, None)
    if at is None or not moved.only_first():
        return UNKNOWN
    if gone is None or at.dim in gone:
        return joined
    kept = moved.out.ndim == moved.source.ndim
    return place(moved, at.dim if kept else at.dim - sum(d < at.dim for d in gone))


def _reduction(index: int, joined: int = UNKNOWN) -> Follow:
    return lambda moved: _is_reduced(moved, index, joined)


follows("sum")(_reduction(1, SUM))
follows("mean")(_reduction(1, MEAN))
follows(
    "amax amin var std var_mean std_mean logsumexp argmax argmin prod any all median nanmedian nansum nanmean",
    "count_nonzero mode aminmax",
)(_reduction(1))  # fmt: skip
follows("norm linalg_vector_norm vector_norm kthvalue")(_reduction(2))


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


follows("softmax log_softmax cumsum cumprod logcumsumexp cummax cummin unfold")(along(1))
follows("sort argsort glu")(along(1, -1))
follows("topk fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_ihfft")(along(2, -1))
follows("diff", beside=by_broadcasting)(along(2, -1))
follows("fft_fftn fft_ifftn roll")(along(2))
follows("fft_fft2 fft_ifft2 fft_rfft2")(along(2, (-2, -1)))
