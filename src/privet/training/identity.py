"""Settings as plain data: for the identity of a run that is resumed, for its description, and to rebuild them."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import numbers
import pickle
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from privet.clipping import Clipping
from privet.errors import InputError, PrivetError
from privet.io.registry import plugin_name
from privet.noise import Noise
from privet.privacy import Ledger, Schedule
from privet.sampling import Sampling
from privet.training.checkpoint import digest
from privet.training.plan import Plan

T = TypeVar("T", bound=type)

_LOOKED_AT = 64
_REGISTERED: set[type] = set()


class NotRebuilt(PrivetError):  # noqa: N818 - a name that reads as what happened
    """A value cannot be rebuilt from plain data; `part` names the part at fault, and `why` says what is wrong."""

    def __init__(self, part: str, why: str) -> None:
        super().__init__(f"{part} cannot be rebuilt from a record of its settings: {why}.")
        self.part, self.why = part, why


@dataclasses.dataclass(frozen=True, eq=False)
class RunDescription:
    """Everything that is needed to describe a run.

    Attributes:
        plan: sampling, clipping, noise, steps and public size.
        settings: all settings as plain data, ready for JSON; `rebuild` makes the plan again from ``settings["plan"]``.
        steps_done: the number of steps that were done.
        delta: the delta of the statement.
        ledger: everything that was recorded.
        models: the class of each model, as "module:qualname".
    """

    plan: Plan
    settings: dict[str, Any]
    steps_done: int
    delta: float
    ledger: Ledger
    models: tuple[str, ...]


def plain(value: Any) -> Any:
    """A value as plain data, the same for equal values: dataclasses with their class, tensors and functions by name or digest.

    `rebuild` is the inverse, except for tensors and functions.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value) if f.init}
        return {"kind": class_path(type(value)), **fields}
    if isinstance(value, Tensor):
        return {"tensor": digest({"": value})}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, numbers.Real):  # NumPy's
        return int(value) if isinstance(value, numbers.Integral) else plain(float(value))
    return {"object": class_path(value if hasattr(value, "__qualname__") else type(value))}


def rebuild(data: Any, *, allowed: Iterable[type] = (), part: str = "the value") -> Any:
    """The value from which `plain` made `data`; lists become tuples.

    Formal guarantees: nothing is imported, and no class is used by its name in `data` except those of the library, those
    given in `allowed` or to `register`, and classes that were imported before and inherit from `Clipping`, `Noise` or
    `Sampling`. Raises `NotRebuilt`, which names the part, if a part is of another class, a tensor or a function.
    """
    found: dict[str, list[type]] = {}
    for kind in (*_known(), *allowed):
        found.setdefault(class_path(kind), []).append(kind)
    # If one module defined a class several times, as a notebook does, the last definition counts.
    return _rebuilt(data, {path: each[-1] if _one_module(each) else None for path, each in found.items()}, part)


def _one_module(kinds: list[type]) -> bool:
    return len({kind.__module__ for kind in kinds}) == 1


def register(kind: T) -> T:
    """A decorator: allow `rebuild` to make values of this dataclass."""
    if not dataclasses.is_dataclass(kind):
        raise InputError(f"{kind.__name__} is not a dataclass: only dataclasses can be rebuilt from their fields.")
    _REGISTERED.add(kind)
    return kind


def class_path(kind: Any) -> str:
    """The "module:qualname" of a class or function; for the library's own, the package that exports it.

    The module of a plug-in is named after its file, so that it is the same for a loop that imports the file by its name.
    """
    module = str(kind.__module__)
    if module.startswith("privet."):
        module = ".".join(module.split(".")[:2])
    return f"{plugin_name(module) or module}:{kind.__qualname__}"


def data_fingerprint(dataset: Any) -> str:
    """SHA-256 over the records where they are tensors; otherwise over their number and 64 of them, evenly spread."""
    if isinstance(getattr(dataset, "fingerprint", None), str):
        return str(dataset.fingerprint)
    if isinstance(getattr(dataset, "inputs", None), Tensor) and isinstance(getattr(dataset, "labels", None), Tensor):
        return digest({"inputs": dataset.inputs, "labels": dataset.labels})
    if hasattr(dataset, "tensors"):
        return digest({str(place): tensor for place, tensor in enumerate(dataset.tensors)})
    summed = hashlib.sha256(str(len(dataset)).encode())
    for place in torch.linspace(0, len(dataset) - 1, min(_LOOKED_AT, len(dataset))).long().tolist():
        summed.update(pickle.dumps(_digested(dataset[place]), protocol=4))
    return summed.hexdigest()


def require_same(folder: Path, stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raise unless a run is continued with its own settings; the message names the first difference."""
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


def _rebuilt(data: Any, kinds: Mapping[str, type | None], part: str) -> Any:
    if isinstance(data, list):
        return tuple(_rebuilt(item, kinds, f"{part}[{place}]") for place, item in enumerate(data))
    if not isinstance(data, Mapping):
        return data
    if len(data) == 1:
        ((key, value),) = data.items()
        if key == "float" and isinstance(value, str):
            return float(value)
        if key == "tensor" and isinstance(value, str):
            raise NotRebuilt(part, "it is a tensor, of which only the digest was kept")
        if key == "object" and isinstance(value, str):
            raise NotRebuilt(part, f"it is {value}, which is not plain data")
    if not isinstance(data.get("kind"), str):
        return {key: _rebuilt(item, kinds, f"{part}.{key}") for key, item in data.items()}
    name = data["kind"]
    if name not in kinds:
        raise NotRebuilt(
            part,
            f"its class {name} is unknown; load the file that defines it (--plugin FILE), import its module, or register it",
        )
    if (kind := kinds[name]) is None:
        raise NotRebuilt(part, f"two plug-ins define its class {name}; load one of them")
    fields = {key: _rebuilt(item, kinds, f"{part}.{key}") for key, item in data.items() if key != "kind"}
    try:
        return kind(**fields)
    except (
        Exception
    ) as error:  # a third-party class may raise anything, and a record from elsewhere may contain anything
        raise NotRebuilt(part, f"{name} refuses its settings ({error})") from None


def _known() -> Iterator[type]:
    yield from (Plan, Schedule, *_REGISTERED)
    for protocol in (Clipping, Noise, Sampling):
        yield from (kind for kind in _heirs(protocol) if dataclasses.is_dataclass(kind))


def _heirs(kind: type) -> Iterator[type]:
    each: type
    for each in type.__subclasses__(kind):
        yield each
        yield from _heirs(each)


def _difference(name: str, stored: Any, given: Any) -> tuple[str, Any, Any] | None:
    if isinstance(stored, Mapping) and isinstance(given, Mapping):
        for key in [*stored, *(key for key in given if key not in stored)]:
            found = _difference(f"{name}.{key}".lstrip("."), stored.get(key), given.get(key))
            if found is not None:
                return found
        return None
    return None if stored == given else (name, stored, given)


def _digested(record: Any) -> Any:
    if isinstance(record, Tensor):
        return digest({"": record})
    if isinstance(record, Mapping):
        return {key: _digested(value) for key, value in record.items()}
    if isinstance(record, (tuple, list)):
        return [_digested(value) for value in record]
    return record
