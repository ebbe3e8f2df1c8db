"""The names of torch's operations, grouped by their effects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from types import FunctionType
from typing import Any

import numpy
import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.autograd.function import BackwardCFunction

SILENT = frozenset(
    "size dim stride numel nelement __len__ is_floating_point is_complex is_contiguous element_size get_device "
    "ndimension storage_offset is_nested _is_view _set_grad_enabled __hash__ is_same_size "
    "result_type is_signed retain_grad is_shared is_pinned __dir__ has_names is_inference "
    "is_conj is_neg is_set_to broadcast_shapes promote_types can_cast dtype_of _record_function_enter_new "
    "_record_function_exit._RecordFunction".split()
)
"""Operations that reveal nothing about the values of a tensor."""
SIZES = frozenset("size shape numel nelement __len__ nbytes stride".split())
"""Of these, the ones that tell how many rows a tensor has."""
AS_IT_IS = frozenset("to long int cpu cuda clone detach contiguous pin_memory".split())
"""Operations that change no number of a tensor of integers, and none of its shape."""
CONSTANTS = frozenset(
    "new_zeros new_ones new_full new_empty new_tensor zeros_like ones_like full_like empty_like rand_like randn_like "
    "randint_like".split()
)
"""Operations that use the shape, dtype and device of a tensor, but none of its values."""
LIKE_ANOTHER = frozenset("view_as reshape_as expand_as type_as to".split())
"""Operations that use the values of the first argument, and only the shape or dtype of others."""
ESCAPES = frozenset(
    "item tolist __bool__ __int__ __float__ __index__ __complex__ numpy __array__ __contains__ equal allclose is_nonzero "
    "__dlpack__ __reduce_ex__ __repr__ __str__ __format__ untyped_storage storage data_ptr apply_ map_ map2_".split()
)
"""Operations that turn values of a tensor into Python numbers or text, or show them to a Python function."""
EXPOSING = frozenset("numpy __array__ __dlpack__ untyped_storage storage data_ptr".split())
"""Of these, the ones that show the memory of a tensor, so that others than torch can write into it."""
UNINITIALIZED = frozenset(
    "empty empty_like new_empty empty_strided new_empty_strided empty_permuted _empty_affine_quantized "
    "_empty_per_channel_affine_quantized".split()
)
"""Operations whose result holds what was left in the memory: perhaps values of records."""
FROM_OUTSIDE = frozenset("tensor as_tensor asarray frombuffer new_tensor".split())
"""Operations that make a tensor of Python numbers, or of memory that is not torch's."""
HOOKING = frozenset({"register_hook", "grad_fn", "_backward_hooks_", "_post_accumulate_grad_hooks_"})
"""Ways to a hook on the gradient of a tensor: its node in the autograd graph takes hooks, too."""
DRAWING = frozenset(
    "rand randn randint rand_like randn_like randint_like uniform_ normal_ exponential_ random_ cauchy_ log_normal_ "
    "geometric_".split()
)
"""Operations that draw numbers, each independently of its place."""
DRAWING_FROM = frozenset("normal bernoulli poisson bernoulli_ dropout".split())
"""Operations that draw each number from a distribution that a tensor may give for its place."""
DIVIDING = frozenset("div divide true_divide __truediv__ __itruediv__ div_ divide_ true_divide_".split())
MULTIPLYING = frozenset("mul multiply __mul__ __rmul__ __imul__ mul_ multiply_".split())
_GETTERS_THAT_MOVE = frozenset({"T", "mT", "mH", "H", "real", "imag", "data", "grad", "grad_fn"})
_SILENT_SETTERS = frozenset({"requires_grad_", "names_"})
TAKEN_APART = frozenset(
    "unfold fold mse_loss l1_loss binary_cross_entropy binary_cross_entropy_with_logits soft_margin_loss poisson_nll_loss "
    "margin_ranking_loss hinge_embedding_loss smooth_l1_loss huber_loss kl_div cosine_embedding_loss multi_margin_loss "
    "multilabel_margin_loss triplet_margin_loss embedding_bag embedding norm ctc_loss tensordot".split()
)
"""Python functions of torch that are followed part by part, because their arguments differ from those of the operation with the
same name."""
DROPOUTS = frozenset("dropout dropout_ alpha_dropout alpha_dropout_ feature_dropout feature_alpha_dropout".split())


