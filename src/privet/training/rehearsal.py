"""The self-check of a loop: its body runs on a few records, then on others in their place, and nothing is released.

The user's loop owns its body: the library cannot call it, only give it batches. So before the first step, and before some later
steps that the plan fixes, the loop hands out four batches of a few records each:

- *whole*: records r_1 ... r_n;
- *exchanged*, twice: n records, of which one half stays in its places and the other half is exchanged; then the other half;
- *part*: a quarter of the records.

A record's gradient must be the same in *whole* and *exchanged*: all shapes are equal and all generators are reset, so that
a sound body repeats the same arithmetic, and rounding cannot make it differ. The scale of the gradients in *part* must be
that of *whole*: this catches a loss that was read as a sum but divides by the size of the batch.

`Surroundings` puts back what a rehearsal may have changed: random generators, tensors, and objects that change with the steps.
"""

from __future__ import annotations

import copy
import gc
import math
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Literal

import numpy
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel

from privet.distributed import own_part
from privet.errors import InputError, PrivetWarning
from privet.gradients import Engine, PerExampleGradients


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
    """The objects that exist before the first batch of a loop.

    Attributes:
        tensors: all tensors that exist; they hold no record of a batch.
        moving: schedules of the optimizers, averages of models, and the settings of the optimizers.
    """

    tensors: tuple[Tensor, ...]
    moving: tuple[Moving, ...]

    @classmethod
    def now(cls, optimizers: Iterable[Optimizer]) -> Surroundings:
        optimizers = tuple(optimizers)
        tensor, movable = _kinds(Tensor), _kinds(LRScheduler) | _kinds(AveragedModel)
        either = tensor | movable
        things = gc.get_objects()
        # There are some hundred thousand objects: this avoids a step of Python for each of them.
        found = list(compress(things, map(either.__contains__, map(type, things))))
        moving = [_settings(optimizer) for optimizer in optimizers]
        moving += [_stateful(thing) for thing in found if type(thing) in movable]
        if any(isinstance(thing, ReduceLROnPlateau) and _is_of(thing, optimizers) for thing in found):
            warnings.warn(
                "ReduceLROnPlateau sets the learning rate by a metric, and the statement does not cover that choice: give it a "
                "metric of public records, never the loss of the training records.",
                PrivetWarning,
                stacklevel=2,
            )
        return cls(tuple(thing for thing in found if type(thing) in tensor), tuple(moving))


def _kinds(kind: type) -> set[type]:
    """A class and all classes that inherit from it."""
    found: set[type] = {kind}
    each: type
    for each in type.__subclasses__(kind):
        found |= _kinds(each)
    return found


def _is_of(schedule: LRScheduler, optimizers: Iterable[Optimizer]) -> bool:
    """Whether a schedule changes one of the optimizers, directly or through accelerate's wrapper."""
    given = schedule.optimizer
    return any(given is each or getattr(given, "optimizer", None) is each for each in optimizers)


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


Isolation = Literal["follow", "each", "assume"]

FEWEST, MOST = 4, 32
"""Limits of the number of records in a rehearsal, which is otherwise the expected size of a batch. A part of four is still two
records: for one record, a sum and a mean are the same."""
_TOLERANCE, _COARSE = 1e-3, 0.05
"""The largest distance between directions of gradients, relative to their length: for float32 and for half precision. The same
arithmetic on the same numbers has no error at all; a device that adds in any order has an error of a few units in the last
place."""
_OFTEN, _LATER = 100, 10
_LONG = 400
"""Runs of fewer steps are checked before the first step only. A check takes up to 3.7 times as long as a step
(`benchmarks/later_checks.py`), so that the later checks take at most 1 % of a longer run."""


@dataclass(frozen=True)
class Checks:
    """How a loop is made to keep records apart, and how this is checked.

    Attributes:
        isolation: "follow", "each" or "assume", as in `make_private`.
        self_check: whether the loop's body is checked on a few records before the first step.
    """

    isolation: Isolation = "follow"
    self_check: bool = True

    def __post_init__(self) -> None:
        if self.isolation not in ("follow", "each", "assume"):
            raise InputError(f"isolation is 'follow', 'each' or 'assume', not {self.isolation!r}.")

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The unproved assumptions of the run's statement."""
        if self.isolation == "assume":
            checked = ", as a check on a few of them found" if self.self_check else ""
            return (f"records are processed independently of each other{checked}",)
        if not self.self_check:
            return ("the loop treats each record on its own, and uses records in no other way, which was not checked",)
        return ()


