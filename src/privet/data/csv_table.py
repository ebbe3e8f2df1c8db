"""CSV files: UTF-8, comma-separated, the column names in the first row, or none where the user says so."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privet.data.dataset import Dataset
from privet.data.files import read_text
from privet.data.schema import Schema
from privet.data.table import fail, read_table
from privet.errors import InputError


@dataclass(frozen=True)
class CsvTable:
    """The cells of a CSV file, as texts. Rows are counted as a spreadsheet counts them: the names are row 1."""

    path: Path
    names: Sequence[str]
    columns: Sequence[Sequence[str]]
    first_row: int = 2

    def texts(self, name: str) -> Sequence[str]:
        return self.columns[list(self.names).index(name)]

    def numbers(self, name: str) -> NDArray[np.float64]:
        if not any(self.texts(name)):
            raise InputError(f"{self.path}: the column {name!r} is empty throughout: take it out, or add it to ignore.")
        values = np.empty(len(self.columns[0]))
        for record, cell in enumerate(self.texts(name)):
            if not cell:
                fail(self, record, name, "the cell is empty: fill it, or remove the row.")
            if (value := _number(cell)) is None:
                fail(self, record, name, "the cell is not a number: mend it, or give the column categories.")
            values[record] = value
        return values


def _number(cell: str) -> float | None:
    """None where the cell is no number. The caller raises: within this `except` the error would carry the cell's text."""
    try:
        return float(cell) if "_" not in cell else None  # Python alone takes 1_000 for a number
    except ValueError:
        return None


def open_csv(path: Path, names: Sequence[str] | None = None) -> CsvTable:
    """The table in a CSV file. Raises InputError where rows have different lengths or there are none.

    `names` are those of the columns where the file has no header; its first row is then a record.
    """
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    rows: list[list[str]] = []
    try:
        for number, row in enumerate(reader, start=1):
            if not row:
                raise InputError(f"{path}, row {number}: the row is blank: remove it.")
            if rows and len(row) != len(rows[0]):
                raise InputError(
                    f"{path}, row {number}: {len(row)} cells where the first row has {len(rows[0])}: mend the row."
                )
            if names is not None and len(row) != len(names):
                raise InputError(
                    f"{path}, row {number}: {len(row)} cells where the schema describes {len(names)} columns: without a "
                    "header the schema describes all of them, in their order."
                )
            rows.append([cell.strip() for cell in row])
    except csv.Error as error:
        raise InputError(f"{path}, row {len(rows) + 1}: not valid CSV ({error}): mend the row.") from None
    if names is not None:
        if not rows:
            raise InputError(f"{path} has no records: give a file with records.")
        return CsvTable(path, names, list(zip(*rows, strict=True)), first_row=1)
    if len(rows) < 2:
        raise InputError(f"{path} has no records after its first row: give a file with records.")
    return CsvTable(path, rows[0], list(zip(*rows[1:], strict=True)))


def read_csv(path: Path, schema: Schema, *, header: bool = True) -> Dataset:
    """A CSV file, or a folder with ``train.csv`` and perhaps ``test.csv``, encoded as the schema says.

    Without a `header` the columns are those of the schema, in its order.
    """
    if schema.user and not header:
        raise InputError(
            f"{path}: a file without a header has no column of users by name: write its names into its first row."
        )
    names = None if header else [column.name for column in schema.columns]
    return read_table(path, schema, ".csv", lambda file: open_csv(file, names))
