"""Data frames and tables in memory: of pandas, Arrow and libraries with Arrow's interface, and data sets of Hugging Face.

Nothing here imports these libraries: a frame is any object with Arrow's interface (`__arrow_c_stream__`), or with the methods of
a Hugging Face data set. pyarrow converts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from privet.data.dataset import Dataset, Split
from privet.data.schema import Schema, read_schema
from privet.data.sources import Progress
from privet.data.tables import COLUMNAR_ROWS, Block, _ArrowBlock, _CellError, _pyarrow, to_split
from privet.errors import InputError


def is_hugging_face(value: Any) -> bool:
    """Whether a value is a map-style data set of Hugging Face."""
    return hasattr(value, "with_format") and hasattr(value, "column_names") and hasattr(value, "__len__")


def is_frame(value: Any) -> bool:
    """Whether a value is a data frame or a table, whose rows are the records."""
    return hasattr(value, "__arrow_c_stream__") or hasattr(value, "iloc") or is_hugging_face(value)


def from_frame(
    frame: Any, schema: Schema | Path | str, *, test: Any = None, name: str = "frame", user: str = ""
) -> Dataset:
    """A data frame or table as a `Dataset`: inputs scaled and encoded by the schema, as `csv:` and `parquet:` files are.

    Args:
        frame: a frame of pandas, an Arrow table, a frame that speaks Arrow's interface, or a data set of Hugging Face.
        schema: the public bounds and categories, or the file that holds them; nothing is taken from the rows.
        test: the rows to test on, in the same form; without it, the data set has a part ``train`` only.
        name: the name of the data set.
        user: the column with the user of each row; it replaces the schema's.
    """
    from dataclasses import replace

    described = schema if isinstance(schema, Schema) else read_schema(schema)
    if user:
        described = replace(described, user=user, ignore=tuple(one for one in described.ignore if one != user))
    splits = {"train": split_of(frame, described, name)}
    if test is not None:
        splits["test"] = split_of(test, described, f"{name}, test")
    return Dataset(name, described.classes, splits, target=described.target)


def split_of(frame: Any, schema: Schema, name: str = "frame") -> Split:
    """The rows of a frame, encoded by a schema."""
    table = arrow_table(frame)
    if table.num_rows == 0:
        raise InputError(f"{name} has no records: give a frame with rows.")
    return to_split(FrameTable(Path(name), table), schema)


def arrow_table(frame: Any) -> Any:
    """A frame as a table of pyarrow; the index of a pandas frame is left out."""
    pyarrow = _pyarrow("types")
    if pyarrow is None:
        raise InputError(f"A {type(frame).__name__} is read by pyarrow: install it with 'pip install privet[tables]'.")
    if is_hugging_face(frame):
        return frame.with_format("arrow")[:]
    try:
        if hasattr(frame, "iloc"):
            return pyarrow.Table.from_pandas(frame, preserve_index=False)
        return pyarrow.table(frame)
    except Exception:  # pyarrow's errors have no common base, and some quote a value
        raise InputError(
            f"A column of the {type(frame).__name__} holds values of several kinds, which Arrow cannot hold: give each column "
            "one type."
        ) from None


@dataclass(frozen=True)
class FrameTable:
    """A table in memory, as `privet.data.tables.to_split` reads one. The first record is row 1."""

    path: Path
    """The name in messages."""
    table: Any
    first_row: int = 1

    @property
    def names(self) -> Sequence[str]:
        return list(self.table.column_names)

    @property
    def most(self) -> int:
        return int(self.table.num_rows)

    def blocks(self, texts: Sequence[str], numbers: Sequence[str], progress: Progress) -> Iterator[Block]:
        for batch in self.table.select([*texts, *numbers]).to_batches(max_chunksize=COLUMNAR_ROWS):
            yield _ArrowBlock(batch)


class FrameRecords:
    """The rows of a frame as records of tensors, one for each column of numbers: `{"age": ..., "height": ...}`.

    Numbers are not scaled, because their bounds are not known. `from_frame` scales by a schema.

    Args:
        frame: the frame.
        owner: the column with the user of each row, which is no part of the records.
    """

    def __init__(self, frame: Any, owner: str = "") -> None:
        self._table = arrow_table(frame)
        self.columns: tuple[str, ...] = tuple(self._table.column_names)
        if len(set(self.columns)) < len(self.columns):
            raise InputError("The frame has two columns of one name: rename one.")
        self.named: dict[str, Tensor] = {name: self._numbers(name) for name in self.columns if name != owner}
        if not self.named:
            raise InputError("The frame has no column of numbers: give at least one.")

    def _numbers(self, name: str) -> Tensor:
        joined = self._table.select([name]).combine_chunks().to_batches()
        if not joined:
            raise InputError("The frame has no records: give a frame with rows.")
        whole = str(joined[0].schema.field(0).type).startswith(("int", "uint", "bool"))
        try:
            values = torch.from_numpy(_ArrowBlock(joined[0]).numbers(name).copy())
        except _CellError as error:
            raise InputError(
                f"The column {name!r} cannot be used as numbers ({error.problem.partition(':')[0]}): leave it out of the frame, "
                f"or encode the frame by a schema with privet.data.from_frame."
            ) from None
        return values.long() if whole else values.float()

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, place: int | str) -> Any:
        """A record by its place, or a column by its name."""
        if isinstance(place, str):
            return self._table.column(place).to_pylist()
        return {name: values[place] for name, values in self.named.items()}

    def batch(self, indices: Tensor) -> dict[str, Tensor]:
        return {name: values[indices] for name, values in self.named.items()}

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(self.named.values())


class OneByOne(TorchDataset[Any]):
    """A data set whose records are loaded one by one, even if it could load several with one call.

    Third-party code that gets several records at once could mix them.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, place: int) -> Any:
        return self.dataset[place]


