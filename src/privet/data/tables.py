"""Tables: CSV and Parquet files, encoded by a schema.

Messages name the file, the row and a column of the schema, but never a value, because records are private and messages end up
in logs. A column that the schema does not describe is named by its place: without a header its "name" would be a value.

A file is read in blocks of rows, and each block is encoded at once, so that a table needs little more memory than its records.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice, repeat
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from privet.data.dataset import Dataset, Split
from privet.data.owners import user_number
from privet.data.schema import Categorical, Numeric, Schema
from privet.data.sources import Progress, silent
from privet.errors import InputError
from privet.io import in_bytes, kind_of, memory_here, open_file
from privet.io.given import not_text

ROWS = 512
"""Rows of text that are read and encoded at once: with more of them Python spends its time on collecting garbage."""

COLUMNAR_ROWS = 1 << 16
"""Rows of a Parquet file that are read and encoded at once."""

LONGEST_LINE = 4 << 20
"""Bytes in a line of a CSV file; a longer one is not a record."""

ARROW_FROM_BYTES = 4 << 20
"""From this size on pyarrow reads CSV files, if it is installed: importing it takes longer than reading a small file."""

_EMPTY = "the cell is empty: fill it, or remove the row."
_NOT_A_NUMBER = "the cell is not a number: fix it, or give the column categories."


class _CellError(Exception):
    """A cell that cannot be used: its place in the block, and what is wrong. It never contains the cell itself."""

    def __init__(self, place: int, problem: str) -> None:
        super().__init__(problem)
        self.place, self.problem = place, problem


class Block(Protocol):
    """Some consecutive rows of a table. Methods raise `_CellError` for the first cell that cannot be used."""

    def __len__(self) -> int: ...

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column of numbers, which may be NaN or infinite."""
        ...

    def codes(self, name: str, known: Mapping[str, int]) -> NDArray[np.int64]:
        """The numbers that `known` has for the texts of a column, without surrounding spaces; -1 for unknown texts."""
        ...

    def texts(self, name: str) -> Sequence[str]:
        """A column of texts, without surrounding spaces."""
        ...

    def is_blank(self, name: str) -> bool:
        """Whether all cells of a column are empty."""
        ...


class Table(Protocol):
    """A file in any format for tables."""

    @property
    def path(self) -> Path: ...

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def first_row(self) -> int:
        """The number of the first record in messages, as the user sees it in the file."""
        ...

    @property
    def most(self) -> int:
        """At least as many rows as there are."""
        ...

    def blocks(self, texts: Sequence[str], numbers: Sequence[str], progress: Progress) -> Iterator[Block]:
        """The rows in their order. Only these columns are read; as numbers only those in `numbers`."""
        ...


def to_split(table: Table, schema: Schema, progress: Progress = silent) -> Split:
    """Encode the records by the schema: float32 inputs in [0, 1], and labels or targets in [0, 1]."""
    _check_columns(table, schema)
    width = len(schema.inputs)
    _check_memory(table, width)
    label = next(column for column in schema.columns if column.name == schema.label)
    inputs = np.empty((table.most, width), dtype=np.float32)
    labels: NDArray[Any] = np.empty(table.most, dtype=np.float32 if isinstance(label, Numeric) else np.int64)
    users = np.empty(table.most, dtype=np.int64) if schema.user else None
    count = 0
    texts = [c.name for c in schema.columns if isinstance(c, Categorical)] + ([schema.user] if schema.user else [])
    blocks = table.blocks(texts, [c.name for c in schema.columns if isinstance(c, Numeric)], progress)
    for block in blocks:
        end = count + len(block)
        if end > table.most:
            raise InputError(f"{table.path} changed while it was read: try again when nobody writes it.")
        name = ""
        try:
            place = 0
            for column in schema.features:
                name, size = column.name, len(column.inputs)
                _encode(block, column, schema.clip, inputs[count:end, place : place + size])
                place += size
            name = label.name
            if isinstance(label, Numeric):
                _encode(block, label, schema.clip, labels[count:end, None])
            else:
                labels[count:end] = _codes(block, label)
            if users is not None:
                name = schema.user
                users[count:end] = _users(block, name)
        except _CellError as error:
            problem, row = error.problem, count + error.place
        else:
            count = end
            continue
        if row == 0 and name != schema.user and block.is_blank(name) and all(other.is_blank(name) for other in blocks):
            raise InputError(f"{table.path}: the column {name!r} is empty throughout: remove it, or add it to ignore.")
        fail(table, row, name, problem)
    if count == 0:
        where = "" if table.first_row == 1 else " after its first row"
        raise InputError(f"{table.path} has no records{where}: give a file with records.")
    return Split(_first(inputs, count), _first(labels, count), None if users is None else _first(users, count))


