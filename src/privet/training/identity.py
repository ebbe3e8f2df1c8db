"""What makes a run the same run: its plan, its data, its seed. A checkpoint continues no other."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from privet.errors import InputError
from privet.training.checkpoint import digest

_LOOKED_AT = 64


def describe(value: Any) -> Any:
    """A value as plain data, the same for equal values; tensors by their digest."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, Tensor):
        return digest({"": value})
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [describe(item) for item in value]
    return value


def data_fingerprint(dataset: Any) -> str:
    """SHA-256 over the records where they are tensors; elsewhere over their number and 64 of them, evenly spread."""
    if isinstance(getattr(dataset, "fingerprint", None), str):
        return str(dataset.fingerprint)
    if isinstance(getattr(dataset, "inputs", None), Tensor) and isinstance(getattr(dataset, "labels", None), Tensor):
        return digest({"inputs": dataset.inputs, "labels": dataset.labels})
    if hasattr(dataset, "tensors"):
        return digest({str(place): tensor for place, tensor in enumerate(dataset.tensors)})
    summed = hashlib.sha256(str(len(dataset)).encode())
    for place in torch.linspace(0, len(dataset) - 1, min(_LOOKED_AT, len(dataset))).long().tolist():
        summed.update(pickle.dumps(_plain(dataset[place]), protocol=4))
    return summed.hexdigest()


def require_same(folder: Path, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise unless a run is continued as what it was, and name what differs."""
    difference = _difference("", stored, given)
    if difference is None:
        return
    name, one, other = difference
    if name == "data":
        raise InputError(
            f"The run in {folder} was made with other data: resume it with the same records in the same order."
        )
    raise InputError(
        f"The run in {folder} was made with {name} {one!r}, and {other!r} was given: resume it with the same settings, "
        f"or start another run in another folder."
    )


def _difference(name: str, stored: Any, given: Any) -> tuple[str, Any, Any] | None:
    if isinstance(stored, Mapping) and isinstance(given, Mapping):
        for key in [*stored, *(key for key in given if key not in stored)]:
            found = _difference(f"{name}.{key}".lstrip("."), stored.get(key), given.get(key))
            if found is not None:
                return found
        return None
    return None if stored == given else (name, stored, given)


def _plain(record: Any) -> Any:
    if isinstance(record, Tensor):
        return digest({"": record})
    if isinstance(record, Mapping):
        return {key: _plain(value) for key, value in record.items()}
    if isinstance(record, (tuple, list)):
        return [_plain(value) for value in record]
    return record


plain = describe


def rebuild(data):  # temporary
    return None
