"""Drawing: the records of each step, divided into physical batches and loaded; and the settings for speed and memory."""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from privet.data.frames import HuggingFaceRecords, OneByOne, records_of
from privet.data.owners import Key, users_within
from privet.distributed import Team
from privet.errors import InputError, PrivetError, PrivetWarning
from privet.gradients.marks import ROWS, STARTS
from privet.randomness import Randomness, Source
from privet.sampling import Holdings, Sampling, Users, UserSampling
from privet.training.identity import data_fingerprint
from privet.training.plan import Plan
from privet.training.rehearsal import Streams, same_streams
from privet.training.step import Step

_SAFETY = 2.0
"""At its peak, the backward pass needs about as much memory as the forward pass saved, in addition."""


@dataclass(frozen=True)
class Performance:
    """Settings of speed and memory for `make_private`.

    Attributes:
        physical_batch_size: the largest number of records that go through the model at once; the step stays the same. "auto"
            chooses as many as fit into `memory_budget`, or into a quarter of the free memory without one.
        memory_budget: bytes for per-example gradients, and for a physical batch under "auto".
        workers: processes that load the records of a map-style data set.
        save_every: steps between two checkpoints of a run in a folder; an epoch by default. The last step is always saved.
    """

    physical_batch_size: int | Literal["auto"] | None = None
    memory_budget: int | None = None
    workers: int | None = None
    save_every: int | None = None

    def __post_init__(self) -> None:
        size = self.physical_batch_size
        if size is not None and size != "auto" and (isinstance(size, str) or size < 1):
            raise InputError(f"physical_batch_size must be at least 1, or 'auto', not {size!r}.")
        if self.workers is not None and self.workers < 0:
            raise InputError(f"workers must be at least 0, not {self.workers}.")
        if self.save_every is not None and self.save_every < 1:
            raise InputError(f"save_every must be at least 1, not {self.save_every}.")

    def physical(self, model: nn.Module, dataset: Any, views: int) -> int | None:
        """The largest number of records in a physical batch; "auto" is measured on the model and the shape of a record."""
        if self.physical_batch_size != "auto":
            return self.physical_batch_size
        first = dataset[0][0] if isinstance(dataset[0], (tuple, list)) else dataset[0]
        return records_within(model, first, self.memory_budget or free_memory() // 4) // views or 1


def records_within(model: nn.Module, record: Tensor, memory: int) -> int:
    """The number of records of `record`'s shape that fit through the model's forward and backward pass in `memory` bytes.

    Only shapes are used: the model runs on zeros, for two and for four records, and the bytes that autograd saves are counted.
    """
    per_record = (_saved_bytes(model, record, 4) - _saved_bytes(model, record, 2)) / 2
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    fits = int((memory - 2 * trained) / max(_SAFETY * per_record, 1))
    if fits < 1:
        raise PrivetError(
            f"One record needs about {_SAFETY * per_record / 2**20:.1f} MiB beside {2 * trained / 2**20:.1f} MiB for the "
            f"parameters, more than the {memory / 2**20:.1f} MiB allowed: allow more memory or take a smaller model."
        )
    return fits


def free_memory() -> int:
    """The number of free bytes on this machine."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _saved_bytes(model: nn.Module, record: Tensor, records: int) -> int:
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Any:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    kept = []  # keeps the graph alive, so that no storage is counted under an address that was used before
    with torch.random.fork_rng(), torch.autograd.graph.saved_tensors_hooks(note, lambda t: t), torch.enable_grad():
        kept.append(model(torch.zeros(records, *record.shape, dtype=record.dtype)))
    return sum(seen.values())


Batch = Any
"""The collated records of a data set: usually a tuple of tensors."""
Collate = Callable[[list[Any]], Batch]

_HUGGING_FACE = "transformers.data.data_collator"
KNOWN_COLLATE = frozenset(
    {
        "torch.utils.data._utils.collate.default_collate",
        f"{_HUGGING_FACE}.default_data_collator",
        f"{_HUGGING_FACE}.DefaultDataCollator",
        f"{_HUGGING_FACE}.DataCollatorWithPadding",
        f"{_HUGGING_FACE}.DataCollatorForTokenClassification",
        f"{_HUGGING_FACE}.DataCollatorForSeq2Seq",
        f"{_HUGGING_FACE}.DataCollatorForLanguageModeling",
    }
)
"""Collate functions that are known to stack, pad and mask each record on its own."""
REMOVING_COLUMNS = "transformers.trainer_utils.RemoveColumnsCollator"
"""Takes columns out of each record, and gives the rest to another collate function."""
COLLATED = "the collate function gives each record rows that depend on no other record"
STREAM = (
    "A stream cannot be Poisson-sampled, because every record must have the same chance to be drawn in every step: read it into "
    "memory, list(stream), or give a map-style data set, which has a length and is indexed."
)
PLAIN_SAMPLERS = (RandomSampler, SequentialSampler)


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
        team: the processes among which each batch is divided.
    """

    dataset: Any
    size_is_public: bool = True
    physical: int | None = None
    workers: int = 0
    collate: Collate | None = None
    users: Holdings | None = None
    team: Team = field(default_factory=Team)
    _drawn: dict[int, list[Tensor]] = field(default_factory=dict, init=False)
    """Draws from a secret source for unfinished steps. A loop that is left and entered again must use them: if it drew again, the
    records could decide which draws are used."""

    def __len__(self) -> int:
        """The number of records: examples, or users."""
        return len(self.dataset) if self.users is None else len(self.users)

    @property
    def rehearsed(self) -> int:
        """The number of examples of each record in a rehearsal."""
        return 1 if self.users is None else min(2, self.users.most)

    def sample(self, count: int, seed: int, rows: Tensor | None = None) -> Any:
        """A batch of `count` records for a rehearsal, drawn without the run's randomness: nothing of it is released. With `rows`,
        only these examples of it, as a batch of their own."""
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))[:count].sort().values
        if self.users is not None:
            order = self.users.some(order, self.rehearsed).flatten()
        if rows is not None:
            order = order[rows]
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

    @property
    def is_ragged(self) -> bool:
        """Whether the collate function puts rows of the records one after another, of which each record has another number."""
        return ROWS in self._grown

    def check_rows(self, dims: Iterable[tuple[Tensor, int | None]], rows: int) -> None:
        """Raise unless every tensor has a row for each example of the batch, where it has a dimension for them.

        Rows of which each record has another number, on purpose, are marked by a number below 0 and checked elsewhere.
        """
        if any(dim is not None and dim >= 0 and tensor.shape[dim] != rows for tensor, dim in dims):
            raise InputError(
                "The collate function gives several rows for some records, so that it is not known which row belongs to which "
                "record: let it give one row for each record, padded to the same length."
            )

    def check_collate(self, count: int) -> None:
        """Raise if the rows that a collate function gives a record depend on the other records."""
        if self.collate is None or count < 2:
            return
        if self.is_ragged:
            self._check_ragged(count)
            return
        collate = self.collate
        with same_streams() as streams:
            records = [self.dataset[place] for place in range(min(count, len(self.dataset)))]

            def collated(chosen: list[Any]) -> list[Tensor]:
                streams.put_back()
                return tensors_of(collate(chosen))

            whole = collated(records)
            shapes = [tensor.shape for tensor in whole]
            self._refuse_cutting(whole, records, collated)
            for place in range(len(records) - 1, 0, -1):
                other = collated([*records[:place], records[0], *records[place + 1 :]])
                if [tensor.shape for tensor in other] == shapes:  # without the longest record, padding differs
                    self._refuse_mixing(whole, other, place)

    def _check_ragged(self, count: int) -> None:
        """Raise unless the batch is what the records give alone, one after another."""
        assert self.collate is not None
        with same_streams():
            records = [self.dataset[place] for place in range(min(count, len(self.dataset)))]
            whole = tensors_of(self.collate(records))
            alone = [tensors_of(self.collate([record])) for record in records]
        for tensor, kind, *parts in zip(whole, self._grown, *alone, strict=True):
            if kind is None or kind == STARTS:  # the starts were recognized by their values
                continue
            if not torch.equal(tensor, torch.cat(parts, max(kind, 0))):
                raise InputError(_NOT_IN_ORDER)

    def _refuse_cutting(
        self, whole: list[Tensor], records: list[Any], collated: Callable[[list[Any]], list[Tensor]]
    ) -> None:
        """Padding adds to a record what a model can mask; what was cut off because of other records is gone."""
        random = Streams()
        for place, record in enumerate(records):
            for one, own, dim in zip(whole, collated([record]), self._grown, strict=True):
                if dim is None or one.shape[dim] != len(records) or random.have_moved():
                    continue
                if any(a < b for a, b in zip(one.select(dim, place).shape, own.select(dim, 0).shape, strict=True)):
                    raise InputError(
                        "The collate function cuts a record because of the other records of its batch. Let it pad them, or cut "
                        "all records to a fixed length."
                    )

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
        """The tensors that the data set consists of, where it consists of tensors, also inside a ``Subset`` and the like."""
        found: dict[int, Tensor] = {}
        seen: set[int] = set()
        left = [self.dataset]
        while left:
            value = left.pop()
            if isinstance(value, Tensor):
                found[id(value)] = value
            elif isinstance(value, (str, bytes, int, float, nn.Module, type)) or id(value) in seen:
                continue
            elif isinstance(value, Mapping):
                left += value.values()
            elif isinstance(value, (tuple, list)):
                left += value
            elif value is self.dataset or isinstance(value, Dataset) or is_dataclass(value):
                left += vars(value).values() if hasattr(value, "__dict__") else ()
            seen.add(id(value))
        return list(found.values())

    @cached_property
    def _grown(self) -> list[int | None]:
        with same_streams():
            collate, record = self.collate or default_collate, self.dataset[0]
            one, two = self._alone(record), tensors_of(collate([record, record]))
            grown = [_dim_that_grows(a.shape, b.shape) for a, b in zip(one, two, strict=True)]
            if self.collate is None:
                return grown
            some = [self.dataset[place] for place in range(min(_LOOKED_AT, len(self.dataset)))]
            whole, alone = tensors_of(collate(some)), [self._alone(each) for each in some]
        return _with_ragged(grown, whole, alone)

    def _alone(self, record: Any) -> list[Tensor]:
        try:
            return tensors_of((self.collate or default_collate)([record]))
        except Exception as error:
            error.add_note("The collate function got one record. A batch may hold one: it must work for that.")
            raise

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
        """The physical batches of the steps, drawn and loaded; workers may draw ahead of the steps.

        With several processes, each draws the whole batch from the same stream and loads its share.
        """
        parts: deque[PhysicalBatch] = deque()
        self._drawn = {number: pieces for number, pieces in self._drawn.items() if number >= steps.start}

        def draw() -> Iterator[Tensor]:
            for number in steps:
                step = Step(plan, number, randomness, self.team)
                source = randomness.sampling
                pieces = self._drawn.get(number) or self._pieces(step.sample(len(self)), source)
                if not isinstance(source, torch.Generator):  # the state of a generator is put back instead
                    self._drawn[number] = pieces
                stream = source.get_state() if isinstance(source, torch.Generator) else None
                for place, piece in enumerate(pieces):
                    records, each = piece.shape
                    last = place == len(pieces) - 1
                    parts.append(PhysicalBatch(step, records, place == 0, last, stream, each))
                    yield piece.flatten()

        for batch in load_batches(self.dataset, draw(), workers=self.workers, collate=self.collate):
            part = parts.popleft()
            yield part, batch
            if part.last:
                self._drawn.pop(part.step.number, None)

    def _pieces(self, records: Tensor, source: Source) -> list[Tensor]:
        """The examples of this process's share of the drawn records, as physical batches with a row for each record."""
        users = self.users if len(records) else None
        drawn = self._share([records.unsqueeze(1)] if users is None else list(users.drawn(records, source)))
        if self.physical is None:
            return drawn
        return [piece for rows in drawn for piece in rows.split(max(self.physical // rows.shape[1], 1))]

    def _share(self, drawn: list[Tensor]) -> list[Tensor]:
        """Every so-many-th record, in turn over all matrices; a share without any record is one empty matrix."""
        if self.team.size == 1:
            return drawn
        shares, passed = [], 0
        for rows in drawn:
            shares.append(rows[(self.team.rank - passed) % self.team.size :: self.team.size])
            passed += len(rows)
        return [rows for rows in shares if len(rows)] or shares[:1]


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
            _look_at_loader(dataset)
            # A loader that accelerate has prepared has its batch size in its batch sampler only.
            batch_size = dataset.batch_size or getattr(dataset.batch_sampler, "batch_size", None)
            workers = dataset.num_workers
            collate = None if dataset.collate_fn is default_collate else dataset.collate_fn
            dataset = dataset.dataset
        owner = users.key if isinstance(users, Users) else users
        dataset = records_of(dataset, owner if isinstance(owner, str) else "")
        if dataset is None or isinstance(dataset, IterableDataset):
            raise InputError(STREAM)
        if users is None:
            users = users_within(dataset)
        found = None if users is None else Users.of(users)
        if isinstance(sampling, UserSampling):
            if found is None:
                raise InputError("UserSampling draws users: give users=..., the user of each example.")
            if isinstance(users, Users) and users.most != sampling.most:
                raise InputError(
                    f"users allows {users.most} examples of a user in a step, and sampling {sampling.most}: give the same number."
                )
            found = replace(found, most=sampling.most)
        return cls(dataset, batch_size, workers, collate, None if found is None else found.found_in(dataset))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumption about a collate function that is not known to keep records apart."""
        collate = self.collate
        if collate is not None and qualified_name(collate) == REMOVING_COLUMNS:
            collate = getattr(collate, "data_collator", collate)
        known = collate is None or qualified_name(collate) in KNOWN_COLLATE
        return () if known else (COLLATED,)

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

    def loaded(self, size_is_public: bool, physical: int | None, workers: int | None, team: Team) -> Records:
        """The records with their way of loading; `workers` defaults to those of the loader."""
        workers = self.workers if workers is None else workers
        return Records(self.dataset, size_is_public, physical, workers, self.collate, self.users, team)


def qualified_name(function: Any) -> str:
    """The name of a function, or of the class of a callable value, with its module."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _look_at_loader(loader: DataLoader[Any]) -> None:
    """Refuse a loader whose items may be batches; warn if the order of the loader matters, because it is not used."""
    if isinstance(loader.dataset, IterableDataset):
        raise InputError(STREAM)
    if loader.batch_sampler is None:
        raise InputError(
            "The loader has batch_size=None, so an item of its data set may be a batch of several records: give a data set of "
            "single records."
        )
    sampler = getattr(loader.batch_sampler, "sampler", loader.batch_sampler)
    if not isinstance(sampler, PLAIN_SAMPLERS):
        raise InputError(
            f"The loader's {type(sampler).__name__} decides which records are drawn and how often, but a plan draws all records "
            f"with the same probability: give the data set without the loader, or a Subset of it."
        )
    if getattr(sampler, "replacement", False):
        warnings.warn(
            f"The loader's {type(sampler).__name__} is not used: each record is drawn with the same probability in every step "
            f"(Poisson sampling), on which the statement rests.",
            PrivetWarning,
            stacklevel=5,
        )


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


_NOT_IN_ORDER = (
    "The collate function gives a record other rows because of the other records of its batch. Let it put the rows of the "
    "records one after another, in their order, or pad all of them to a fixed length."
)
_LOOKED_AT = 16
"""The number of records whose lengths tell whether a collate function puts them one after another."""


def _with_ragged(grown: list[int | None], whole: list[Tensor], alone: list[list[Tensor]]) -> list[int | None]:
    """`grown`, with `ROWS` for tensors that hold the rows of all records one after another, and `STARTS` for their beginnings."""
    if any(len(parts) != len(whole) for parts in alone) or len(grown) != len(whole):
        return grown
    found, lengths = list(grown), []
    for k, tensor in enumerate(whole):
        parts = [each[k] for each in alone]
        if tensor.ndim and all(p.ndim == tensor.ndim and p.shape[1:] == tensor.shape[1:] for p in parts):
            sizes = [p.shape[0] for p in parts]
            if set(sizes) == {1} or sum(sizes) != tensor.shape[0]:
                continue
            if torch.equal(torch.cat(parts), tensor):
                found[k] = ROWS
                lengths.append(torch.tensor(sizes))
            elif len(set(sizes)) > 1:
                raise InputError(_NOT_IN_ORDER)
    for k, tensor in enumerate(whole):
        whole_numbers = tensor.ndim == 1 and not tensor.is_floating_point() and not tensor.is_complex()
        if whole_numbers and any(torch.equal(tensor.cpu().long(), s) for each in lengths for s in _starts(each)):
            found[k] = STARTS
    return found


def _starts(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Where records of these lengths begin one after another, without and with the end of the last."""
    ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return ends[:-1], ends


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
        raise InputError(STREAM)
    if hasattr(dataset, "windows"):
        if collate is not None:
            raise InputError(
                "The records of these files are gathered many at a time, and a collate function takes them one by one: give the "
                "data set without a loader, or convert the files to Arrow."
            )
        yield from dataset.windows(index_batches)
    elif collate is not None:
        yield from _collated(dataset, index_batches, workers, collate)
    elif hasattr(dataset, "batch"):
        yield from (dataset.batch(indices) for indices in index_batches)
    elif hasattr(dataset, "tensors"):
        tensors: tuple[Tensor, ...] = tuple(dataset.tensors)
        yield from (tuple(t.index_select(0, indices.to(t.device)) for t in tensors) for indices in index_batches)
    else:
        yield from _collated(dataset, index_batches, workers, default_collate)


def _collated(
    dataset: Dataset[Any], index_batches: Iterable[Tensor], workers: int, collate: Collate
) -> Iterator[Batch]:
    # A third-party data set that returns several records at once could mix them.
    alone = hasattr(dataset, "__getitems__") and not isinstance(dataset, HuggingFaceRecords)
    yield from DataLoader(
        OneByOne(dataset) if alone else dataset,
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
    if isinstance(batch, Mapping):
        return {key: _emptied(value) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return type(batch)(_emptied(value) for value in batch)
    return batch