def fail(table: Table, record: int, column: str, problem: str) -> NoReturn:
    """Raise InputError for one cell."""
    raise InputError(f"{table.path}, row {table.first_row + record}, column {column!r}: {problem}")


def _first(values: NDArray[Any], count: int) -> torch.Tensor:
    """The first rows as a tensor; the memory of the others is given back, and nothing is copied."""
    values.resize((count, *values.shape[1:]), refcheck=False)
    return torch.from_numpy(values)


def _check_memory(table: Table, width: int) -> None:
    """Refuse a table whose encoded records do not fit into the machine's memory."""
    there = memory_here()
    if table.most * (4 * width + 8) > there:
        # How much is needed would tell the number of records.
        raise InputError(
            f"{table.path} may need more than the {in_bytes(there)} of memory of this machine when its columns are encoded: "
            "describe fewer categories, or give a part of the records."
        )


def _encode(block: Block, column: Numeric | Categorical, clip: bool, to: NDArray[np.float32]) -> None:
    """Write a column's inputs to their place."""
    if isinstance(column, Categorical):
        to[:] = 0
        to[np.arange(len(block)), _codes(block, column)] = 1
        return
    values = block.numbers(column.name)
    for wrong, problem in (
        (np.isnan(values), "the cell is NaN: fill it, or remove the row."),
        (np.isinf(values), "the cell is infinite: fix it, or remove the row."),
    ):
        if wrong.any():
            raise _CellError(int(wrong.argmax()), problem)
    outside = (values < column.low) | (values > column.high)
    if outside.any() and not clip:
        bounds = f"{column.low:g} to {column.high:g}"
        problem = f"the value is outside the bounds {bounds}: fix it, or set clip: true in the schema."
        raise _CellError(int(outside.argmax()), problem)
    scaled = (np.clip(values, column.low, column.high) - column.low) / (column.high - column.low)
    to[:, 0] = scaled.astype(np.float32)


def _codes(block: Block, column: Categorical) -> NDArray[np.int64]:
    codes = block.codes(column.name, {category: code for code, category in enumerate(column.categories)})
    if (codes < 0).any():
        problem = "the cell has no category of the schema: fix it, or add the category there."
        raise _CellError(int((codes < 0).argmax()), problem)
    return codes


def _users(block: Block, name: str) -> list[int]:
    """A number for each row's user that depends only on the user's name."""
    texts = block.texts(name)
    if "" in texts:
        raise _CellError(list(texts).index(""), "the row has no user: fill the cell, or remove the row.")
    known = {text: user_number(text.encode()) for text in set(texts)}
    return [known[text] for text in texts]


def read_table(
    path: Path, schema: Schema, suffix: str, open_table: Callable[[Path], Table], progress: Progress | None = None
) -> Dataset:
    """One file, which becomes the split ``train``, or a folder with ``train`` and optionally ``test``."""
    parts: Mapping[str, Path] = {"train": path}
    if kind_of(path) == "folder":
        parts = {split: path / f"{split}{suffix}" for split in ("train", "test")}
        parts = {split: file for split, file in parts.items() if split == "train" or file.exists()}
    splits = {split: to_split(open_table(file), schema, progress or silent) for split, file in parts.items()}
    return Dataset(path.resolve().name, schema.classes, splits, target=schema.target)


def _check_columns(table: Table, schema: Schema) -> None:
    """Report everything that is wrong with the columns in one message."""
    described = [column.name for column in schema.columns]
    names = list(table.names)
    known = {*described, *schema.ignore, *filter(None, [schema.user])}
    if not known & set(names):
        if any("\0" in name for name in names):
            raise InputError(f"{table.path} has NUL bytes, as UTF-16 and binary files do: save the file as UTF-8 text.")
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