class HuggingFaceRecords(OneByOne):
    """The rows of a data set of Hugging Face, as tensors by column.

    Args:
        dataset: the data set. A format of tensors or arrays and a transform are kept; any other gives tensors.
        owner: the column with the user of each row, which is no part of the records.
    """

    def __init__(self, dataset: Any, owner: str = "") -> None:
        kept = dict(dataset.format)
        self.column_names: list[str] = list(dataset.column_names)
        self._whole = dataset.with_format(None)
        if owner in self.column_names:
            dataset = dataset.remove_columns(owner)
            kept["columns"] = [name for name in kept["columns"] if name != owner]
        # What the other formats give, such as frames, is no record of tensors.
        tensors = kept["type"] in ("torch", "numpy", "custom")
        super().__init__(dataset if tensors else dataset.with_format("torch", columns=kept["columns"]))
        self.alone = kept["type"] == "custom"
        """Whether a transform of the user's own is called for each record, so that it cannot mix them."""

    def __getitem__(self, place: int | str) -> Any:
        """A record by its place, or a column by its name."""
        return list(self._whole[place]) if isinstance(place, str) else self.dataset[place]

    def __getitems__(self, places: list[int]) -> list[Any]:
        """Several records, by one call if no code of the user could mix them."""
        if self.alone:
            return [self.dataset[place] for place in places]
        return list(self.dataset.__getitems__(places))


def records_of(given: Any, owner: str = "") -> Any:
    """The given value as a data set with indexed records; None if it has no such records.

    A mapping of several parts is refused: its length is not the number of its records.
    """
    if isinstance(given, Mapping):
        raise InputError(
            f"A {type(given).__name__} holds several data sets or columns: give one of its parts, such as "
            f"data['train']."
        )
    if type(given) is tuple and len(given) > 1 and all(getattr(each, "ndim", 0) for each in given):
        raise InputError(
            f"A tuple of {len(given)} arrays is not a data set: give torch.utils.data.TensorDataset(...) of them as tensors."
        )
    if is_hugging_face(given):
        return HuggingFaceRecords(given, owner)
    if owner and hasattr(given, "without"):  # columns in files, see privet.data.large
        return given.without(owner)
    if is_frame(given):
        return FrameRecords(given, owner)
    return given if hasattr(given, "__len__") and hasattr(given, "__getitem__") else None
