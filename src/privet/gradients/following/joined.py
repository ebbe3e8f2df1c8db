"""What may be done to a sum or a mean over the records."""

from __future__ import annotations

from privet.gradients.following.moved import Moved
from privet.gradients.layout import UNKNOWN

_LINEAR = frozenset(
    "sum mean view reshape flatten ravel unflatten squeeze unsqueeze contiguous clone detach alias to float double neg "
    "negative __neg__ positive expand select unbind getitem __getitem__ half bfloat16 type atleast_1d cpu cuda".split()
)
_SCALING = frozenset("mul multiply div divide true_divide __mul__ __rmul__ __truediv__ __imul__ __itruediv__".split())
_ADDING = frozenset(
    "add sub subtract __add__ __radd__ __sub__ __rsub__ __iadd__ __isub__ stack cat concat concatenate hstack".split()
)


def joined(name: str, moved: Moved) -> int:
    """What keeps a sum over records a sum over records: linear operations with constants, and sums of such sums."""
    kinds = {stride for _, stride in moved.tensors if stride is not None}
    if len(kinds) != 1 or UNKNOWN in kinds:
        return UNKNOWN
    (kind,) = kinds
    if any(
        stride is not None and any(tensor is value for value in moved.kwargs.values())
        for tensor, stride in moved.tensors
    ):
        return UNKNOWN  # torch.add(one, other, alpha=a_sum) is a product of sums
    batched = [tensor for tensor, stride in moved.tensors if stride is not None]
    plain = name.removesuffix("_") if not name.startswith("__") else name
    if plain in _ADDING or (plain in _LINEAR and len(batched) == 1 and moved.args and moved.args[0] is batched[0]):
        return kind
    if plain in _SCALING and len(batched) == 1:
        divides = "div" in plain and plain != "__rtruediv__"
        numerator = moved.args[0] if moved.args else None
        return kind if not divides or numerator is batched[0] else UNKNOWN
    return UNKNOWN
