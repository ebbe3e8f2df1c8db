"""A sum over records that no single record can change by much: only clipping makes one, only noise consumes one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from privet.errors import PrivetError

Deviations = Callable[[], Mapping[str, Tensor | float]]
"""The standard deviation of the noise in each tensor of a release, by its name; public."""


@dataclass(frozen=True, eq=False)
class BoundedSum:
    """A sum of clipped per-example gradients, with what one record can do to it.

    Formal guarantees: adding or removing one record changes ``tensors`` by at most `sensitivity` in Euclidean norm, all
    tensors together, and changes ``tensors[name] / scales[name]`` by at most 1, all tensors together, but for 1e-5 of it.
    That covers rounding: tensors are float64. Sums over disjoint records add up to a sum with the same bounds.
    """

    tensors: Mapping[str, Tensor]
    sensitivity: float
    scales: Mapping[str, Tensor | float]
    """Noise of standard deviation ``multiplier * scales[name]`` protects the sum with that multiplier."""
    records: int
    """How many records took part; not to be published."""
    bad: int = 0
    """How many of them had a gradient that was not finite, and contributed zero."""
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    """To which dtype a tensor is rounded once it has its noise, if not to its own."""

    def dtype_of(self, name: str) -> torch.dtype:
        """To which dtype a tensor is rounded once it has its noise."""
        return self.dtypes.get(name, self.tensors[name].dtype)

    def drawn_in(self, name: str) -> torch.dtype:
        """In which dtype seeded noise for a tensor is drawn: the one it is rounded to, or float32 for a smaller one."""
        dtype = self.dtype_of(name)
        return dtype if dtype == torch.float64 else torch.float32

    def __add__(self, other: BoundedSum) -> BoundedSum:
        if self.scales.keys() != other.scales.keys() or not all(
            _same(self.scales[n], other.scales[n]) for n in self.scales
        ):
            raise PrivetError("Sums that were clipped differently cannot be added: their sensitivity would be unknown.")
        tensors = {name: tensor + other.tensors[name] for name, tensor in self.tensors.items()}
        return replace(self, tensors=tensors, records=self.records + other.records, bad=self.bad + other.bad)


def _same(one: Tensor | float, other: Tensor | float) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return bool(one == other)
