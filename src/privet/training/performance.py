"""How a step is computed: settings that change speed and memory, and neither the result of a step nor its privacy."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from privet.errors import InputError, PrivetError

_SAFETY = 2.0
"""At its fullest, the backward pass holds about as much again as the forward pass saved."""


@dataclass(frozen=True)
class Performance:
    """Settings of speed and memory for `make_private`.

    Attributes:
        physical_batch_size: the largest number of records that go through the model at once; the step stays the same. "auto"
            chooses as many as fit into `memory_budget`, or into a quarter of the free memory without one.
        memory_budget: bytes for per-example gradients, and for a physical batch under "auto".
        workers: processes that load the records of a map-style data set.
        save_every: steps from one checkpoint to the next, for a run in a folder; an epoch by default. The last step is always
            saved.
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
