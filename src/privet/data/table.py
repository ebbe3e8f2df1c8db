"""Records out of table columns: the part that CSV and Parquet share.

Messages name the file, the row and a column of the schema, never a value: they end up in logs, and the records are
private. A column that the schema does not describe is called by its place: without a header its "name" is a record's value.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet.data.dataset import Dataset, Split
from privet.data.owners import user_number
from privet.data.schema import Categorical, Numeric, Schema
from privet.errors import InputError


class Table(Protocol):
    """What a reader of one file format gives."""

    @property
    def path(self) -> Path: ...

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def first_row(self) -> int:
        """The number by which messages call the first record: what the user sees when they open the file."""
        ...

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column of numbers. Raises through ``fail`` where a cell is empty or not a number."""
        ...

    def texts(self, name: str) -> Sequence[str]:
        """A column of texts, surrounding spaces removed."""
        ...


def fail(table: Table, record: int, column: str, problem: str) -> NoReturn:
    """Raise the InputError of one cell."""
    raise InputError(f"{table.path}, row {table.first_row + record}, column {column!r}: {problem}")


def to_split(table: Table, schema: Schema) -> Split:
    """The records as the schema encodes them: float32 inputs in [0, 1] and labels."""
    _check_columns(table, schema)
    blocks = []
    for column in schema.features:
        if isinstance(column, Numeric):
            blocks.append(_scale(table, column, schema.clip))
        else:
            blocks.append(np.eye(len(column.categories), dtype=np.float32)[_codes(table, column)])
    label = next(c for c in schema.columns if isinstance(c, Categorical) and c.name == schema.label)
    inputs, labels = torch.from_numpy(np.concatenate(blocks, axis=1)), torch.from_numpy(_codes(table, label))
    return Split(inputs, labels, _users(table, schema.user) if schema.user else None)


def read_table(path: Path, schema: Schema, suffix: str, open_table: Callable[[Path], Table]) -> Dataset:
    """One file, which becomes split ``train``, or a folder with ``train`` and, where it is there, ``test``."""
    parts: Mapping[str, Path] = {"train": path}
    if path.is_dir():
        parts = {split: path / f"{split}{suffix}" for split in ("train", "test")}
        parts = {split: file for split, file in parts.items() if split == "train" or file.exists()}
    splits = {split: to_split(open_table(file), schema) for split, file in parts.items()}
    return Dataset(path.resolve().name, schema.classes, splits)


def _check_columns(table: Table, schema: Schema) -> None:
    """Everything that is wrong with the columns, in one message."""
    described = [column.name for column in schema.columns]
    names = list(table.names)
    known = {*described, *schema.ignore, *filter(None, [schema.user])}
    if not known & set(names):
        raise InputError(
            f"{table.path}: the first row holds none of the column names of the schema. If the file has no header, say so "
            "(--no-header, or header=False); otherwise write the names of its columns into the schema."
        )
    wrong = []
    if missing := [name for name in described if name not in names]:
        shown = [f"{name!r} (the label)" if name == schema.label else repr(name) for name in missing]
        wrong.append(f"lacks {_columns(shown)} of the schema: add {_them(missing)}, or mend the schema")
    if schema.user and schema.user not in names:
        wrong.append(f"lacks the column of users {schema.user!r} of the schema: add it, or mend user there")
    places = [place for place, name in enumerate(names, 1) if name not in known]
    if places:
        wrong.append(
            f"has {_columns(places)} of {len(names)}, which the schema does not describe: describe {_them(places)} there, or "
            f"add {_them(places)} to ignore"
        )
    if twice := [place for place, name in enumerate(names, 1) if names.count(name) > 1]:
        wrong.append(f"has {_columns(twice)}, of which several have one name: rename or remove some")
    if wrong:
        raise InputError(f"{table.path} {'; it '.join(wrong)}.")


def _columns(items: Sequence[str | int]) -> str:
    *first, last = map(str, items)
    return f"the columns {', '.join(first)} and {last}" if first else f"the column {last}"


def _them(items: Sequence[object]) -> str:
    return "it" if len(items) == 1 else "them"


def _users(table: Table, name: str) -> Tensor:
    """A number for each row's user that depends on the user's name alone."""
    texts = table.texts(name)
    if "" in texts:
        fail(table, list(texts).index(""), name, "the row has no user: fill the cell, or remove the row.")
    known = {text: user_number(text.encode()) for text in set(texts)}
    return torch.tensor([known[text] for text in texts])


def _scale(table: Table, column: Numeric, clip: bool) -> NDArray[np.float32]:
    values = table.numbers(column.name)
    for wrong, problem in (
        (np.isnan(values), "the cell is NaN: fill it, or remove the row."),
        (np.isinf(values), "the cell is infinite: mend it, or remove the row."),
    ):
        if wrong.any():
            fail(table, int(wrong.argmax()), column.name, problem)
    outside = (values < column.low) | (values > column.high)
    if outside.any() and not clip:
        bounds = f"{column.low:g} to {column.high:g}"
        problem = f"the value is outside the bounds {bounds}: mend it, or set clip: true in the schema."
        fail(table, int(outside.argmax()), column.name, problem)
    scaled = (np.clip(values, column.low, column.high) - column.low) / (column.high - column.low)
    return scaled.astype(np.float32).reshape(-1, 1)


def _codes(table: Table, column: Categorical) -> NDArray[np.int64]:
    known = {category: code for code, category in enumerate(column.categories)}
    texts = table.texts(column.name)
    if "" not in known and not any(texts):
        raise InputError(
            f"{table.path}: the column {column.name!r} is empty throughout: take it out, or add it to ignore."
        )
    codes = [known.get(text, -1) for text in texts]
    if -1 in codes:
        record = codes.index(-1)
        fail(table, record, column.name, "the cell has no category of the schema: mend it, or add the category there.")
    return np.array(codes, dtype=np.int64)
