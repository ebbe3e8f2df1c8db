"""Products of matrices, linear algebra, comparisons of points, and layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from privet.gradients.following.moved import (
    Beside,
    Moved,
    aligned,
    by_broadcasting,
    follows,
    front,
    in_front,
    inside,
    outside,
    place,
    without,
)
from privet.gradients.marks import UNKNOWN, Position, position, stride_at


def beside_matrices(moved: Moved, constant: Tensor, at: Position) -> int | None:
    """Constants are used record by record if the records are left of rows and columns."""
    return by_broadcasting(moved, constant, at) if moved.out.ndim - at.dim > 2 else None


@follows("matmul __matmul__ bmm mm mv", beside=beside_matrices)
def _matmul(moved: Moved) -> int:
    if len(moved.args) < 2 or not all(isinstance(a, Tensor) for a in moved.args[:2]):
        return UNKNOWN
    return _product(moved, moved.args[0], moved.args[1])


@follows("__rmatmul__", beside=beside_matrices)
def _matmul_reversed(moved: Moved) -> int:
    return _product(moved, *moved.args[1::-1]) if len(moved.args) == 2 else UNKNOWN


def _beside_added(moved: Moved, constant: Tensor, at: Position) -> int | None:
    added = constant is moved.argument(0, "input")
    return (by_broadcasting if added else beside_matrices)(moved, constant, at)


@follows("addmm addmv addbmm baddbmm", beside=_beside_added)
def _added_product(moved: Moved) -> int:
    added = moved.argument(0, "input")
    left = moved.argument(1, "batch1", moved.kwargs.get("mat1", moved.kwargs.get("mat")))
    right = moved.argument(2, "batch2", moved.kwargs.get("mat2", moved.kwargs.get("vec")))
    if not isinstance(left, Tensor) or not isinstance(right, Tensor):
        return UNKNOWN
    if moved.out.ndim != max(left.ndim, right.ndim - (left.ndim == 1)):
        return UNKNOWN
    product = _product(moved, left, right)
    for own in moved.tensors:
        if (
            own[0] is added
            and own[1] is not None
            and aligned(replace(moved, tensors=(own,)), moved.out.shape) != product
        ):
            return UNKNOWN
    return product


def _product(moved: Moved, left: Tensor, right: Tensor) -> int:
    """Neither factor may be summed over its records, and the records of both must fall into one dimension."""
    strides = {id(tensor): stride for tensor, stride in moved.tensors}
    found = set()
    for tensor, contracted in ((left, 1), (right, min(2, right.ndim))):
        stride = strides.get(id(tensor))
        if stride is None:
            continue
        at = position(tensor.shape, stride, moved.records)
        if at is None or tensor.ndim - at.dim == contracted:
            return UNKNOWN
        # Counted from the right: a vector has no dimension of its own in the result.
        from_right = tensor.ndim - at.dim
        if tensor is left and right.ndim == 1:
            from_right -= 1
        if tensor is right and left.ndim == 1 and from_right > 2:
            from_right -= 1
        dim = moved.out.ndim - from_right
        if dim < 0 or moved.out.shape[dim] != tensor.shape[at.dim]:
            return UNKNOWN
        found.add(stride_at(moved.out.shape, dim, at.inner))
    return found.pop() if len(found) == 1 else UNKNOWN


def _beside_in_equation(moved: Moved, constant: Tensor, at: Position) -> int | None:
    terms, output = einsum_terms(moved.args)
    return max((term.find(output[at.dim]) for term, factor in terms if factor is constant), default=-1)


def einsum_terms(args: tuple[Any, ...]) -> tuple[list[tuple[str, Tensor]], str]:
    """The letters of each factor of an ``einsum`` and of its result; each dimension of an ellipsis gets a letter of its own."""
    equation, *factors = args
    if len(factors) == 1 and isinstance(factors[0], (tuple, list)):
        factors = list(factors[0])
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = list(zip(inputs.split(","), factors, strict=True))
    dotted = [factor.ndim - len(term) + 3 if "." in term else 0 for term, factor in terms]
    dots = "".join(chr(0x4E00 + i) for i in range(max(dotted)))
    if not arrow:
        every = inputs.replace(",", "").replace(".", "")
        output = "..." + "".join(sorted(letter for letter in set(every) if every.count(letter) == 1))
    whole = [
        (term.replace("...", dots[len(dots) - own :]), factor)
        for (term, factor), own in zip(terms, dotted, strict=True)
    ]
    return whole, output.replace("...", dots)


@follows("einsum", beside=_beside_in_equation)
def _einsum(moved: Moved) -> int:
    if not isinstance(moved.args[0], str):
        return UNKNOWN
    terms, output = einsum_terms(moved.args)
    strides = {id(tensor): stride for tensor, stride in moved.tensors}
    letters = set()
    for term, factor in terms:
        stride = strides.get(id(factor))
        if stride is not None:
            at = position(factor.shape, stride, moved.records)
            letters.add((term[at.dim], at.inner) if at and term.count(term[at.dim]) == 1 else ("", 0))
    letter = letters.pop()[0] if len(letters) == 1 else ""
    if any(len({t.find(letter) for t, other in terms if other is factor} - {-1}) > 1 for _, factor in terms):
        return UNKNOWN  # one tensor with the records' letter in two of its dimensions
    if any(term.count(letter) > 1 for term, _ in terms if letter):
        return UNKNOWN  # the diagonal of a constant, with an entry for each place
    return place(moved, output.index(letter)) if letter and output.count(letter) == 1 else UNKNOWN


@follows("tensordot")
def _contracted(moved: Moved) -> int:
    """The result has the remaining dimensions of the first factor, then those of the second; one factor holds records."""
    left, right, *sums = moved.args
    if len(sums) < 2 or moved.at is None or not moved.single():
        return UNKNOWN
    first = moved.source is left
    summed = [{d % factor.ndim for d in each} for factor, each in ((left, sums[0]), (right, sums[1]))]
    gone = summed[0] if first else summed[1]
    if moved.at.dim in gone:
        return UNKNOWN
    before = 0 if first else left.ndim - len(summed[0])
    return place(moved, before + moved.at.dim - sum(d < moved.at.dim for d in gone))


@follows("inner")
def _inner(moved: Moved) -> int:
    left, right = moved.args[0], moved.argument(1, "other")
    if not isinstance(right, Tensor) or not left.ndim or not right.ndim:
        return UNKNOWN
    return _contracted(replace(moved, args=(left, right, (-1,), (-1,)), kwargs={}))


@follows("outer ger")
def _outer(moved: Moved) -> int:
    return place(moved, 0 if moved.source is moved.args[0] else 1) if moved.single() else UNKNOWN


@follows("cdist", beside=by_broadcasting)
def _distances(moved: Moved) -> int:
    at = moved.shared()
    ndims = {tensor.ndim for tensor, _ in moved.tensors}
    if at is None or at.dim >= moved.source.ndim - 2 or len(ndims) > 1:
        return UNKNOWN
    return place(moved, at.dim)


def _beside_factor(moved: Moved, constant: Tensor, at: Position) -> int | None:
    return at.dim if any(constant is factor for factor in moved.args[:2]) else None


@follows("bilinear", beside=_beside_factor)
def _bilinear(moved: Moved) -> int:
    batched = [tensor for tensor, s in moved.tensors if s is not None]
    inputs = moved.args[:2]
    at = moved.shared()
    if at is None or any(all(t is not i for i in inputs) for t in batched) or at.dim >= batched[0].ndim - 1:
        return UNKNOWN
    return place(moved, at.dim)


def _compared(moved: Moved, default: int) -> tuple[tuple[int, ...], set[int]]:
    """The common shape of two compared tensors, and the dimension that is removed by the comparison."""
    shape = torch.broadcast_shapes(*(tensor.shape for tensor, _ in moved.tensors))
    dim = moved.argument(2, "dim", default) if default > 0 else moved.kwargs.get("dim", default)
    return tuple(shape), {dim % len(shape)} if isinstance(dim, int) else set()


def _beside_compared(default: int) -> Beside:
    def beside(moved: Moved, constant: Tensor, at: Position) -> int | None:
        shape, gone = _compared(moved, default)
        fell = moved.out.ndim < len(shape) and min(gone, default=len(shape)) <= at.dim
        return at.dim + fell + constant.ndim - len(shape)

    return beside


@follows("cosine_similarity", beside=_beside_compared(1))
def _cosine(moved: Moved) -> int:
    return without(moved, *_compared(moved, 1))


@follows("pairwise_distance linalg_vecdot", beside=_beside_compared(-1))
def _pairwise(moved: Moved) -> int:
    return without(moved, *_compared(moved, -1))


follows("linalg_inv_ex linalg_cholesky_ex linalg_matrix_exp matrix_exp linalg_det det logdet slogdet linalg_slogdet")(
    inside(2)
)


@follows("linalg_matrix_power matrix_power")
def _power(moved: Moved) -> int:
    """A negative power needs an inverse, which may not exist."""
    return inside(2)(moved) if moved.argument(1, "n") >= 0 else UNKNOWN


@follows("linalg_solve_ex linalg_solve_triangular", beside=beside_matrices)
def _solved(moved: Moved) -> int:
    """The records are left of rows and columns. With a constant matrix, each record may be one of the right-hand sides."""
    matrix, right = moved.args[0], moved.argument(1, "B")
    at = moved.shared()
    if at is None or not isinstance(right, Tensor) or matrix.ndim != right.ndim:
        return UNKNOWN
    sides = right.ndim - (1 if moved.kwargs.get("left", True) else 2)
    of_one_matrix = moved.source is right and moved.single() and at.dim == sides
    return place(moved, at.dim) if at.dim < right.ndim - 2 or of_one_matrix else UNKNOWN


def _states(moved: Moved) -> Sequence[Any]:
    """The initial states of a recurrent layer."""
    given = moved.args[1] if len(moved.args) > 1 else ()
    return given if isinstance(given, (tuple, list)) else (given,)


def _beside_recurrent(moved: Moved, constant: Tensor, at: Position) -> int | None:
    """A state of a recurrent layer holds its records in dimension 1, and an input in 0 or 1."""
    if constant is moved.args[0]:
        return 0 if moved.argument(8, "batch_first") else 1
    return 1 if any(constant is state for state in _states(moved)) else None


def _beside_cell(moved: Moved, constant: Tensor, at: Position) -> int | None:
    return 0 if any(constant is each for each in (moved.args[0], *_states(moved))) else None


@follows("lstm gru rnn_tanh rnn_relu", beside=_beside_recurrent)
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


follows("lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell", beside=_beside_cell)(front)
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


def _beside_sampled(moved: Moved, constant: Tensor, at: Position) -> int | None:
    """Places of fractional pooling that are given: (records, channels, dimensions)."""
    return at.dim if constant.ndim == 3 and moved.out.ndim > 3 else None


for _spatial in (1, 2, 3):
    for _pool in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool", "lp_pool", "upsample_nearest",
                  "_upsample_nearest_exact", "fractional_max_pool"):  # fmt: skip
        follows(f"{_pool}{_spatial}d", f"{_pool}{_spatial}d_with_indices", beside=_beside_sampled)(inside(_spatial))
    follows(f"max_unpool{_spatial}d", beside=by_broadcasting)(inside(_spatial))


def _beside_bias(moved: Moved, constant: Tensor, at: Position) -> int | None:
    return by_broadcasting(moved, constant, at) if constant is moved.argument(2, "bias") else None


follows("linear", beside=_beside_bias)(inside(1))
follows("upsample_linear1d view_as_complex")(inside(1))
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
