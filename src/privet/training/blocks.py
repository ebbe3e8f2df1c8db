"""A loop of a method's own, in blocks of steps that are saved: it can be killed at any moment and continued."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from privet.privacy import Event, Ledger, Nothing
from privet.randomness import Randomness
from privet.training.checkpoint import Stateful, pack
from privet.training.folder import RunFolder
from privet.training.plan import BudgetExhausted
from privet.training.step import Record

T = TypeVar("T")


class Box(Generic[T]):
    """A value that a checkpoint keeps: plain data with tensors."""

    def __init__(self, value: T) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


class Blocks:
    """The progress of a loop. With a folder, it is saved there after each block.

        blocks = Blocks(run, {"model": model, "optimizer": optimizer}, randomness, planned=event * 20)
        blocks.begin({"schedule": plain(schedule), "seed": seed, "data": data_fingerprint(records)})
        while blocks.allows({f"epoch {blocks.step}": event}):
            blocks.announce(f"epoch {blocks.step}", event)      # in the ledger
            ...                                                 # the steps of the block
            blocks.conclude(f"epoch {blocks.step}", event)
            blocks.save(blocks.step + 1)

    An interrupted block is repeated. A release draws new noise for it, and charges it again. A seeded run repeats it to the last
    bit, and charges it once (docs/decisions/0200-repeated-steps-of-a-seeded-run.md).

    Formal guarantees: a block is in the ledger before it begins, and the ledger never holds more of the loop's events than
    `planned`, however often the loop was killed: if repeated blocks use up the plan, the loop ends earlier. A loop that ends
    without a saved block raises `BudgetExhausted`.

    Attributes:
        step: number of finished and saved steps.
        ended: whether the loop has ended, at its last step or before.
    """

    def __init__(
        self,
        where: RunFolder | Ledger,
        parts: Mapping[str, Stateful],
        randomness: Randomness,
        *,
        planned: Event | None = None,
        stage: str = "",
        seconds: float = 0.0,
    ) -> None:
        """
        Args:
            where: the folder of the run, or a ledger in memory.
            parts: everything that changes from block to block: networks, optimizers, averages, boxes.
            randomness: the streams that the loop draws from. A seeded run saves them, and torch's own generator.
            planned: the events of all blocks; None for a loop that uses no record.
            stage: a name for the loop, if another part of the run is saved, too.
            seconds: the least time between two checkpoints.
        """
        self._run = where if isinstance(where, RunFolder) else None
        self.ledger = where.ledger if isinstance(where, RunFolder) else where
        self.step, self.ended = 0, False
        self._parts, self._randomness, self._stage, self._seconds = parts, randomness, stage, seconds
        self._planned = _counted(planned if planned is not None else Nothing())
        self._first = len(self.ledger)
        """Events that were in the ledger before the loop."""
        self._identity: Mapping[str, Any] = {}
        self._saved = time.monotonic()

    def begin(self, identity: Mapping[str, Any]) -> None:
        """State the identity of the loop, and restore its saved state."""
        if self._run is None:
            return
        self._identity = dict(identity)
        state = self._run.begin(self._identity, seeded=self._randomness.reproducible, stage=self._stage)
        if state is None:
            self._write()
            return
        self.step, self.ended, self._first = state["step"], state["ended"], state["first"]
        self._randomness.restore(state["streams"])
        if state["torch"] is not None:
            torch.set_rng_state(state["torch"])
        for name, part in self._parts.items():
            part.load_state_dict(state[f"part {name}"])

    def allows(self, events: Mapping[str, Event]) -> bool:
        """Whether a block of these events, by name, may be done: the plan has room for it, or it was already charged."""
        if self.ended or not events:
            return False
        fresh = sum((_counted(event) for name, event in events.items() if not self._holds(name)), Counter[Event]())
        if self._used() + fresh <= self._planned:
            return True
        if self.step == 0:
            raise BudgetExhausted(
                f"The run was stopped before the end of {next(iter(events))}, and repeating that would cost more than was "
                f"planned. Start again in another folder; the ledger of this one still counts."
            )
        return False

    def announce(self, name: str, event: Event) -> None:
        """Record the event of a block before its first step."""
        if self._run is not None:
            self._run.announce(name, event)
        else:
            self.ledger.record(event)

    def conclude(self, name: str, event: Event) -> None:
        """Note the result of an announced block: otherwise a seeded run that repeats it would charge it again."""
        if self._run is not None and self._randomness.reproducible:
            tensors: dict[str, Tensor] = {}
            for part, value in self._parts.items():
                pack(value.state_dict(), tensors, part)
            self._run.record(name, event, tensors)

    def recorder(self, name: str) -> Record:
        """Records a release by itself, before it is used: for a block whose releases are not announced."""
        if self._run is not None:
            return partial(self._run.record, name)
        return lambda event, _: self.ledger.record(event)

    def save(self, step: int, *, ended: bool = False) -> None:
        """Note that `step` steps are done. Write a checkpoint if enough time has passed, and always if the loop has `ended`."""
        self.step, self.ended = step, ended
        if ended or time.monotonic() - self._saved >= self._seconds:
            self._write()

    def forget(self) -> None:
        """Delete the checkpoints, because the result of the loop is kept elsewhere."""
        if self._run is not None:
            self._run.forget(self._stage)

    def _write(self) -> None:
        self._saved = time.monotonic()
        if self._run is None:
            return
        streams = self._randomness.state()
        state: dict[str, Any] = {f"part {name}": part.state_dict() for name, part in self._parts.items()}
        state |= {"identity": self._identity, "ended": self.ended, "first": self._first, "streams": streams}
        self._run.save(self.step, {**state, "torch": torch.get_rng_state() if streams else None}, self._stage)

    def _holds(self, name: str) -> bool:
        return self._run is not None and self._run.holds(name)

    def _used(self) -> Counter[Event]:
        """The planned events that the ledger holds since the loop began."""
        used, seen = Counter[Event](), 0
        for event, count in self.ledger:
            new = min(count, max(0, seen + count - self._first))
            used += _counted(event * new)
            seen += count
        return Counter({event: count for event, count in used.items() if event in self._planned})


def _counted(event: Event) -> Counter[Event]:
    found = Counter[Event]()
    for leaf, count in event.leaves():
        found[leaf] += count
    return found
