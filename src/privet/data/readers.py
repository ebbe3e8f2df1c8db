"""Data sets by name: of the catalog, of a plug-in, FORMAT:PATH, or the user's own function py:package.module:load."""

from __future__ import annotations

import inspect
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privet.data.cache import cache_root
from privet.data.catalogue import CATALOGUE, CatalogEntry, obtain, unknown
from privet.data.cifar import read_cifar
from privet.data.dataset import Dataset, Split
from privet.data.frames import from_frame, is_frame
from privet.data.idx import read_idx_dataset
from privet.data.images import read_folder, read_svhn
from privet.data.schema import Schema, read_schema
from privet.data.sources import Progress, silent
from privet.data.tables import read_csv, read_parquet
from privet.errors import InputError, PrivetError, PrivetWarning
from privet.io import kind_of, unreadable, user_path
from privet.io.registry import PREFIX, Registry, object_at

Reader = Callable[..., Any]
"""Reads a data set, from a path if it has a parameter for it. Its other parameters are the options of `load` that it takes."""

OWN = f"{PREFIX}package.module:function"
MOST_CLASSES = 100_000
RETURNS = "return a Dataset, a data frame, a pair (inputs, labels), or two of these pairs or Splits (train, test)"


def _checked(value: object) -> CatalogEntry | Reader:
    if isinstance(value, CatalogEntry):
        return value
    try:
        inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(
            f"{value!r} does not read data: register a function that returns a Dataset, or an CatalogEntry."
        ) from None
    return value  # type: ignore[return-value]


DATA: Registry[CatalogEntry | Reader] = Registry("data set", "privet.data", _checked)
"""Data sets and formats. `DATA.register` adds a function that reads a path (used as NAME:PATH), a function without
arguments (used as NAME), or an `CatalogEntry` with files, checksums and sources (used as NAME)."""

for _entry in CATALOGUE.values():
    DATA.register(_entry.name, _entry)
for _name, _reader in (
    ("idx", read_idx_dataset),
    ("cifar", read_cifar),
    ("svhn", read_svhn),
    ("folder", read_folder),
    ("csv", read_csv),
    ("parquet", read_parquet),
):
    DATA.register(_name, _reader)


