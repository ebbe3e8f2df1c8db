"""Bounded sums, and the protocol of everything that makes one from the gradients of records.

Clipping makes a `BoundedSum`: a sum over records that one record can change only by a known amount. Noise accepts nothing else.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from privet.errors import InputError, PrivetError
from privet.gradients import PerExampleGradients

State = Any
"""The state of a clipping or of a noise: None, numbers, text, tensors, and mappings, tuples and lists of these.

A checkpoint saves it as it is."""

Deviations = Callable[[], Mapping[str, Tensor | float]]
"""Computes the standard deviation of the noise in each tensor of a release, by name. It is public."""

ROUNDING = 1 + 1e-5
"""Computed norms are multiplied by this before they are compared with a bound: rounding may have made them too small."""


@dataclass(frozen=True, eq=False)
class BoundedSum:
    """A sum of clipped per-example gradients, with a bound on the influence of one record.

    Formal guarantees: adding or removing one record changes ``tensors`` by at most `sensitivity` in Euclidean norm, all
    tensors together, and changes ``tensors[name] / scales[name]`` by at most 1, all tensors together, up to a relative
    error of 1e-5 for rounding; tensors are float64. Sums over disjoint records add up to a sum with the same bounds.
    """

    tensors: Mapping[str, Tensor]
    sensitivity: float
    scales: Mapping[str, Tensor | float]
    """Noise of standard deviation ``multiplier * scales[name]`` protects the sum with that noise multiplier."""
    records: int
    """The number of records in the sum. Do not publish it."""
    bad: int = 0
    """The number of records whose gradient was not finite; they contributed zero."""
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    """The dtype to which a tensor is rounded after noise was added, where it is not the tensor's own."""

    def dtype_of(self, name: str) -> torch.dtype:
        """The dtype to which a tensor is rounded after noise was added."""
        return self.dtypes.get(name, self.tensors[name].dtype)

    def drawn_in(self, name: str) -> torch.dtype:
        """The dtype in which seeded noise for a tensor is drawn: float64 for a float64 parameter, otherwise float32."""
        dtype = self.dtype_of(name)
        return dtype if dtype == torch.float64 else torch.float32

    def __add__(self, other: BoundedSum) -> BoundedSum:
        if self.scales.keys() != other.scales.keys() or not all(
            _same(self.scales[n], other.scales[n]) for n in self.scales
        ):
            raise PrivetError("Sums that were clipped differently cannot be added: their sensitivity would be unknown.")
        tensors = {name: tensor + other.tensors[name] for name, tensor in self.tensors.items()}
        return replace(self, tensors=tensors, records=self.records + other.records, bad=self.bad + other.bad)


@dataclass(frozen=True, eq=False)
class Released:
    """The release of one step, from which the state of clipping and noise may be updated at no cost.

    Attributes:
        noisy: the noisy sum, by name.
        expected_records: the public expected number of records in a batch.
        deviations: computes the standard deviations of the noise in `noisy`.
    """

    noisy: Mapping[str, Tensor]
    expected_records: float
    deviations: Deviations = dict


@runtime_checkable
class Clipping(Protocol):
    """Bounds the contribution of each record to the sum of gradients.

    A clipping is a frozen dataclass of settings. Everything that changes from step to step is in its state, which `init` makes
    before the first step and `update` replaces after every step. Inherit from this class and write `clip` for a clipping
    without state: the other methods have defaults, and the state is None.

    Formal guarantees, which every implementation must keep: `clip` returns a sum that is bounded as `BoundedSum` says, whatever
    the records are. Settings and state depend on the records through earlier releases only, so that the event of a step depends
    on neither.
    """

    def init(self, parameters: Mapping[str, Tensor]) -> State:
        """The state before the first step, for a model with these trainable parameters."""
        return None

    @abstractmethod
    def clip(self, gradients: PerExampleGradients, state: State = None) -> BoundedSum:
        """Clip the gradient of each record of a physical batch, and add them up."""

    def update(self, state: State, released: Released) -> State:
        """The state of the next step. It is computed from the noisy release only."""
        return state

    def metric(self, state: State) -> Mapping[str, Tensor]:
        """Factors by which the released gradients are multiplied elementwise, by name; tensors without a factor stay.

        This is post-processing: it lets a clipping in a norm of its own take the step in that norm, too.
        """
        return {}


def clipping_factors(norms: Tensor, bound: float) -> Tensor:
    """``min(1, bound / norm)`` for each record; 1 where the norm is zero."""
    return (bound / ROUNDING / norms).clamp(max=1.0)


def check_bound(bound: float, what: str = "The clipping norm") -> None:
    """Raise unless `bound` is a positive, finite number."""
    if not (bound > 0 and bound < float("inf")):
        raise InputError(f"{what} must be a positive number, not {bound}.")


def _same(one: Tensor | float, other: Tensor | float) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return bool(one == other)