@dataclass(frozen=True)
class _TextBlock:
    """Rows of a CSV file as Python reads them."""

    columns: Mapping[str, Sequence[str]]
    count: int

    def __len__(self) -> int:
        return self.count

    def texts(self, name: str) -> Sequence[str]:
        return [cell.strip() for cell in self.columns[name]]

    def is_blank(self, name: str) -> bool:
        return not any(self.texts(name))

    def codes(self, name: str, known: Mapping[str, int]) -> NDArray[np.int64]:
        cells = map(str.strip, self.columns[name])
        return np.fromiter(map(known.get, cells, repeat(-1)), dtype=np.int64, count=self.count)

    def numbers(self, name: str) -> NDArray[np.float64]:
        cells = self.columns[name]
        if "_" not in "".join(cells):  # only Python accepts 1_000 as a number
            try:
                return np.fromiter(map(float, cells), dtype=np.float64, count=self.count)
            except ValueError:
                pass  # raising here would put the cell's text into the chain of errors
        place = next(place for place, cell in enumerate(cells) if not _is_number(cell))
        raise _CellError(place, _NOT_A_NUMBER if cells[place].strip() else _EMPTY)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


@dataclass(frozen=True)
class CsvTable:
    """A UTF-8 CSV file. Rows are counted as in a spreadsheet: the names are row 1.

    Attributes:
        path, names, first_row, most: as `Table` has them.
        plain: whether the file has no quotes, no blank lines and one kind of line ends, so that all readers agree on its rows.
        size: the number of bytes.
    """

    path: Path
    names: Sequence[str]
    first_row: int
    most: int
    plain: bool
    size: int

    def blocks(self, texts: Sequence[str], numbers: Sequence[str], progress: Progress) -> Iterator[Block]:
        """The rows in their order, read by pyarrow if the file is large and plain, and by Python otherwise.

        Guaranteed: both give the same rows. From the first block on that pyarrow does not accept, Python reads and decides.
        """
        done, is_whole = 0, False
        if self.plain and self.size >= ARROW_FROM_BYTES and (pyarrow := _pyarrow("csv")) is not None:
            done, is_whole = yield from self._arrow_blocks(pyarrow, texts, numbers, progress)
        if not is_whole:
            yield from self._text_blocks((*texts, *numbers), progress, done)

    def _arrow_blocks(
        self, pyarrow: Any, texts: Sequence[str], numbers: Sequence[str], progress: Progress
    ) -> Generator[Block, None, tuple[int, bool]]:
        """The rows as pyarrow reads them; returns their number, and whether they are all."""
        text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
        # A row reaches into two blocks at most, so it is shorter than the longest cell that Python's reader accepts.
        reading = pyarrow.csv.ReadOptions(
            use_threads=False, block_size=1 << 16, skip_rows=self.first_row - 1, column_names=list(self.names)
        )
        parsing = pyarrow.csv.ParseOptions(quote_char=False, double_quote=False, ignore_empty_lines=False)
        converting = pyarrow.csv.ConvertOptions(
            include_columns=[*texts, *numbers],
            column_types=dict.fromkeys(texts, text) | dict.fromkeys(numbers, pyarrow.float64()),
            null_values=[],
            strings_can_be_null=False,
        )
        done = 0
        with open_file(self.path) as file:
            try:
                with pyarrow.csv.open_csv(file, reading, parsing, converting) as batches:
                    for batch in batches:
                        yield _ArrowBlock(batch)
                        done += batch.num_rows
                        _tell(progress, self.path, file.tell() / self.size)
            except Exception:  # its errors quote cells, and Python's reader decides what is wrong
                return done, False
        return done, True

    def _text_blocks(self, names: Sequence[str], progress: Progress, done: int) -> Iterator[Block]:
        """The rows after the first `done` as Python's `csv` reads them."""
        places = {name: self.names.index(name) for name in names}
        with open_file(self.path) as file, _text(file) as text:
            reader = csv.reader(text, strict=True)
            number = sum(1 for _ in islice(reader, done + self.first_row - 1))
            blocks = 0
            while rows := self._rows(reader, number):
                columns = list(zip(*rows, strict=True))
                yield _TextBlock({name: columns[place] for name, place in places.items()}, len(rows))
                number += len(rows)
                blocks += 1
                if blocks % 16 == 0:
                    _tell(progress, self.path, file.tell() / self.size)

    def _rows(self, reader: Iterator[list[str]], number: int) -> list[list[str]]:
        """The next rows, after the first `number`. Raises InputError if one of them has another length."""
        rows: list[list[str]] = []
        trouble = ""
        try:
            rows.extend(islice(reader, ROWS))  # keeps the rows before an error
        except csv.Error as error:
            trouble = f"not valid CSV ({error}): fix the row."
        if set(map(len, rows)) - {len(self.names)}:
            place, row = next((n, row) for n, row in enumerate(rows, number + 1) if len(row) != len(self.names))
            raise InputError(f"{self.path}, row {place}: {self._misfit(row)}")
        if trouble:
            raise InputError(f"{self.path}, row {number + len(rows) + 1}: {trouble}")
        return rows

    def _misfit(self, row: Sequence[str]) -> str:
        if not row:
            return "the row is blank: remove it."
        if self.first_row == 2:
            return f"{len(row)} cells, but the first row has {len(self.names)}: fix the row."
        return (
            f"{len(row)} cells, but the schema describes {len(self.names)} columns: without a header the schema must describe "
            "all columns, in their order."
        )


