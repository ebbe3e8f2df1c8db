"""Drawing: which records come in which step, divided into physical batches and loaded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from privet.errors import InputError
from privet.randomness import Randomness, Source
from privet.sampling import Holdings, load_batches
from privet.training.plan import Plan
from privet.training.step import Step
from privet.training.streams import same_streams


@dataclass(frozen=True, eq=False)
class Part:
    """A physical batch that was drawn: all of a step, or a part of it."""

    step: Step
    records: int
    first: bool
    last: bool
    stream: Tensor | None
    """The state of a seeded sampling stream after this step was drawn."""
    each: int = 1
    """How many examples there are of each record: more than one where a record is a user."""


@dataclass(eq=False)
class Records:
    """A data set and how it is loaded.

    Attributes:
        dataset: anything that `load_batches` takes.
        size_is_public: the data set has as many records as the plan says; otherwise it has about so many.
        physical: at most so many examples in a physical batch, and at least one record's.
        workers, collate: of the loading.
        users: who holds which examples, where a record is all that one user holds.
    """

    dataset: Any
    size_is_public: bool = True
    physical: int | None = None
    workers: int = 0
    collate: Callable[[list[Any]], Any] | None = None
    users: Holdings | None = None

    def __post_init__(self) -> None:
        if self.physical is not None and self.physical < 1:
            raise InputError(f"physical_batch_size must be at least 1, not {self.physical}.")

    def __len__(self) -> int:
        """How many records there are: examples, or users who hold them."""
        return len(self.dataset) if self.users is None else len(self.users)

    @property
    def rehearsed(self) -> int:
        """How many examples of each record are in a rehearsal."""
        return 1 if self.users is None else min(2, self.users.most)

    def sample(self, count: int, seed: int) -> Any:
        """A batch of `count` records for a rehearsal, drawn apart from the run's randomness: nothing of it is released."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))[:count].sort().values
        if self.users is not None:
            order = self.users.some(order, self.rehearsed).flatten()
        with same_streams():
            (batch,) = load_batches(self.dataset, [order], collate=self.collate)
        return batch

    def dims(self, batch: Any) -> list[tuple[Tensor, int | None]]:
        """The tensors of a batch, each with the dimension that holds the records, None where none does.

        Tensors of a data set hold them in front. What a collate function makes is seen by giving it one record once and
        twice: the dimension that grows holds the records.
        """
        tensors = tensors_of(batch)
        if self.collate is None and (hasattr(self.dataset, "batch") or hasattr(self.dataset, "tensors")):
            return [(tensor, 0) for tensor in tensors]
        grown = self._grown
        if len(grown) != len(tensors):
            raise InputError(
                f"The collate function gives {len(grown)} tensors for one record, and {len(tensors)} for a batch: let it "
                f"give as many for every batch."
            )
        return list(zip(tensors, grown, strict=True))

    def check_collate(self, count: int) -> None:
        """Raise where a collate function gives a record other rows because of the other records."""
        if self.collate is None or count < 2:
            return
        collate = self.collate
        with same_streams() as streams:
            records = [self.dataset[place] for place in range(min(count, len(self.dataset)))]

            def collated(chosen: list[Any]) -> list[Tensor]:
                streams.put_back()
                return tensors_of(collate(chosen))

            whole = collated(records)
            shapes = [tensor.shape for tensor in whole]
            for place in range(len(records) - 1, 0, -1):
                other = collated([*records[:place], records[0], *records[place + 1 :]])
                if [tensor.shape for tensor in other] == shapes:  # without the longest record, padding differs
                    self._refuse_mixing(whole, other, place)
                    return

    def _refuse_mixing(self, whole: list[Tensor], other: list[Tensor], place: int) -> None:
        for one, two, dim in zip(whole, other, self._grown, strict=True):
            if dim is not None:
                kept = torch.arange(one.shape[dim]) != place
                rows = [tensor.movedim(dim, 0)[kept] for tensor in (one, two)]
                if not torch.equal(rows[0].nan_to_num(), rows[1].nan_to_num()):
                    raise InputError(
                        "The collate function gives a record other rows, or another place, because of the other records of "
                        "its batch. Let it stack and pad the records, in their order, and nothing else."
                    )

    def own_tensors(self) -> list[Tensor]:
        """The tensors that the data set consists of, where it consists of tensors."""
        return tensors_of(list(vars(self.dataset).values())) if hasattr(self.dataset, "__dict__") else []

    @cached_property
    def _grown(self) -> list[int | None]:
        with same_streams():
            collate, record = self.collate or default_collate, self.dataset[0]
            one, two = tensors_of(collate([record])), tensors_of(collate([record, record]))
        return [_dim_that_grows(a.shape, b.shape) for a, b in zip(one, two, strict=True)]

    def check(self, plan: Plan) -> None:
        """Raise unless these are the records of the plan."""
        if self.size_is_public and len(self) != plan.records:
            raise InputError(
                f"The plan is for {plan.records} records, and the data set has another number of them: make a new plan, or "
                f"state the public size of the data with public_size=..."
            )
        if self.users is not None and len(self.users.owners) != len(self.dataset):
            raise InputError("The data set has other examples than it had when its users were found: make a new plan.")

    def batches(self, plan: Plan, randomness: Randomness, steps: range) -> Iterator[tuple[Part, Any]]:
        """The physical batches of the steps, drawn and loaded; workers may draw ahead of what was yielded."""
        parts: deque[Part] = deque()

        def draw() -> Iterator[Tensor]:
            for number in steps:
                step = Step(plan, number, randomness)
                source = randomness.sampling
                pieces = self._pieces(step.sample(len(self)), source)
                stream = source.get_state() if isinstance(source, torch.Generator) else None
                for place, piece in enumerate(pieces):
                    records, each = piece.shape
                    parts.append(Part(step, records, place == 0, place == len(pieces) - 1, stream, each))
                    yield piece.flatten()

        for batch in load_batches(self.dataset, draw(), workers=self.workers, collate=self.collate):
            yield parts.popleft(), batch

    def _pieces(self, records: Tensor, source: Source) -> list[Tensor]:
        """The examples of the records that were drawn, as physical batches with a row for each record."""
        if self.users is None or not len(records):
            drawn: Iterable[Tensor] = [records.unsqueeze(1)]
        else:
            drawn = self.users.drawn(records, source)
        if self.physical is None:
            return list(drawn)
        return [piece for rows in drawn for piece in rows.split(max(self.physical // rows.shape[1], 1))]


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a batch, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors_of(item)] if isinstance(value, (tuple, list)) else []


def _dim_that_grows(one: torch.Size, two: torch.Size) -> int | None:
    changed = [dim for dim, (a, b) in enumerate(zip(one, two, strict=False)) if (a, b) == (1, 2)]
    same = len(one) == len(two) and sum(a != b for a, b in zip(one, two, strict=True)) == 1
    return changed[0] if same and len(changed) == 1 else None


def other_parts(value: Any) -> str:
    """What is in a batch beside tensors, in words; empty where there is nothing else."""
    if isinstance(value, Tensor) or value is None:
        return ""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return next((words for item in value if (words := other_parts(item))), "")
    return (
        f"a part of the batch is no tensor but {type(value).__name__}, which is not followed; make it a tensor in the collate "
        f"function, or leave it out"
    )
