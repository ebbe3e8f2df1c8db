"""What is around a loop before its first batch: tensors that hold no batch, and things that move with its steps."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import compress
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel


@dataclass(frozen=True, eq=False)
class Moving:
    """Something that a loop's body may move, with how it is saved and put back."""

    save: Callable[[], Any]
    restore: Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Surroundings:
    """Attributes:
    tensors: all tensors that exist.
    moving: schedules of the optimizers, averages of models, and the settings of the optimizers.
    """

    tensors: tuple[Tensor, ...]
    moving: tuple[Moving, ...]

    @classmethod
    def now(cls, optimizers: Iterable[Optimizer]) -> Surroundings:
        tensor, movable = _kinds(Tensor), _kinds(LRScheduler) | _kinds(AveragedModel)
        either = tensor | movable
        things = gc.get_objects()
        # Some hundred thousand things: without a step of Python for each of them.
        found = list(compress(things, map(either.__contains__, map(type, things))))
        moving = [_settings(optimizer) for optimizer in optimizers]
        moving += [_stateful(thing) for thing in found if type(thing) in movable]
        return cls(tuple(thing for thing in found if type(thing) in tensor), tuple(moving))


def _kinds(kind: type) -> set[type]:
    """A class and all that inherit from it."""
    found: set[type] = {kind}
    each: type
    for each in type.__subclasses__(kind):
        found |= _kinds(each)
    return found


def _stateful(thing: Any) -> Moving:
    return Moving(lambda: copy.deepcopy(thing.state_dict()), thing.load_state_dict)


def _settings(optimizer: Optimizer) -> Moving:
    """Rates and the like, which a schedule sets."""

    def save() -> list[dict[str, Any]]:
        return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]

    def restore(saved: list[dict[str, Any]]) -> None:
        for group, values in zip(optimizer.param_groups, saved, strict=False):  # one may have been added
            group.update(values)

    return Moving(save, restore)