def _text(file: BinaryIO) -> io.TextIOWrapper:
    return io.TextIOWrapper(file, encoding="utf-8-sig", newline="")


def open_csv(path: Path, names: Sequence[str] | None = None) -> CsvTable:
    """The table in a UTF-8 CSV file. Raises InputError if it is not UTF-8 or has no rows.

    `names` are the names of the columns of a file without a header, whose first row is a record.
    """
    most, plain, size = _scan(path)
    if names is not None:
        return CsvTable(path, names, 1, most, plain, size)
    with open_file(path) as file, _text(file) as text:
        try:
            first = next(csv.reader(text, strict=True), None)
        except csv.Error as error:
            raise InputError(f"{path}, row 1: not valid CSV ({error}): fix the row.") from None
    if not first:
        raise InputError(f"{path}, row 1: the row is blank: remove it.")
    return CsvTable(path, [cell.strip() for cell in first], 2, most, plain, size)


def _scan(path: Path) -> tuple[int, bool, int]:
    """Check that a file is UTF-8; an upper bound of its rows, whether it is plain (see `CsvTable`), and its size."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    feeds = returns = pairs = size = begin = 0
    is_plain, last = True, b"\n"
    with open_file(path) as file:
        while True:
            piece = file.read(1 << 18)
            try:
                decoder.decode(piece, final=not piece)
            except UnicodeDecodeError as error:
                raise not_text(path, feeds + error.object.count(b"\n", 0, error.start) + 1) from None
            if not piece:
                break
            size += len(piece)
            feeds += piece.count(b"\n")
            returns += piece.count(b"\r")
            pairs += piece.count(b"\r\n") + (last.endswith(b"\r") and piece.startswith(b"\n"))
            if (end := max(piece.rfind(b"\n"), piece.rfind(b"\r"))) >= 0:
                begin = size - len(piece) + end
            elif size - begin > LONGEST_LINE:
                raise InputError(
                    f"{path}, line {feeds + 1}: longer than {in_bytes(LONGEST_LINE)}, the limit for a row: check the file."
                )
            joined = last + piece.removeprefix(codecs.BOM_UTF8)
            is_plain = is_plain and not any(mark in joined for mark in (b'"', b"\n\n", b"\n\r"))
            last = joined[-2:]
    return feeds + returns - pairs + 1, is_plain and (returns == 0 or returns == pairs == feeds), size


def _tell(progress: Progress, path: Path, share: float) -> None:
    # In hundredths: the number of records may be private, and progress bars end up in logs.
    progress(f"Reading {path.name}", min(int(100 * share), 100), 100)


def read_csv(path: Path, schema: Schema, *, header: bool = True, progress: Progress | None = None) -> Dataset:
    """A CSV file, or a folder with ``train.csv`` and optionally ``test.csv``, encoded by the schema.

    Without a `header` the columns are those of the schema, in its order.
    """
    if schema.user and not header:
        raise InputError(
            f"{path}: a file without a header has no name for the column of users: write the names into its first row."
        )
    names = None if header else [column.name for column in schema.columns]
    return read_table(path, schema, ".csv", lambda file: open_csv(file, names), progress)


def _pyarrow(part: str) -> Any:
    """pyarrow with one of its modules; None if it is not installed."""
    try:
        import_module(f"pyarrow.{part}")
        return import_module("pyarrow")
    except ImportError:
        return None


_Number = TypeVar("_Number", np.int64, np.float64)


@dataclass(frozen=True)
class _ArrowBlock:
    """Rows as pyarrow read them, from Parquet with any types."""

    batch: Any

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def _distinct(self, name: str) -> tuple[list[str], NDArray[np.int64]]:
        """The distinct texts of a column, and the place of each row's text among them."""
        column = self.batch.column(name)
        try:
            coded = column if hasattr(column, "dictionary") else column.dictionary_encode()
            values = coded.dictionary.to_pylist()
        except Exception:  # pyarrow has many errors for types that it cannot encode, and some quote a value
            raise _CellError(0, "the cell has several parts, or is no text: give it one value.") from None
        indices = coded.indices.cast("int64")
        if indices.null_count:  # only then: `fill_null` imports pandas, too
            indices = indices.fill_null(len(values))
        places = _numbers_of(indices, np.int64)
        for place, value in enumerate([*values, None]):
            problem = ""
            if value is None:
                problem = _EMPTY
            elif isinstance(value, list | dict | tuple):
                problem = "the cell has several parts: give it one value."
            elif value != value:  # NaN does not equal itself; as a text it would be one user or one category
                problem = "the cell is NaN: fill it, or remove the row."
            if problem and (places == place).any():
                raise _CellError(int((places == place).argmax()), problem)
        return [str(value).strip() for value in values], places

    def texts(self, name: str) -> Sequence[str]:
        texts, places = self._distinct(name)
        return [texts[place] for place in places]

    def is_blank(self, name: str) -> bool:
        column = self.batch.column(name)
        if column.null_count == len(column):
            return True
        try:
            return not any(self.texts(name))
        except _CellError:
            return False

    def codes(self, name: str, known: Mapping[str, int]) -> NDArray[np.int64]:
        texts, places = self._distinct(name)
        return np.array([known.get(text, -1) for text in texts], dtype=np.int64)[places]

    def numbers(self, name: str) -> NDArray[np.float64]:
        column = self.batch.column(name)
        if hasattr(column, "dictionary"):
            column = column.dictionary_decode()
        if column.null_count:
            raise _CellError(column.is_null().index(True).as_py(), _EMPTY)
        kinds = import_module("pyarrow.types")
        if not any(is_kind(column.type) for is_kind in (kinds.is_integer, kinds.is_floating, kinds.is_decimal)):
            if not kinds.is_boolean(column.type):
                raise _CellError(0, _NOT_A_NUMBER)
            column = column.cast("int8")
        return _numbers_of(column.cast("float64", safe=False), np.float64)


