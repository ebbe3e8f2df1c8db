"""States of models and optimizers as plain data: a tree for JSON and tensors by name. Reading them never runs code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from privet.errors import PrivetError

_PLAIN = (str, int, float, bool, type(None))


def pack(value: Any, tensors: dict[str, Tensor], where: str) -> Any:
    """The tree of `value`; its tensors go into `tensors`, under names that begin with `where`."""
    if isinstance(value, Tensor):
        # A copy: tied parameters share memory, which a file of tensors cannot.
        tensors[where] = value.detach().contiguous().clone()
        return {"tensor": where}
    if isinstance(value, Mapping):
        items = [[_key(key, where), pack(item, tensors, f"{where}.{key}")] for key, item in value.items()]
        return {"mapping": items}
    if isinstance(value, tuple):
        return {"tuple": [pack(item, tensors, f"{where}.{place}") for place, item in enumerate(value)]}
    if isinstance(value, list):
        return [pack(item, tensors, f"{where}.{place}") for place, item in enumerate(value)]
    if type(value) in _PLAIN:
        return value
    raise PrivetError(
        f"{where} is a {type(value).__name__}, which a checkpoint does not hold: it holds tensors, numbers, text, and "
        f"mappings, tuples and lists of them."
    )


def unpack(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that `pack` was given."""
    if isinstance(tree, list):
        return [unpack(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "tensor" in tree:
        return tensors[tree["tensor"]]
    if "tuple" in tree:
        return tuple(unpack(item, tensors) for item in tree["tuple"])
    return {key: unpack(item, tensors) for key, item in tree["mapping"]}


def _key(key: Any, where: str) -> str | int:
    if type(key) not in (str, int):
        raise PrivetError(f"{where} has the key {key!r}, and keys in a checkpoint are text or whole numbers.")
    return key  # type: ignore[no-any-return]
