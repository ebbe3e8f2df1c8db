"""Tables: CSV and Parquet files, encoded by a schema.

Messages name the file, the row and a column of the schema, but never a value, because records are private and messages end up
in logs. A column that the schema does not describe is named by its place: without a header its "name" would be a value.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet.data.dataset import Dataset, Split
from privet.data.files import open_file, read_text
from privet.data.owners import user_number
from privet.data.schema import Categorical, Numeric, Schema
from privet.errors import InputError


class Table(Protocol):
    """The content of a file in any format for tables."""

    @property
    def path(self) -> Path: ...

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def first_row(self) -> int:
        """The number of the first record in messages, as the user sees it in the file."""
        ...

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column of numbers. Calls ``fail`` if a cell is empty or not a number."""
        ...

    def texts(self, name: str) -> Sequence[str]:
        """A column of texts, without surrounding spaces."""
        ...


def fail(table: Table, record: int, column: str, problem: str) -> NoReturn:
    """Raise InputError for one cell."""
    raise InputError(f"{table.path}, row {table.first_row + record}, column {column!r}: {problem}")


def to_split(table: Table, schema: Schema) -> Split:
    """Encode the records by the schema: float32 inputs in [0, 1], and labels."""
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
    """One file, which becomes the split ``train``, or a folder with ``train`` and optionally ``test``."""
    parts: Mapping[str, Path] = {"train": path}
    if path.is_dir():
        parts = {split: path / f"{split}{suffix}" for split in ("train", "test")}
        parts = {split: file for split, file in parts.items() if split == "train" or file.exists()}
    splits = {split: to_split(open_table(file), schema) for split, file in parts.items()}
    return Dataset(path.resolve().name, schema.classes, splits)


def _check_columns(table: Table, schema: Schema) -> None:
    """Report everything that is wrong with the columns in one message."""
    described = [column.name for column in schema.columns]
    names = list(table.names)
    known = {*described, *schema.ignore, *filter(None, [schema.user])}
    if not known & set(names):
        raise InputError(
            f"{table.path}: the first row has none of the column names of the schema. If the file has no header, say so "
            "(--no-header, or header=False); otherwise write the names of its columns into the schema."
        )
    wrong = []
    if missing := [name for name in described if name not in names]:
        shown = [f"{name!r} (the label)" if name == schema.label else repr(name) for name in missing]
        wrong.append(f"lacks {_columns(shown)} of the schema: add {_them(missing)}, or fix the schema")
    if schema.user and schema.user not in names:
        wrong.append(f"lacks the column of users {schema.user!r} of the schema: add it, or correct user there")
    places = [place for place, name in enumerate(names, 1) if name not in known]
    if places:
        wrong.append(
            f"has {_columns(places)} of {len(names)}, which the schema does not describe: describe {_them(places)} there, or "
            f"add {_them(places)} to ignore"
        )
    if twice := [place for place, name in enumerate(names, 1) if names.count(name) > 1]:
        wrong.append(f"has {_columns(twice)}, of which several have the same name: rename or remove some")
    if wrong:
        raise InputError(f"{table.path} {'; it '.join(wrong)}.")


def _columns(items: Sequence[str | int]) -> str:
    *first, last = map(str, items)
    return f"the columns {', '.join(first)} and {last}" if first else f"the column {last}"


def _them(items: Sequence[object]) -> str:
    return "it" if len(items) == 1 else "them"


def _users(table: Table, name: str) -> Tensor:
    """A number for each row's user that depends only on the user's name."""
    texts = table.texts(name)
    if "" in texts:
        fail(table, list(texts).index(""), name, "the row has no user: fill the cell, or remove the row.")
    known = {text: user_number(text.encode()) for text in set(texts)}
    return torch.tensor([known[text] for text in texts])


def _scale(table: Table, column: Numeric, clip: bool) -> NDArray[np.float32]:
    values = table.numbers(column.name)
    for wrong, problem in (
        (np.isnan(values), "the cell is NaN: fill it, or remove the row."),
        (np.isinf(values), "the cell is infinite: fix it, or remove the row."),
    ):
        if wrong.any():
            fail(table, int(wrong.argmax()), column.name, problem)
    outside = (values < column.low) | (values > column.high)
    if outside.any() and not clip:
        bounds = f"{column.low:g} to {column.high:g}"
        problem = f"the value is outside the bounds {bounds}: fix it, or set clip: true in the schema."
        fail(table, int(outside.argmax()), column.name, problem)
    scaled = (np.clip(values, column.low, column.high) - column.low) / (column.high - column.low)
    return scaled.astype(np.float32).reshape(-1, 1)


def _codes(table: Table, column: Categorical) -> NDArray[np.int64]:
    known = {category: code for code, category in enumerate(column.categories)}
    texts = table.texts(column.name)
    if "" not in known and not any(texts):
        raise InputError(
            f"{table.path}: the column {column.name!r} is empty throughout: remove it, or add it to ignore."
        )
    codes = [known.get(text, -1) for text in texts]
    if -1 in codes:
        record = codes.index(-1)
        fail(table, record, column.name, "the cell is not a category of the schema: fix it, or add the category there.")
    return np.array(codes, dtype=np.int64)