def _numbers_of(column: Any, kind: type[_Number]) -> NDArray[_Number]:
    """A column of this type without empty cells. Not by its `to_numpy`, which imports pandas where that is installed."""
    if not len(column):
        return np.empty(0, dtype=kind)
    return np.frombuffer(column.buffers()[1], dtype=kind)[column.offset : column.offset + len(column)]


@dataclass(frozen=True)
class ParquetTable:
    """A Parquet file. The first record is row 1."""

    path: Path
    names: Sequence[str]
    most: int
    first_row: int = 1

    def blocks(self, texts: Sequence[str], numbers: Sequence[str], progress: Progress) -> Iterator[Block]:
        needed = [*texts, *numbers]
        # pyarrow takes a dot in a name for a part of a column.
        chosen = None if any("." in name for name in needed) else needed
        done = 0
        with open_file(self.path) as file, _parquet(self.path, file) as found:
            batches = found.iter_batches(batch_size=COLUMNAR_ROWS, columns=chosen)
            while (batch := self._next(batches)) is not None:
                yield _ArrowBlock(batch)
                done += batch.num_rows
                _tell(progress, self.path, done / self.most)

    def _next(self, batches: Iterator[Any]) -> Any:
        try:
            return next(batches, None)
        except Exception:  # pyarrow's errors for a damaged file have no common base
            raise _not_parquet(self.path) from None


def _not_parquet(path: Path) -> InputError:
    return InputError(f"{path} is not a Parquet file, or it is truncated: copy or download it again.")


def _parquet(path: Path, file: BinaryIO) -> Any:
    pyarrow = _pyarrow("parquet")
    if pyarrow is None:
        raise InputError(f"{path} needs pyarrow: install it with 'pip install privet[tables]'.")
    try:
        return pyarrow.parquet.ParquetFile(file)
    except Exception:
        raise _not_parquet(path) from None


def open_parquet(path: Path) -> ParquetTable:
    """The table in a Parquet file. Raises InputError if it is damaged or has no records, or if pyarrow is missing."""
    with open_file(path) as file, _parquet(path, file) as found:
        try:
            count, names = found.metadata.num_rows, found.schema_arrow.names
        except Exception:
            raise _not_parquet(path) from None
    if count == 0:
        raise InputError(f"{path} has no records: give a file with records.")
    return ParquetTable(path, names, count)


def read_parquet(path: Path, schema: Schema, *, progress: Progress | None = None) -> Dataset:
    """A Parquet file, or a folder with ``train.parquet`` and optionally ``test.parquet``, encoded by the schema."""
    return read_table(path, schema, ".parquet", open_parquet, progress)
