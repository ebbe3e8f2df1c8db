"""Parameters and views of them: rearrangements, which change no norm and round nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Placed:
    """A tensor that is a parameter, or a view of one that shows no number twice: transposed, reshaped, or a part."""

    name: str
    parameter: Tensor
    tensor: Tensor

    @classmethod
    def of(cls, tensor: Tensor, name: str, parameter: Tensor) -> Placed | None:
        """`tensor` as a view of the parameter, if it is one.

        A tensor that lives in a parameter's memory has its numbers, only in another order: arithmetic needs new memory.
        """
        if tensor is parameter:
            return cls(name, parameter, tensor)
        shares = tensor.untyped_storage().data_ptr() == parameter.untyped_storage().data_ptr()
        if not shares or tensor.dtype != parameter.dtype or not _is_dense(parameter):
            return None
        return cls(name, parameter, tensor) if _shows_each_once(tensor) else None

    @property
    def is_whole(self) -> bool:
        return self.tensor.numel() == self.parameter.numel()

    def put(self, gradient: Tensor, *, batched: bool = False) -> Tensor:
        """From the gradient of the tensor, or one for each record, to that of the parameter."""
        if self.tensor is self.parameter:
            return gradient
        p, records = self.parameter, (len(gradient),) if batched else ()
        outer = (p.numel(),) if batched else ()
        whole = torch.empty_strided(
            (*records, *p.shape), (*outer, *p.stride()), dtype=gradient.dtype, device=gradient.device
        ).zero_()
        self._within(whole, records, outer).copy_(gradient)
        return whole

    def take(self, values: Tensor) -> Tensor:
        """Of values for each number of the parameter, those that the tensor shows."""
        if self.tensor is self.parameter:
            return values
        p = self.parameter
        whole = torch.empty_strided(p.shape, p.stride(), dtype=values.dtype, device=values.device).copy_(values)
        return self._within(whole, (), ())

    def _within(self, whole: Tensor, records: tuple[int, ...], outer: tuple[int, ...]) -> Tensor:
        t = self.tensor
        offset = t.storage_offset() - self.parameter.storage_offset()
        return whole.as_strided((*records, *t.shape), (*outer, *t.stride()), offset)


def _is_dense(tensor: Tensor) -> bool:
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return span == tensor.numel() and _shows_each_once(tensor)


def _shows_each_once(tensor: Tensor) -> bool:
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reach:
            return False
        reach += (size - 1) * stride
    return tensor.numel() > 0
