"""Batches of a data set by index: one `index_select` where it is tensors, torch's DataLoader with workers elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from privet.errors import InputError

Batch = Any
"""What the data set's records collate to: usually a tuple of tensors."""


Collate = Callable[[list[Any]], Batch]


def load_batches(
    dataset: Any, index_batches: Iterable[Tensor], *, workers: int = 0, collate: Collate | None = None
) -> Iterator[Batch]:
    """The batch for each tensor of indices, in order. An empty one gives tensors of length zero.

    `dataset` is a `privet.data.Split`, a ``TensorDataset`` or anything with ``tensors``, or any map-style data set with
    ``__getitem__`` and ``__len__``, whose records are collated by `collate`, or by torch's defaults.
    """
    if isinstance(dataset, torch.utils.data.IterableDataset) or not hasattr(dataset, "__len__"):
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
        batch_sampler=_Listed(indices.tolist() for indices in index_batches),
        num_workers=workers,
        collate_fn=_Collate(dataset, collate),
        generator=torch.Generator(),  # torch's own stays where it is: a resumed run continues it
    )


class _Listed:
    """A batch sampler that can be read once, as an iterator of the caller's."""

    def __init__(self, batches: Iterator[list[int]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches


class _Collate:
    """An empty batch has the shapes of a batch of one record, cut to none: shapes are public."""

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