def is_rehearsed(step: int, steps: int) -> bool:
    """Whether a loop of `steps` steps is checked before step 0, 1, 2, ...: before the first one, then more and more rarely."""
    if step < _OFTEN or steps < _LONG:
        return step == 0
    power = round(math.log(step / _OFTEN, _LATER))
    return bool(step == _OFTEN * _LATER**power)


@dataclass(eq=False)
class TrialGradients:
    """The norms of each record's gradient in a trial."""

    norms: Tensor
    by_name: dict[str, Tensor]
    distance: float = 0.0
    """The distance between the sums, in this trial and in the whole, of the kept records' gradients scaled to length 1."""


@dataclass(eq=False)
class Rehearsal:
    """The trials of one check, and their results."""

    records: int
    precise: bool = True
    each: int = 1
    """The number of examples of each record in a trial."""
    measured: list[TrialGradients] = field(default_factory=list)
    directions: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    """For each later trial, the sum in the whole with which it will be compared."""
    states: list[dict[str, Any]] = field(default_factory=list)
    """Everything except gradients after each trial: buffers, parameters, the optimizers' settings and states."""
    random: bool = False
    """Whether the body draws random numbers: batches of another size then get other numbers."""
    divisors: list[tuple[float, ...]] = field(default_factory=list)
    """The divisors of sums over the records in each trial."""

    @property
    def size_divisors(self) -> frozenset[float]:
        """Divisors for each record, of sums whose divisor grows with the batch: ``loss.sum() / len(x)``."""
        whole, part = self.divisors[0], self.divisors[-1]
        if self.part == self.records or len(whole) != len(part):
            return frozenset()
        grown = (
            one / (self.records * self.each)
            for one, other in zip(whole, part, strict=True)
            if one != other and math.isclose(one / self.records, other / self.part, rel_tol=1e-9)
        )
        return frozenset(grown)

    @property
    def kept(self) -> int:
        return max(self.records // 2, 1)

    @property
    def part(self) -> int:
        return max(self.records // 4, 2) if self.records > 2 else 1

    def trials(self) -> Iterator[tuple[str, Tensor]]:
        """The name of each trial and the places of its records among those of the whole."""
        places = torch.arange(self.records)
        yield "whole", places
        yield "exchanged", places % self.kept
        yield (
            "exchanged again",
            torch.where(places < self.kept, places % (self.records - self.kept) + self.kept, places),
        )
        yield "part", places[: self.part]

    @property
    def compared(self) -> dict[int, slice]:
        """For each trial that is compared with the whole, its number and the places of the kept records."""
        return {1: slice(0, self.kept), 2: slice(self.kept, self.records), 3: slice(0, self.part)}

    @property
    def done(self) -> int:
        """The number of trials so far."""
        return len(self.measured)

    def measure(self, gradients: PerExampleGradients) -> None:
        norms, trial, compared = gradients.total_squared_norms().sqrt(), self.done, self.compared
        by_name = {name: squared.sqrt() for name, squared in gradients.squared_norms().items()}
        one = TrialGradients(norms, by_name)
        if trial == 0:
            self.directions = {
                other: _direction(gradients, norms, places, last=other == max(compared))
                for other, places in compared.items()
            }
        elif trial in self.directions:
            one.distance = _distance(self.directions.pop(trial), _direction(gradients, norms, compared[trial]))
        self.measured.append(one)

    def look_at(self, engine: Engine, optimizers: Sequence[Optimizer], streams: Streams) -> None:
        """Note the state after a trial that began at `streams`, when its body has run."""
        self.divisors.append(engine.divisors)
        self.random = self.random or engine.uses_generators or streams.have_moved()
        with torch.no_grad():
            self.states.append(dict(_left_behind(engine.model, optimizers)))

    def complaint(self) -> str:
        """A complaint that names no record; empty if nothing is wrong."""
        if complaint := self._moved():
            return complaint
        whole, exchanged, again, part = self.measured
        for other, half in ((exchanged, slice(0, self.kept)), (again, slice(self.kept, self.records))):
            if self._differs(whole, other, half):
                return (
                    f"A record's gradient depends on the other records of its batch{self._culprit(whole, other, half)}. "
                    f"Nothing was released. Look for a mean, a count, a sort or a selection over the batch in the model, in "
                    f"the loss and before the model."
                )
        if not self.random and part.distance > _COARSE * math.sqrt(self.part):
            return (
                "A record's gradient depends on how many records are in its batch. Nothing was released. Look for the size of "
                "the batch in the model, in the loss and before the model."
            )
        scale = self.records / self.part
        ratio = _ratio(part.norms, whole.norms[: self.part])
        if self.size_divisors:
            ratio *= self.part / self.records  # each was read as a sum, and is a mean
        # Only random rows have other norms in a batch of another size.
        allowed = 0.5 * math.log(scale) if self.random else _COARSE
        if scale > 1 and (abs(math.log(ratio)) > allowed or self._divides_oddly()):
            return (
                f"The gradients of the same records are {ratio:.3g} times as large in a batch of {self.part} records as in "
                f"one of {self.records}: the loss is divided by the size of the batch in a way that was not recognized. "
                f"Nothing was released. Give the loss of each record to private.step(losses), or use loss.mean()."
            )
        if self.each > 1 and any(abs(divisor - round(divisor)) > 1e-9 for divisor in self.size_divisors):
            return (
                "The loss is divided by a fraction of the number of examples, as in len(x) // 2. If users have different "
                "numbers of examples, this is rounded and depends on who else is in the batch. Nothing was released. Give the "
                "loss of each example to private.step(losses), or use loss.mean()."
            )
        return ""

    def _divides_oddly(self) -> bool:
        """Whether a sum is divided by a number that depends on the size of the batch, but is not proportional to it."""
        whole, exchanged, again, part = self.divisors
        if not len(whole) == len(exchanged) == len(again) == len(part):
            return False
        return any(
            one == two == three != four and not math.isclose(one / self.records, four / self.part, rel_tol=1e-9)
            for one, two, three, four in zip(whole, exchanged, again, part, strict=True)
        )

    def _moved(self) -> str:
        """A complaint if two trials left different states behind."""
        first = self.states[0]
        for state in self.states[1:]:
            moved = [name for name in first.keys() | state.keys() if first.get(name) != state.get(name)]
            if moved:
                return (
                    f"The {sorted(moved)[0]} depends on the records of the batch, or on how often the body of the loop ran, "
                    f"outside the clipped gradient. Nothing was released. Keep statistics of records out of the model and its "
                    f"optimizers, and count steps with private.steps_done."
                )
        return ""

    def _differs(self, one: TrialGradients, other: TrialGradients, half: slice) -> bool:
        """Whether one half of the records has other gradients when the other half was exchanged."""
        if self.records < 2:
            return False
        allowed = _TOLERANCE if self.precise else _COARSE
        first, second = one.norms[half], other.norms[half]
        floor = 1e-6 * float(first.max())
        if bool(((first - second).abs() > allowed * torch.maximum(first, second) + floor).any()):
            return True
        return other.distance > allowed * math.sqrt(len(first))

    def _culprit(self, one: TrialGradients, other: TrialGradients, half: slice) -> str:
        """The parameter whose gradient differs most, or the loss if all differ by the same factor."""
        ratios = {
            name: _ratio(other.by_name[name][half], norms[half])
            for name, norms in one.by_name.items()
            if bool(norms[half].any()) and bool(other.by_name[name][half].any())
        }
        if not ratios or math.isclose(min(ratios.values()), max(ratios.values()), rel_tol=1e-3):
            return ", in the loss"
        name = max(ratios, key=lambda n: abs(math.log(ratios[n])))
        return f"; most in that of '{name}'"


@dataclass(eq=False)
class AloneRehearsal(Rehearsal):
    """The check of a loop that is given one record at a time: earlier records must not matter.

    The body may skip a record because of that record alone: it then contributes nothing.
    """

    used: list[bool] = field(default_factory=list)
    """For each trial, whether the body used its record."""

    @property
    def done(self) -> int:
        return len(self.used)

    def measure(self, gradients: PerExampleGradients) -> None:
        super().measure(gradients)
        self.used.append(True)

    def pass_over(self) -> None:
        """The body did not use the record of this trial."""
        self.used.append(False)

    def trials(self) -> Iterator[tuple[str, Tensor]]:
        # Twice again: a body that uses every second or third record uses it once of these times.
        for name, place in (("one", 0), ("another", 1), ("the first again", 0), ("and once more", 0)):
            yield name, torch.tensor([place])

    @property
    def compared(self) -> dict[int, slice]:
        return {2: slice(0, 1), 3: slice(0, 1)}

    @property
    def size_divisors(self) -> frozenset[float]:
        return frozenset()

    def complaint(self) -> str:
        if complaint := self._moved():
            return complaint
        if not any(self.used):
            return "No batch was used: call loss.backward() and optimizer.step() once for each batch."
        culprit, differs = "", len({self.used[0], self.used[2], self.used[3]}) > 1
        if self.used[0] and not differs:
            first, place = self.measured[0], slice(0, 1)
            other = next((again for again in self.measured[-2:] if self._differs(first, again, place)), None)
            differs, culprit = other is not None, self._culprit(first, other, place) if other else ""
        if differs:
            return (
                f"A record's gradient depends on the records that came before it{culprit}. Nothing was released. Look for "
                f"values that the model or the loop keeps from one batch to the next."
            )
        return ""


def _left_behind(model: nn.Module, optimizers: Sequence[Optimizer]) -> Iterator[tuple[str, Any]]:
    """Names and values of everything that a body can change; a tensor is represented by two sums over it."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        yield f"value of '{name}'", _print_of(tensor)
    for place, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for key, value in group.items():
                if key != "params":
                    yield f"setting '{key}' of optimizer {place}", _print_of(value)
        for number, state in enumerate(optimizer.state.values()):
            for key, value in state.items():
                yield f"state '{key}' of optimizer {place}, parameter {number}", _print_of(value)


def _print_of(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value if isinstance(value, (int, float, str, bool, tuple, type(None))) else None
    value = own_part(value)
    if not value.is_floating_point():
        return (tuple(value.shape), float(value.double().sum()))
    flat = value.detach().double().flatten()
    return (tuple(value.shape), float(flat.nan_to_num().sum()), float(flat.nan_to_num().square().sum()))


def _direction(gradients: PerExampleGradients, norms: Tensor, places: slice, *, last: bool = True) -> dict[str, Tensor]:
    """The sum of the gradients of some records, each scaled to length 1; float32 is precise enough for the comparison."""
    weights = torch.zeros_like(norms)
    weights[places] = torch.where(norms[places] > 0, 1 / norms[places], 0.0)
    return {name: total.float() for name, total in gradients.weighted_sum(weights, last=last).items()}


def _distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float((a - other[name]).square().sum()) for name, a in one.items()))


def _ratio(new: Tensor, old: Tensor) -> float:
    """The geometric mean of the ratios of positive norms."""
    usable = (new > 0) & (old > 0)
    return float((new[usable].log() - old[usable].log()).mean().exp()) if bool(usable.any()) else 1.0


def selected(batch: Any, places: Tensor, dims: Callable[[Tensor], int | None]) -> Any:
    """The records at `places` of a batch, in the same structure; `dims` gives the dimension of a tensor that holds them."""
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
def held_still(engine: Engine, moving: Iterable[Moving]) -> Iterator[Callable[[], None]]:
    """Restore every generator, buffer, schedule and average afterward; the function that it gives does this at once."""
    streams = Streams()
    buffers = [(buffer, buffer.detach().clone()) for buffer in engine.model.buffers()]
    states = [(each, each.save()) for each in moving]

    def reset() -> None:
        engine.set_quiet(True)
        streams.put_back()
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for each, state in states:
            each.restore(state)
        engine.put_back()

    try:
        yield reset
    finally:
        reset()