def name_of_function(func: Callable[..., Any]) -> str:
    """The name of an operation; one that does not belong to torch has its module in front, because the name says nothing."""
    name: str = getattr(func, "__name__", "")
    if isinstance(func, FunctionType):
        return name if f"{func.__module__}.".startswith("torch.") else f"{func.__module__}.{name}"
    if isinstance(func, OpOverloadPacket) and not func._qualified_op_name.startswith("aten::"):
        return func._qualified_op_name
    if name in ("__get__", "__set__"):
        found: str = getattr(getattr(func, "__self__", None), "__name__", name)
        return found if name == "__get__" else f"{found}_"
    return name


def is_silent_getter(func: Callable[..., Any], name: str) -> bool:
    kind = func.__name__
    if kind == "__get__":
        return name not in _GETTERS_THAT_MOVE
    return kind == "__set__" and name in _SILENT_SETTERS


def is_collective(func: Callable[..., Any]) -> bool:
    """Whether an operation communicates with other processes."""
    if isinstance(func, FunctionType):
        return func.__module__.startswith("torch.distributed.")
    operator = func._qualified_op_name if isinstance(func, OpOverloadPacket) else ""
    if isinstance(func, OpOverload):
        operator = func.namespace
    return "c10d" in operator


@cache
def is_custom(kind: type) -> bool:
    own = getattr(getattr(kind, "_forward_cls", None), "__module__", "").startswith("privet.gradients.")
    return issubclass(kind, BackwardCFunction) and not own


@cache
def is_plain(kind: type) -> bool:
    """Whether a class runs operations of torch as torch does, and has no ``__torch_function__`` of its own."""
    function = kind.__torch_function__  # type: ignore[attr-defined]
    return issubclass(kind, Tensor) and getattr(function, "__func__", function) in _PLAIN_FUNCTIONS


@cache
def is_dispatching(kind: type) -> bool:
    """Whether a class of tensors computes operations of torch in a way of its own."""
    own: bool = kind.__torch_dispatch__ is not Tensor.__torch_dispatch__  # type: ignore[attr-defined]
    return own


def written_by(name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The tensor that an operation changes in place, if it changes one."""
    out = kwargs.get("out")
    if isinstance(out, Tensor):
        return out
    changes = (name.endswith("_") and not name.endswith("__")) or name in _WRITING
    if changes and name not in ("requires_grad_", "retain_grad_"):
        first = args[0] if args else next(iter(kwargs.values()), None)  # torch.nn.init names its arguments
        return first if isinstance(first, Tensor) else None
    return None


_PLAIN_FUNCTIONS = (Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl)  # type: ignore[attr-defined]
_WRITING = frozenset(
    "__setitem__ __iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__ "
    "__ilshift__ __irshift__".split()
)


_ATOMS = frozenset({int, float, bool, str, type(None), torch.Size, torch.dtype, torch.device})
"""Types that are not tensors and contain none. They are checked first, because ``isinstance(1, Tensor)`` is slow."""


_NUMBERS = frozenset({int, float, bool, complex, str, bytes})


def tells_numbers(value: Any) -> bool:
    """Whether a result holds a Python number or text."""
    return type(value) in _NUMBERS or (type(value) in (tuple, list) and any(map(tells_numbers, value)))


def is_from_outside(value: Any) -> bool:
    """Whether a value holds an array or a block of memory that is not torch's."""
    if isinstance(value, (tuple, list)):
        return any(map(is_from_outside, value))
    return isinstance(value, (numpy.ndarray, memoryview, bytearray, bytes))


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in a value, in order."""
    found: list[Tensor] = []
    _gather((value,), found)
    return found


def _gather(values: Iterable[Any], found: list[Tensor]) -> None:
    for value in values:
        if type(value) in _ATOMS:
            continue
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            _gather(value, found)
        elif isinstance(value, dict):
            _gather(value.values(), found)
        elif isinstance(value, slice):  # x[:, : lengths.max()]
            _gather((value.start, value.stop, value.step), found)


@cache
def unguarded(func: FunctionType) -> Callable[..., Any]:
    """torch's own Python function without its check for active modes, so that its parts are seen one by one: multi-head
    attention becomes the linear maps that it consists of."""
    never = {name: _never for name in func.__globals__ if name.startswith("has_torch_function")}
    clone = FunctionType(
        func.__code__, {**func.__globals__, **never}, func.__name__, func.__defaults__, func.__closure__
    )
    clone.__kwdefaults__ = func.__kwdefaults__
    return clone


def _never(*_: Any) -> bool:
    return False