@dataclass(frozen=True)
class CsvTable:
    """The cells of a CSV file as texts. Rows are counted as in a spreadsheet: the names are row 1."""

    path: Path
    names: Sequence[str]
    columns: Sequence[Sequence[str]]
    first_row: int = 2

    def texts(self, name: str) -> Sequence[str]:
        return self.columns[list(self.names).index(name)]

    def numbers(self, name: str) -> NDArray[np.float64]:
        if not any(self.texts(name)):
            raise InputError(f"{self.path}: the column {name!r} is empty throughout: remove it, or add it to ignore.")
        values = np.empty(len(self.columns[0]))
        for record, cell in enumerate(self.texts(name)):
            if not cell:
                fail(self, record, name, "the cell is empty: fill it, or remove the row.")
            if (value := _number(cell)) is None:
                fail(self, record, name, "the cell is not a number: fix it, or give the column categories.")
            values[record] = value
        return values


def _number(cell: str) -> float | None:
    """The number in a cell, or None. The caller raises, because an error raised here would contain the cell's text."""
    try:
        return float(cell) if "_" not in cell else None  # only Python accepts 1_000 as a number
    except ValueError:
        return None


def open_csv(path: Path, names: Sequence[str] | None = None) -> CsvTable:
    """The table in a UTF-8 CSV file. Raises InputError if rows have different lengths or there are none.

    `names` are the names of the columns of a file without a header, whose first row is a record.
    """
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    rows: list[list[str]] = []
    try:
        for number, row in enumerate(reader, start=1):
            if not row:
                raise InputError(f"{path}, row {number}: the row is blank: remove it.")
            if rows and len(row) != len(rows[0]):
                raise InputError(
                    f"{path}, row {number}: {len(row)} cells, but the first row has {len(rows[0])}: fix the row."
                )
            if names is not None and len(row) != len(names):
                raise InputError(
                    f"{path}, row {number}: {len(row)} cells, but the schema describes {len(names)} columns: without a header "
                    "the schema must describe all columns, in their order."
                )
            rows.append([cell.strip() for cell in row])
    except csv.Error as error:
        raise InputError(f"{path}, row {len(rows) + 1}: not valid CSV ({error}): fix the row.") from None
    if names is not None:
        if not rows:
            raise InputError(f"{path} has no records: give a file with records.")
        return CsvTable(path, names, list(zip(*rows, strict=True)), first_row=1)
    if len(rows) < 2:
        raise InputError(f"{path} has no records after its first row: give a file with records.")
    return CsvTable(path, rows[0], list(zip(*rows[1:], strict=True)))


def read_csv(path: Path, schema: Schema, *, header: bool = True) -> Dataset:
    """A CSV file, or a folder with ``train.csv`` and optionally ``test.csv``, encoded by the schema.

    Without a `header` the columns are those of the schema, in its order.
    """
    if schema.user and not header:
        raise InputError(
            f"{path}: a file without a header has no name for the column of users: write the names into its first row."
        )
    names = None if header else [column.name for column in schema.columns]
    return read_table(path, schema, ".csv", lambda file: open_csv(file, names))


@dataclass(frozen=True)
class ParquetTable:
    """The columns of a Parquet file, as pyarrow read them. The first record is row 1."""

    path: Path
    names: Sequence[str]
    columns: Sequence[Sequence[Any]]
    first_row: int = 1

    def _cells(self, name: str) -> Sequence[Any]:
        cells = self.columns[list(self.names).index(name)]
        for record, cell in enumerate(cells):
            if cell is None:
                fail(self, record, name, "the cell is empty: fill it, or remove the row.")
        return cells

    def texts(self, name: str) -> Sequence[str]:
        cells = self._cells(name)
        for record, cell in enumerate(cells):
            if cell != cell:  # NaN does not equal itself; as a text it would be one user or one category
                fail(self, record, name, "the cell is NaN: fill it, or remove the row.")
            if isinstance(cell, list | dict | tuple):
                fail(self, record, name, "the cell has several parts: give it one value.")
        return [str(cell).strip() for cell in cells]

    def numbers(self, name: str) -> NDArray[np.float64]:
        cells = self._cells(name)
        for record, cell in enumerate(cells):
            if not isinstance(cell, int | float):
                fail(self, record, name, "the cell is not a number: fix it, or give the column categories.")
        return np.array(cells, dtype=np.float64)


def open_parquet(path: Path) -> ParquetTable:
    """The table in a Parquet file. Raises InputError if it is damaged or has no records, or if pyarrow is missing."""
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise InputError(f"{path} needs pyarrow: install it with 'pip install privet[tables]'.") from None
    with open_file(path) as file:
        try:
            table = parquet.read_table(file)
        except Exception:  # pyarrow's errors for a damaged file have no common base
            raise InputError(f"{path} is not a Parquet file, or it is truncated: copy or download it again.") from None
    if table.num_rows == 0:
        raise InputError(f"{path} has no records: give a file with records.")
    return ParquetTable(path, table.column_names, [column.to_pylist() for column in table.columns])


def read_parquet(path: Path, schema: Schema) -> Dataset:
    """A Parquet file, or a folder with ``train.parquet`` and optionally ``test.parquet``, encoded by the schema."""
    return read_table(path, schema, ".parquet", open_parquet)
