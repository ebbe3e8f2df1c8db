"""How many records fit through a model at once."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

from privet.errors import PrivetError

_SAFETY = 2.0
"""The backward pass holds about as much again as the forward pass saved, at its fullest."""


def records_within(model: nn.Module, record: Tensor, memory: int) -> int:
    """How many records of `record`'s shape can go through the model's forward and backward pass in `memory` bytes.

    Only shapes are used: the model runs once on zeros, for two and for four records, and what autograd saves is counted.
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
    """Bytes that are free on this machine."""
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
