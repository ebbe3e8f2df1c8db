"""The self-check of a loop: its body runs on a few records that are then exchanged for others, and nothing is released.

The body is the user's: it cannot be called, only be given batches. So before the first step, and before steps that the plan
fixes, the loop hands out three batches of a few records each:

- *whole*: records r_1 ... r_n;
- *exchanged*: as many, the first half as before, the other half exchanged;
- *part*: a quarter of the records.

A record's gradient must be the same in *whole* and *exchanged*: all shapes are equal and all generators are set back, so that
a sound body repeats the same arithmetic, and no rounding can make it differ. The scale of the gradients in *part* must be
that of *whole*: a loss that was read as a sum and divides by the size of the batch shows there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from privet.gradients import PerExampleGradients
from privet.training.surroundings import Moving

MOST = 64
"""Records of a rehearsal, at most; else as many as a batch is expected to have."""
_TOLERANCE, _COARSE = 1e-3, 0.05
"""How far the directions of gradients may be apart, in parts of their length: for float32 and for half precision. The same
arithmetic on the same numbers has no error at all; a device that adds in any order has one of a few units in the last place."""
_OFTEN, _LATER = 100, 10


def is_rehearsed(step: int) -> bool:
    """Whether the loop is checked before step 0, 1, 2, ...: before the first one, then ever more rarely."""
    if step < _OFTEN:
        return step == 0
    power = round(math.log(step / _OFTEN, _LATER))
    return step == _OFTEN * _LATER**power


@dataclass(eq=False)
class Measured:
    """What a trial says of each record's gradient."""

    norms: Tensor
    by_name: dict[str, Tensor]
    directions: dict[str, Tensor]
    """The sum over the first records of their gradients, each of length 1."""

    @classmethod
    def of(cls, gradients: PerExampleGradients, kept: int) -> Measured:
        norms = gradients.total_squared_norms().sqrt()
        weights = torch.where(norms > 0, 1 / norms, 0.0)
        weights[kept:] = 0
        by_name = {name: squared.sqrt() for name, squared in gradients.squared_norms().items()}
        return cls(norms, by_name, gradients.weighted_sum(weights, last=True))


@dataclass(eq=False)
class Rehearsal:
    """The trials of one check, and what they showed."""

    records: int
    precise: bool = True
    measured: list[Measured] = field(default_factory=list)

    @property
    def kept(self) -> int:
        return max(self.records // 2, 1)

    @property
    def part(self) -> int:
        return max(self.records // 4, 1)

    def trials(self) -> Iterator[tuple[str, Tensor]]:
        """The name of each trial and the places of its records among those of the whole."""
        places = torch.arange(self.records)
        yield "whole", places
        yield "exchanged", places % self.kept
        yield "part", places[: self.part]

    def measure(self, gradients: PerExampleGradients) -> None:
        self.measured.append(Measured.of(gradients, self.kept))

    def complaint(self) -> str:
        """What is wrong, in words that name no record; empty where nothing is."""
        whole, exchanged, part = self.measured
        if self.records > 1 and self._differs(whole, exchanged):
            return (
                f"A record's gradient depends on the other records of its batch{self._culprit(whole, exchanged)}. Nothing "
                f"was released. Look for a mean, a count, a sort or a selection over the batch in the model, in the loss "
                f"and before the model."
            )
        scale = self.records / self.part
        ratio = _ratio(part.norms, whole.norms[: self.part])
        if scale > 1 and abs(math.log(ratio)) > 0.5 * math.log(scale):
            return (
                f"The gradients of the same records are {ratio:.3g} times as large in a batch of {self.part} records as in "
                f"one of {self.records}: the loss is divided by the size of the batch in a way that was not recognized. "
                f"Nothing was released. Give the loss of each record to private.step(losses), or use loss.mean()."
            )
        return ""

    def _differs(self, one: Measured, other: Measured) -> bool:
        allowed = _TOLERANCE if self.precise else _COARSE
        first, second = one.norms[: self.kept], other.norms[: self.kept]
        floor = 1e-6 * float(first.max())
        if bool(((first - second).abs() > allowed * torch.maximum(first, second) + floor).any()):
            return True
        distance = sum(float((a - other.directions[n]).square().sum()) for n, a in one.directions.items())
        return math.sqrt(distance) > allowed * math.sqrt(self.kept)

    def _culprit(self, one: Measured, other: Measured) -> str:
        """The parameter whose gradient differs most, unless all differ alike: then it is the loss."""
        ratios = {
            name: _ratio(other.by_name[name][: self.kept], norms[: self.kept])
            for name, norms in one.by_name.items()
            if bool(norms[: self.kept].any()) and bool(other.by_name[name][: self.kept].any())
        }
        if not ratios or math.isclose(min(ratios.values()), max(ratios.values()), rel_tol=1e-3):
            return ", in the loss"
        name = max(ratios, key=lambda n: abs(math.log(ratios[n])))
        return f"; most in that of '{name}'"


def _ratio(new: Tensor, old: Tensor) -> float:
    """The geometric mean of the ratios of positive norms."""
    usable = (new > 0) & (old > 0)
    return float((new[usable].log() - old[usable].log()).mean().exp()) if bool(usable.any()) else 1.0


def selected(batch: Any, places: Tensor, dims: Callable[[Tensor], int | None]) -> Any:
    """The records at `places` of a batch, in its own structure; `dims` says which dimension of a tensor holds them."""
    if isinstance(batch, Tensor):
        dim = dims(batch)
        return batch if dim is None else batch.index_select(dim, places.to(batch.device))
    if isinstance(batch, Mapping):
        return type(batch)({key: selected(value, places, dims) for key, value in batch.items()})  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(selected(value, places, dims) for value in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(selected(value, places, dims) for value in batch)
    return batch


@contextmanager
def held_still(model: nn.Module, moving: Iterable[Moving]) -> Iterator[Callable[[], None]]:
    """Afterwards every generator, buffer, schedule and average is where it was; the function that it gives does so at once."""
    streams = (torch.get_rng_state(), random.getstate(), numpy.random.get_state())
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    states = [(each, each.save()) for each in moving]

    def reset() -> None:
        torch.set_rng_state(streams[0])
        random.setstate(streams[1])
        numpy.random.set_state(streams[2])
        if devices:
            torch.cuda.set_rng_state_all(devices)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for each, state in states:
            each.restore(state)

    try:
        yield reset
    finally:
        reset()
