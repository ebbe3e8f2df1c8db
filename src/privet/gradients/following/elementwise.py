"""Operations on single entries, and copies of them."""

from __future__ import annotations

from dataclasses import replace

from privet.gradients.following.moved import Moved, aligned, place
from privet.gradients.following.registry import by_broadcasting, follows
from privet.gradients.layout import UNKNOWN


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
    "clone detach alias contiguous float double half bfloat16 long int short bool byte char type cpu cuda",
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


@follows("where", beside=by_broadcasting)
def _where(moved: Moved) -> int:
    """With one argument it lists the places that are not zero."""
    return aligned(moved, moved.out.shape) if len(moved.args) + len(moved.kwargs) > 2 else UNKNOWN


@follows("broadcast_tensors", beside=by_broadcasting)
def _broadcast_tensors(moved: Moved) -> int:
    """Each result is the argument of its place, expanded."""
    own = moved.tensors[moved.index]
    return (
        aligned(moved, moved.out.shape) if own[1] is None else aligned(replace(moved, tensors=(own,)), moved.out.shape)
    )


@follows("type_as to")
def _converted(moved: Moved) -> int:
    """Of a second tensor, only the type and the device count."""
    return place(moved, moved.at.dim) if moved.at and moved.args[0] is moved.source else UNKNOWN


@follows("bucketize isin")
def _first_elementwise(moved: Moved) -> int:
    return place(moved, moved.at.dim) if moved.at and moved.only_first() else UNKNOWN
