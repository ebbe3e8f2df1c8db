"""A checkpoint: everything that a run needs to go on, in one file that is there whole or not at all."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from privet.errors import PrivetError
from privet.io import write_whole
from privet.training.packing import pack, unpack

_FORMAT = "1"
_PATTERN = "checkpoint-*.safetensors"
_KEPT = 2
"""The newest, and the one before it for the day when the newest cannot be read."""


class DamagedCheckpointWarning(UserWarning):
    """A checkpoint could not be read, and the one before it was taken."""


def save_checkpoint(folder: Path, step: int, state: Mapping[str, Any]) -> Path:
    """Write the state after `step` steps; when this returns it is on the disk, and older checkpoints but one are gone.

    Formal guarantees: killed at any moment or out of space, the folder holds the checkpoints that it held before.
    """
    tensors: dict[str, Tensor] = {}
    tree = json.dumps(pack(state, tensors, "state"))
    metadata = {"format": _FORMAT, "state": tree, "digest": digest(tensors, tree)}
    path = folder / f"checkpoint-{step:09d}.safetensors"
    try:
        write_whole(path, save(tensors, metadata))
    except OSError as error:
        raise PrivetError(
            f"The checkpoint {path} cannot be written: {error.strerror}. The one before it is as it was; make room and resume."
        ) from None
    for old in sorted(folder.glob(_PATTERN))[:-_KEPT]:
        old.unlink(missing_ok=True)
    return path


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The newest state that can be read, or None where there never was one; warns when a newer one is damaged."""
    found = sorted(folder.glob(_PATTERN), reverse=True)
    for path in found:
        try:
            return _read(path)
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            warnings.warn(f"{path} cannot be read ({error}).", DamagedCheckpointWarning, stacklevel=2)
    if found:
        raise PrivetError(f"No checkpoint in {folder} can be read: start anew in another folder.")
    return None


def digest(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """SHA-256 in hex over names, types, shapes and contents."""
    summed = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        summed.update(repr((name, tuple(tensor.shape), str(tensor.dtype))).encode())
        summed.update(_bytes(tensor))
    return summed.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _read(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    if metadata.get("format") != _FORMAT:
        raise ValueError(f"its format is {metadata.get('format')}, and this version of Privet reads {_FORMAT}")
    if digest(tensors, metadata["state"]) != metadata["digest"]:
        raise ValueError("its content was changed")
    state: dict[str, Any] = unpack(json.loads(metadata["state"]), tensors)
    return state
