"""Drawing: the records of each step, divided into physical batches and loaded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from privet.data.owners import Key, users_within
from privet.errors import InputError
from privet.randomness import Randomness, Source
from privet.sampling import Holdings, Sampling, Users, UserSampling
from privet.training.identity import data_fingerprint
from privet.training.plan import Plan
from privet.training.step import Step
from privet.training.surroundings import same_streams

Batch = Any
"""The collated records of a data set: usually a tuple of tensors."""
Collate = Callable[[list[Any]], Batch]


@dataclass(frozen=True, eq=False)
class PhysicalBatch:
    """A physical batch that was drawn: a whole step, or a part of it."""

    step: Step
    records: int
    first: bool
    last: bool
    stream: Tensor | None
    """The state of a seeded sampling stream after this step was drawn."""
    each: int = 1
    """The number of examples of each record: more than one where a record is a user."""


@dataclass(eq=False)
class Records:
    """A data set and how it is loaded.

    Attributes:
        dataset: anything that `load_batches` accepts.
        size_is_public: whether the data set has exactly as many records as the plan says; otherwise it has about as many.
        physical: the largest number of examples in a physical batch, which has at least one record.
        workers, collate: as in torch's ``DataLoader``.
        users: the examples of each user, where a record is all that one user holds.
    """

    dataset: Any
    size_is_public: bool = True
    physical: int | None = None
    workers: int = 0
    collate: Collate | None = None
    users: Holdings | None = None

    def __len__(self) -> int:
        """The number of records: examples, or users."""
        return len(self.dataset) if self.users is None else len(self.users)

    @property
    def rehearsed(self) -> int:
        """The number of examples of each record in a rehearsal."""
        return 1 if self.users is None else min(2, self.users.most)

    def sample(self, count: int, seed: int) -> Any:
        """A batch of `count` records for a rehearsal, drawn without the run's randomness: nothing of it is released."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))[:count].sort().values
        if self.users is not None:
            order = self.users.some(order, self.rehearsed).flatten()
        with same_streams():
            (batch,) = load_batches(self.dataset, [order], collate=self.collate)
        return batch

    def dims(self, batch: Any) -> list[tuple[Tensor, int | None]]:
        """The tensors of a batch, each with the dimension that holds the records, or None if none does.

        Tensors of a data set hold them in the first dimension. A collate function is given one record once and twice: the
        dimension that grows holds the records.
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
        """Raise if a collate function gives a record other rows because of the other records."""
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
            raise InputError("The data set has changed since its users were found: make a new plan.")

    def batches(self, plan: Plan, randomness: Randomness, steps: range) -> Iterator[tuple[PhysicalBatch, Any]]:
        """The physical batches of the steps, drawn and loaded; workers may draw ahead of the steps."""
        parts: deque[PhysicalBatch] = deque()

        def draw() -> Iterator[Tensor]:
            for number in steps:
                step = Step(plan, number, randomness)
                source = randomness.sampling
                pieces = self._pieces(step.sample(len(self)), source)
                stream = source.get_state() if isinstance(source, torch.Generator) else None
                for place, piece in enumerate(pieces):
                    records, each = piece.shape
                    last = place == len(pieces) - 1
                    parts.append(PhysicalBatch(step, records, place == 0, last, stream, each))
                    yield piece.flatten()

        for batch in load_batches(self.dataset, draw(), workers=self.workers, collate=self.collate):
            yield parts.popleft(), batch

    def _pieces(self, records: Tensor, source: Source) -> list[Tensor]:
        """The examples of the drawn records, as physical batches with a row for each record."""
        if self.users is None or not len(records):
            drawn: Iterable[Tensor] = [records.unsqueeze(1)]
        else:
            drawn = self.users.drawn(records, source)
        if self.physical is None:
            return list(drawn)
        return [piece for rows in drawn for piece in rows.split(max(self.physical // rows.shape[1], 1))]


@dataclass(frozen=True, eq=False)
class GivenRecords:
    """The records of a run, from the data set or the loader that was given.

    Attributes:
        dataset, batch_size, workers, collate: of a loader, its parts: batches are drawn by the plan, and not by the loader.
        users: the examples of each user, where the user is the unit of privacy.
    """

    dataset: Any
    batch_size: int | None
    workers: int
    collate: Collate | None
    users: Holdings | None

    @classmethod
    def of(cls, dataset: Any, users: Users | Key | None, sampling: Sampling | None) -> GivenRecords:
        batch_size, workers, collate = None, 0, None
        if isinstance(dataset, DataLoader):
            batch_size, workers = dataset.batch_size, dataset.num_workers
            collate = None if dataset.collate_fn is default_collate else dataset.collate_fn
            dataset = dataset.dataset
        if isinstance(dataset, IterableDataset) or not (
            hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        ):
            raise InputError("The data set must be map-style (len and indexing): a stream cannot be Poisson-sampled.")
        if users is None:
            users = users_within(dataset)
        found = None if users is None else Users.of(users)
        if isinstance(sampling, UserSampling):
            if found is None:
                raise InputError("UserSampling draws users: give users=..., the user of each example.")
            if isinstance(users, Users) and users.most != sampling.most:
                raise InputError(
                    f"users allows {users.most} examples of a user in a step, and sampling {sampling.most}: give one number."
                )
            found = replace(found, most=sampling.most)
        return cls(dataset, batch_size, workers, collate, None if found is None else found.found_in(dataset))

    @property
    def unit(self) -> str:
        return "record" if self.users is None else "user"

    @property
    def records(self) -> int:
        """The number of records: examples, or users."""
        return len(self.dataset if self.users is None else self.users)

    @property
    def identity(self) -> dict[str, Any]:
        """Fingerprints of the records, by which a resumed run is recognized."""
        found = {"data": data_fingerprint(self.dataset)}
        return found if self.users is None else {**found, "users": self.users.fingerprint}

    def loaded(self, size_is_public: bool, physical: int | None, workers: int | None) -> Records:
        """The records with their way of loading; `workers` defaults to those of the loader."""
        workers = self.workers if workers is None else workers
        return Records(self.dataset, size_is_public, physical, workers, self.collate, self.users)


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
    """A complaint about a part of a batch that is not a tensor; empty if there is none."""
    if isinstance(value, Tensor) or value is None:
        return ""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return next((words for item in value if (words := other_parts(item))), "")
    return (
        f"a part of the batch is not a tensor but {type(value).__name__}, which is not followed; make it a tensor in the collate "
        f"function, or leave it out"
    )


def load_batches(
    dataset: Any, index_batches: Iterable[Tensor], *, workers: int = 0, collate: Collate | None = None
) -> Iterator[Batch]:
    """The batch for each tensor of indices, in order: one `index_select` for tensors, torch's DataLoader for other data sets.

    An empty tensor of indices gives tensors of length zero.

    `dataset` is a `privet.data.Split`, a ``TensorDataset`` or anything with ``tensors``, or any map-style data set with
    ``__getitem__`` and ``__len__``, whose records are collated by `collate`, or by torch's defaults.
    """
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise InputError("The data set must be map-style (len and indexing): a stream cannot be sampled.")
    if collate is not None:
        yield from _collated(dataset, index_batches, workers, collate)
    elif hasattr(dataset, "batch"):
        yield from (dataset.batch(indices) for indices in index_batches)
    elif hasattr(dataset, "tensors"):
        tensors: tuple[Tensor, ...] = tuple(dataset.tensors)
        yield from (tuple(t.index_select(0, indices) for t in tensors) for indices in index_batches)
    else:
        yield from _collated(dataset, index_batches, workers, default_collate)


def _collated(
    dataset: Dataset[Any], index_batches: Iterable[Tensor], workers: int, collate: Collate
) -> Iterator[Batch]:
    yield from DataLoader(
        dataset,
        batch_sampler=_IndexLists(indices.tolist() for indices in index_batches),
        num_workers=workers,
        collate_fn=_Collate(dataset, collate),
        generator=torch.Generator(),  # torch's own generator must not be used: a resumed run continues it
    )


class _IndexLists:
    """A batch sampler over an iterator of the caller: it can be read once."""

    def __init__(self, batches: Iterator[list[int]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches


class _Collate:
    """Collates records; an empty batch has the shapes of a batch of one record, cut to length zero. Shapes are public."""

    def __init__(self, dataset: Dataset[Any], collate: Collate) -> None:
        self._dataset, self._collate = dataset, collate

    def __call__(self, records: list[Any]) -> Batch:
        return self._collate(records) if records else _emptied(self._collate([self._dataset[0]]))


def _emptied(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch[:0]
    if isinstance(batch, dict):
        return {key: _emptied(value) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(_emptied(value) for value in batch)
    return batch
