"""The surroundings of a loop: random generators, existing tensors, and objects that change with its steps."""

from __future__ import annotations

import copy
import gc
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel


class Streams:
    """The states of torch's, NumPy's and Python's random generators at the time it is created."""

    def __init__(self) -> None:
        self._torch, self._python, self._numpy = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
        self._devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []

    def put_back(self) -> None:
        """Set the generators to these states."""
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        numpy.random.set_state(self._numpy)
        if self._devices:
            torch.cuda.set_rng_state_all(self._devices)

    def have_moved(self) -> bool:
        """Whether random numbers were drawn since."""
        arrays = zip(self._numpy, numpy.random.get_state(), strict=True)
        return (
            not torch.equal(self._torch, torch.get_rng_state())
            or self._python != random.getstate()
            or not all(numpy.array_equal(one, other) for one, other in arrays)
        )


@contextmanager
def same_streams() -> Iterator[Streams]:
    """Afterward, the generators are in the states in which they were before."""
    streams = Streams()
    try:
        yield streams
    finally:
        streams.put_back()


@dataclass(frozen=True, eq=False)
class Moving:
    """An object that the body of a loop may change, with functions to save and to restore it."""

    save: Callable[[], Any]
    restore: Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What exists before the first batch of a loop.

    Attributes:
        tensors: all tensors that exist; they hold no record of a batch.
        moving: schedules of the optimizers, averages of models, and the settings of the optimizers.
    """

    tensors: tuple[Tensor, ...]
    moving: tuple[Moving, ...]

    @classmethod
    def now(cls, optimizers: Iterable[Optimizer]) -> Surroundings:
        tensor, movable = _kinds(Tensor), _kinds(LRScheduler) | _kinds(AveragedModel)
        either = tensor | movable
        things = gc.get_objects()
        # There are some hundred thousand objects: this avoids a step of Python for each of them.
        found = list(compress(things, map(either.__contains__, map(type, things))))
        moving = [_settings(optimizer) for optimizer in optimizers]
        moving += [_stateful(thing) for thing in found if type(thing) in movable]
        return cls(tuple(thing for thing in found if type(thing) in tensor), tuple(moving))


def _kinds(kind: type) -> set[type]:
    """A class and all classes that inherit from it."""
    found: set[type] = {kind}
    each: type
    for each in type.__subclasses__(kind):
        found |= _kinds(each)
    return found


def _stateful(thing: Any) -> Moving:
    return Moving(lambda: copy.deepcopy(thing.state_dict()), thing.load_state_dict)


def _settings(optimizer: Optimizer) -> Moving:
    """Learning rates and other settings, which a schedule sets."""

    def save() -> list[dict[str, Any]]:
        return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]

    def restore(saved: list[dict[str, Any]]) -> None:
        for group, values in zip(optimizer.param_groups, saved, strict=False):  # one may have been added
            group.update(values)

    return Moving(save, restore)
