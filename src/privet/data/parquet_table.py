"""Parquet files, through pyarrow (the extra ``tables``)."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.data.dataset import Dataset
from privet.data.files import open_file
from privet.data.schema import Schema
from privet.data.table import fail, read_table
from privet.errors import InputError


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
            if cell != cell:  # NaN is not itself, and as a text it would be one user or one category
                fail(self, record, name, "the cell is NaN: fill it, or remove the row.")
            if isinstance(cell, list | dict | tuple):
                fail(self, record, name, "the cell has several parts: give it one value.")
        return [str(cell).strip() for cell in cells]

    def numbers(self, name: str) -> NDArray[np.float64]:
        cells = self._cells(name)
        for record, cell in enumerate(cells):
            if not isinstance(cell, int | float):
                fail(self, record, name, "the cell is not a number: mend it, or give the column categories.")
        return np.array(cells, dtype=np.float64)


def open_parquet(path: Path) -> ParquetTable:
    """The table in a Parquet file. Raises InputError where it is not one, has no records, or pyarrow is missing."""
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
    """A Parquet file, or a folder with ``train.parquet`` and perhaps ``test.parquet``, encoded as the schema says."""
    return read_table(path, schema, ".parquet", open_parquet)
