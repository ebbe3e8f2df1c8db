"""Dataclasses to plain data that JSON can hold, and back; errors name the first field that does not fit.

JSON has no infinity. An infinite number is written as null, and its field is listed under "infinite". Only the fields that a
class lists in `MAY_BE_INFINITE` may be infinite.
"""

from __future__ import annotations

import dataclasses
import math
import types
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
INFINITE = "infinite"


class MisfitError(ValueError):
    """Plain data does not fit its type. The message names the field."""


def to_plain(value: Any) -> Any:
    """Convert a dataclass, and everything inside it, to plain data for JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        infinite = [name for name in _may_be_infinite(type(value)) if held[name] == math.inf]
        plain = {name: None if name in infinite else to_plain(item) for name, item in held.items()}
        return plain | ({INFINITE: infinite} if infinite else {})
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _may_be_infinite(cls: type) -> tuple[str, ...]:
    return getattr(cls, "MAY_BE_INFINITE", ())


def build(cls: type[T], plain: Any, where: str = "") -> T:
    """Build a dataclass from a dictionary. Every field is checked; missing and unknown fields are errors."""
    if not isinstance(plain, dict):
        raise MisfitError(f"{where or 'the record'} is {_kind(plain)} and should be an object")
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    listed = plain.get(INFINITE, ())
    listed = listed if isinstance(listed, list) else ()
    infinite = [name for name in _may_be_infinite(cls) if name in listed and name in plain and plain[name] is None]
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        name = f"{where}.{field.name}" if where else field.name
        if field.name in infinite:
            values[field.name] = math.inf
        elif field.name in plain:
            values[field.name] = _fit(hints[field.name], plain[field.name], name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise MisfitError(f"'{name}' is missing")
    known = {field.name for field in dataclasses.fields(cls)} | ({INFINITE} if infinite else set())  # type: ignore[arg-type]
    if unknown := sorted(map(str, set(plain) - known)):
        name = f"{where}.{unknown[0]}" if where else unknown[0]
        raise MisfitError(f"'{name[:100]}' is not a field of this version of the record")
    return cls(**values)


def _fit(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return None if value is None else _fit(arguments[0], value, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_fit(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: _fit(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value):
        return float(value)
    if hint in (str, int, bool) and type(value) is hint:
        return value
    expected = getattr(origin or hint, "__name__", str(hint))
    raise MisfitError(f"'{where}' is {_kind(value)} and should be {_NAMES.get(expected, expected)}")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


_NAMES = {"str": "text", "int": "a whole number", "float": "a finite number", "tuple": "a list", "dict": "an object"}


def _kind(value: Any) -> str:
    if isinstance(value, float):
        return "a number" if math.isfinite(value) else str(value)
    names = _NAMES | {"list": "a list", "NoneType": "null", "bool": str(value).lower()}
    return names.get(type(value).__name__, f"a {type(value).__name__}")