def load(
    spec: str,
    *,
    schema: Schema | Path | str | None = None,
    classes: Sequence[str] | None = None,
    header: bool = True,
    user: str = "",
    cache: Path | str | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Load the data set ``spec``: a name such as ``mnist``, a format and a path such as ``csv:PATH``, or
    ``py:package.module:load`` for a function of your own.

    The formats are ``idx``, ``cifar``, ``svhn``, ``folder``, ``csv`` and ``parquet``; plug-ins add names and formats. Your
    own function takes no arguments and may return a Dataset, a pair (inputs, labels) of tensors or arrays, or two such pairs
    or Splits (train, test); or, together with `schema`, a data frame or two (train, test), as `from_frame` takes them. Raises
    InputError for everything that cannot be used.

    Args:
        spec: the name. A data set of the catalog is downloaded if the cache does not have it.
        schema: a schema or its file, which tables need.
        classes: class names for ``idx:`` (otherwise the ten digits) and for pairs (otherwise the labels are counted).
        header: False if the first row of a CSV file is a record; its columns are then those of the schema, in their order.
        user: the column of a table with the user of each row, which replaces the schema's ``user``; of ``sotu``: ``speaker``.
        cache: the folder of the cache, instead of the usual one.
        progress: called during downloads.
    """
    given = {"schema": schema is not None, "classes": classes is not None, "header": not header, "user": bool(user)}
    path, reader = _find(spec)
    if refused := [option for option, used in given.items() if used and option not in _accepted(reader)]:
        raise _refusal(spec, refused[0])
    if isinstance(reader, CatalogEntry):
        return obtain(reader, None, cache_root(cache), progress or silent, user)
    takes = inspect.signature(reader).parameters
    if path is not None:
        kind_of(path)  # refuses everything but files and folders
    if schema is None and "schema" in takes and takes["schema"].default is inspect.Parameter.empty:
        raise InputError(
            f"{path or spec} needs a schema: its bounds and categories must be public, so they are not taken from the rows."
        )
    options: dict[str, Any] = {"classes": classes, "cache": cache, "progress": progress}
    options |= {"schema": None if schema is None else _described(schema, user), "header": None if header else False}
    used = {option: value for option, value in options.items() if value is not None and option in takes}
    found = _called(spec, reader, *(() if path is None else (path,)), **used)
    if (frames := _frames(found)) is not None:
        return from_frame(frames[0], _schema_of(options["schema"], spec), test=frames[1], name=spec)
    if user and "schema" not in takes:
        raise _refusal(spec, "user")
    if schema is not None and "schema" not in takes:
        raise InputError(f"{spec} gave {_shown(found)}, which takes no schema: only data frames do.")
    return as_dataset(found, spec, None if "classes" in takes else classes)


def _frames(found: Any) -> tuple[Any, Any] | None:
    """The data frame of the user's own function, and that of the test records, if it gave two; None if it gave none."""
    if is_frame(found):
        return found, None
    is_pair = isinstance(found, tuple | list) and len(found) == 2 and all(map(is_frame, found))
    return (found[0], found[1]) if is_pair else None


def _schema_of(schema: Schema | None, spec: str) -> Schema:
    if schema is None:
        raise InputError(
            f"{spec} gave a data frame, which needs a schema: its bounds and categories must be public, so they are not taken "
            "from the rows."
        )
    return schema


def _find(spec: str) -> tuple[Path | None, CatalogEntry | Reader]:
    """The path in `spec`, if there is one, and the reader that it names."""
    if spec.startswith(PREFIX):
        reader = _checked(object_at(spec))
        if _takes_path(reader):
            raise InputError(f"{spec} has a parameter without a default: name a function that needs no arguments.")
        return None, reader
    name, colon, text = spec.partition(":")
    if name in DATA and _takes_path(found := DATA[name]) == bool(colon and text):
        if isinstance(found, CatalogEntry) and found.name != name:
            raise InputError(f"The data set {found.name!r} is registered as {name!r}: register it under its own name.")
        return user_path(text) if colon else None, found
    if failure := DATA.failure(name):
        raise InputError(failure)
    names = [name for name, value in DATA.items() if not _takes_path(value)]
    formats = [name for name, value in DATA.items() if _takes_path(value)]
    if not colon and spec and _exists(spec):
        raise InputError(f"{spec} is a path: name its format, as in {', '.join(f'{one}:{spec}' for one in formats)}.")
    if not colon and spec not in formats:
        raise unknown(spec, names)
    raise InputError(
        f"{spec!r} does not name a data set: use one of {', '.join(names)}, or "
        f"{', '.join(f'{one}:PATH' for one in formats)}, or {OWN}."
    )


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except OSError:
        return False


def _takes_path(reader: CatalogEntry | Reader) -> bool:
    """Whether a reader has a first parameter without a default, which is the path."""
    if isinstance(reader, CatalogEntry):
        return False
    first = next(iter(inspect.signature(reader).parameters.values()), None)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return first is not None and first.kind in positional and first.default is inspect.Parameter.empty


def _accepted(reader: CatalogEntry | Reader) -> set[str]:
    """The options that a reader accepts: its parameters, and class names for a plug-in that may return arrays."""
    if isinstance(reader, CatalogEntry):
        return {"user"} if reader.user else set()
    takes = set(inspect.signature(reader).parameters)
    # A function of somebody else's may give arrays, which have classes, or a data frame, which has a schema.
    return (
        takes
        | ({"user"} if "schema" in takes else set())
        | (set() if _built_in(reader) else {"classes", "schema", "user"})
    )


def _built_in(reader: Reader) -> bool:
    return str(getattr(reader, "__module__", "")).partition(".")[0] == "privet"


def _refusal(spec: str, option: str) -> InputError:
    takers = [
        f"{name}:PATH" if _takes_path(value) else name for name, value in DATA.items() if option in _accepted(value)
    ]
    *first, last = [*takers, *([OWN] if option == "classes" else [])]
    said = f"{', '.join(first)} and {last} do" if first else f"{last} does"
    return InputError(f"{spec} {'has no column of users' if option == 'user' else f'takes no {option}'}: only {said}.")


def _described(schema: Schema | Path | str, user: str) -> Schema:
    described = schema if isinstance(schema, Schema) else read_schema(schema)
    if not user:
        return described
    return replace(described, user=user, ignore=tuple(name for name in described.ignore if name != user))


def _called(spec: str, reader: Reader, *arguments: Any, **options: Any) -> Any:
    """Call a reader. An error may quote records, so only its type and place are reported."""
    try:
        return reader(*arguments, **options)
    except PrivetError:
        raise
    except MemoryError:
        raise InputError(f"{spec} does not fit into this machine's memory: give a part of the records.") from None
    except OSError as error:
        if not _built_in(reader):
            raise _failure(spec, error, "correct the function") from error
        raise unreadable(Path(error.filename or arguments[0]), error) from None
    except Exception as error:
        if not _built_in(reader):
            raise _failure(spec, error, "correct the function") from error
        raise _failure(spec, error, "check that its files are whole, and report it if they are") from None


def _failure(spec: str, error: Exception, way_out: str) -> InputError:
    place = traceback.extract_tb(error.__traceback__)[-1]
    return InputError(
        f"{spec} raised {type(error).__name__} ({Path(place.filename).name}, line {place.lineno}): {way_out}."
    )


def as_dataset(found: Any, name: str, classes: Sequence[str] | None = None) -> Dataset:
    """A Dataset from the result of a user's function: a Dataset, a pair (inputs, labels), or two pairs or Splits."""
    if isinstance(found, Dataset):
        if classes is not None:
            raise InputError(f"{name} returns a Dataset, which names its classes itself: leave classes out.")
        return found
    if isinstance(found, Split):
        found = (found, None)
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise InputError(f"{name} returned {_shown(found)}: {RETURNS}.")
    if all(isinstance(part, Split | tuple) for part in found):
        parts = {"train": found[0], "test": found[1]}
    else:
        parts = {"train": found[0] if found[1] is None else tuple(found)}
    splits = {title: _split(part, f"{name}, split {title}") for title, part in parts.items()}
    if classes is None:
        count = 1 + max(int(split.labels.max()) for split in splits.values())
        if count > MOST_CLASSES:
            raise InputError(f"{name} has labels above {MOST_CLASSES:,}, the limit: number the classes from 0.")
        warnings.warn(
            f"{name} does not name its classes, so their number, {count}, was taken from the labels and counts as public: "
            "return a Dataset to name them.",
            PrivetWarning,
            stacklevel=3,
        )
        classes = [str(label) for label in range(count)]
    return Dataset(name, tuple(classes), splits)


def _split(part: Any, where: str) -> Split:
    if isinstance(part, Split):
        return part
    if not isinstance(part, tuple) or len(part) != 2:
        raise InputError(f"{where}: this is {_shown(part)}: {RETURNS}.")
    inputs, labels = (
        _tensor(value, f"{where}, {what}") for value, what in zip(part, ("inputs", "labels"), strict=True)
    )
    if labels.is_floating_point() or labels.is_complex():
        raise InputError(f"{where}: the labels are not integers: number the classes from 0.")
    if (
        inputs.is_floating_point()
        and not (finite := inputs.isfinite().flatten(1).all(1) if inputs.ndim > 1 else inputs.isfinite()).all()
    ):
        record = int((~finite).nonzero()[0]) + 1
        raise InputError(f"{where}, record {record}: a value is NaN or infinite: fix or remove the record.")
    try:
        return Split(inputs, labels.long())
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _tensor(value: Any, where: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().cpu()
    try:
        return torch.from_numpy(np.ascontiguousarray(value))
    except (TypeError, ValueError):
        raise InputError(
            f"{where}: this is {_shown(value)}, which is not an array of numbers: give a tensor or an array."
        ) from None


def _shown(value: Any) -> str:
    """The kind of a value; the value itself may be private."""
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}" if value is not None else "None"
