"""Records in files that are larger than memory: memory-mapped tensors, Arrow files, Parquet files, and shards of WebDataset.

Memory-mapped tensors, Arrow files and indexed shards are read where a record is drawn. A Parquet file can only be read from one
end to the other: the draws of several steps are made first, and their records are gathered in one pass.
"""

from __future__ import annotations

import json
import tarfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from io import BytesIO
from math import fsum, isclose
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import default_collate

from privet.data.splits import keyed_parts
from privet.data.tables import _ArrowBlock, _CellError, _not_parquet, _pyarrow
from privet.errors import InputError
from privet.io import open_file, unreadable, write_whole

Rows = NDArray[np.int64]
Paths = str | Path | Sequence[str | Path]

WINDOW = 256 << 20
"""Bytes of the records that are gathered in one pass over Parquet files."""
_CHUNK = 8192
_LOOKED_AT, _BLOCK = 64, 4096


class LargeRecords:
    """Records in files, found by their place. Nothing is kept in memory but an index.

    `make_private` takes them as its data set. A view on some of the records (`select`) holds their places only.
    """

    def __init__(self, files: Sequence[Path], count: int) -> None:
        if count == 0:
            raise InputError(f"{files[0]} has no records: give a file with records.")
        self._files, self._count = tuple(files), count
        self._view: Rows | None = None

    def __len__(self) -> int:
        return self._count if self._view is None else len(self._view)

    def __getitem__(self, place: int) -> Any:
        if not -len(self) <= place < len(self):
            raise IndexError(f"there is no record {place}")
        return _first(self.batch(torch.tensor([place % len(self)])))

    def batch(self, indices: Tensor | Sequence[int]) -> Any:
        """The records at these places as one batch; only these are kept in memory."""
        rows = self._places(indices)
        # An empty batch has the shapes of a batch of one record, cut to length zero. Shapes are public.
        return self._gather(rows) if len(rows) else _cut(self._gather(np.zeros(1, dtype=np.int64)))

    def select(self, indices: Tensor | Sequence[int]) -> Self:
        """A view on the records at these places, in that order."""
        made = object.__new__(type(self))
        made.__dict__ |= {name: value for name, value in self.__dict__.items() if name != "fingerprint"}
        made._view = self._places(indices)
        return made

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the size of each file and 64 blocks of it, evenly spread: it recognizes files, and proves nothing."""
        summed = sha256()
        for path in self._files:
            size = path.stat().st_size
            summed.update(str(size).encode())
            with open_file(path) as file:
                for start in np.linspace(0, max(0, size - _BLOCK), _LOOKED_AT, dtype=np.int64).tolist():
                    file.seek(start)
                    summed.update(file.read(_BLOCK))
        if self._view is not None:
            summed.update(self._view.tobytes())
        return summed.hexdigest()

    def chunks(self) -> Iterator[Any]:
        """All records in their order, as batches of a few thousand."""
        return (self.batch(part) for part in torch.arange(len(self)).split(_CHUNK))

    def _places(self, indices: Tensor | Sequence[int]) -> Rows:
        rows: Rows = torch.as_tensor(indices, dtype=torch.int64).numpy()
        return rows if self._view is None else self._view[rows]

    def _gather(self, rows: Rows) -> Any:
        raise NotImplementedError


def divide_records(records: LargeRecords, parts: Mapping[str, float], seed: int = 0) -> dict[str, LargeRecords]:
    """Divide records by a keyed hash of their content, reading a few thousand at a time.

    Formal guarantees: those of `privet.data.divide`. The part of a record depends on its own values alone, so that adding,
    removing or replacing one moves no other from one part to another.

    Args:
        records: the records; a column of users is not part of their content.
        parts: the name of each part and the probability that a record goes there.
        seed: of the hash's key.
    """
    if any(not share > 0 for share in parts.values()) or not isclose(fsum(parts.values()), 1, abs_tol=1e-9):
        raise InputError(f"The parts {dict(parts)} do not sum to 1: give fractions above 0 that do.")
    ends = [fsum(list(parts.values())[: n + 1]) for n in range(len(parts) - 1)]
    contents = (content for chunk in records.chunks() for content in _contents(chunk))
    where = torch.from_numpy(keyed_parts(contents, seed, np.array(ends)))
    made = {name: (where == number).nonzero().flatten() for number, name in enumerate(parts)}
    for name, chosen in made.items():
        if not len(chosen):
            raise InputError(f"The part {name!r} would be empty: give it a larger fraction, or more records.")
    return {name: records.select(chosen) for name, chosen in made.items()}


def _contents(batch: Any) -> Iterator[bytes]:
    """The bytes of each record of a batch."""
    columns = list(batch.values()) if isinstance(batch, Mapping) else list(batch)
    rows = [each.contiguous().view(len(each), -1).view(torch.uint8).numpy() for each in columns]
    return (joined.tobytes() for joined in np.concatenate(rows, axis=1))


def _cut(batch: Any) -> Any:
    """A batch without its records."""
    if isinstance(batch, Mapping):
        return {name: value[:0] for name, value in batch.items()}
    return tuple(value[:0] for value in batch)


def _first(batch: Any) -> Any:
    """The only record of a batch."""
    if isinstance(batch, Mapping):
        return {name: value[0] for name, value in batch.items()}
    return tuple(value[0] for value in batch)


# --- memory-mapped tensors ------------------------------------------------------------------------------------------------


class MappedTensors(LargeRecords):
    """Tensors in files, memory-mapped: records are tuples, ``(x, y)`` for two of them.

        MappedTensors("x.npy", "y.npy")
        MappedTensors(("data.safetensors", "x"), ("data.safetensors", "y"))

    Args:
        sources: for each tensor, a .npy file, or a .safetensors file with the tensor's name in it.
    """

    def __init__(self, *sources: str | Path | tuple[str | Path, str]) -> None:
        if not sources:
            raise InputError("Give at least one file with a tensor.")
        self._arrays = [_mapped(*each) if isinstance(each, tuple) else _mapped(each) for each in sources]
        if len({len(array) for array in self._arrays}) > 1:
            raise InputError("The tensors have different lengths: give files with a row for each record.")
        files = [Path(each[0] if isinstance(each, tuple) else each) for each in sources]
        super().__init__(list(dict.fromkeys(files)), len(self._arrays[0]))

    def _gather(self, rows: Rows) -> tuple[Tensor, ...]:
        return tuple(torch.from_numpy(np.ascontiguousarray(array[rows])) for array in self._arrays)


_KINDS = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}


def _mapped(path: str | Path, name: str = "") -> NDArray[Any]:
    """A tensor of a file, memory-mapped."""
    file = Path(path)
    try:
        if file.suffix == ".safetensors":
            kind, shape, start = _described(file, name)
            found: NDArray[Any] = np.memmap(file, dtype=kind, mode="r", offset=start, shape=shape)
        else:
            found = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, KeyError, TypeError, EOFError) as error:
        raise InputError(f"{file} cannot be mapped as a tensor ({error}): give a .npy or .safetensors file.") from None
    except OSError as error:
        raise unreadable(file, error) from None
    if found.ndim == 0:
        raise InputError(f"{file} holds one number: give a tensor with a row for each record.")
    return found


def _described(file: Path, name: str) -> tuple[str, tuple[int, ...], int]:
    """Type, shape and first byte of a tensor in a safetensors file."""
    with open_file(file) as opened:
        length = int.from_bytes(opened.read(8), "little")
        if length > 100_000_000:
            raise ValueError("its header is too long")
        header = json.loads(opened.read(length))
    if name not in header:
        there = ", ".join(each for each in header if each != "__metadata__")
        raise InputError(f"{file} has no tensor {name!r}: it has {there}.")
    about = header[name]
    if about["dtype"] not in _KINDS:
        raise InputError(f"{file}: {name!r} has the type {about['dtype']}, which cannot be mapped: save it as F32.")
    return _KINDS[about["dtype"]], tuple(about["shape"]), 8 + length + int(about["data_offsets"][0])


# --- columns: Arrow and Parquet -------------------------------------------------------------------------------------------


class ColumnRecords(LargeRecords):
    """Base of records in columns: a record is a dictionary of tensors, one for each column of numbers or of lists of numbers.

    Numbers are as they are: nothing is scaled, since nothing is known of their bounds.
    """

    _columns: tuple[str, ...]
    column_names: tuple[str, ...]
    """All columns of the files; `users="name"` of `make_private` takes one of them as the user of each record."""

    def _take_columns(self, names: Sequence[str], wanted: Sequence[str] | None) -> None:
        self.column_names = tuple(names)
        self._columns = tuple(wanted if wanted is not None else names)
        if missing := [name for name in self._columns if name not in self.column_names]:
            raise InputError(f"{self._files[0]} has no column {missing[0]!r}: it has {', '.join(self.column_names)}.")

    def without(self, owner: str) -> Self:
        """The same records without the column of users, which can still be asked for by its name."""
        made = object.__new__(type(self))
        made.__dict__ |= self.__dict__ | {"_columns": tuple(name for name in self._columns if name != owner)}
        return made

    def __getitem__(self, place: int | str) -> Any:
        """A record by its place, or a column by its name."""
        if not isinstance(place, str):
            return super().__getitem__(place)
        values = np.concatenate([_values(part, place) for part in self._column(place)])
        return values if self._view is None else values[self._view]

    def _column(self, name: str) -> Iterator[Any]:
        raise NotImplementedError


def _values(column: Any, name: str) -> NDArray[Any]:
    """A column of users: numbers or texts."""
    if column.null_count:
        raise InputError(f"The column {name!r} has empty cells: fill them, or leave their rows out.")
    found: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found


def _tensor(batch: Any, name: str) -> Tensor:
    """A column of an Arrow batch: numbers, or lists of numbers of one length."""
    column = batch.column(name)
    kind = str(column.type)
    if kind.startswith(("fixed_size_list", "list", "large_list")):
        flat = column.flatten()
        if column.null_count or flat.null_count or len(flat) % max(1, len(column)):
            raise InputError(
                f"The column {name!r} has lists of different lengths, or empty cells: give each record as many."
            )
        if not kind.startswith("fixed") and len(set(column.value_lengths().to_pylist())) > 1:
            raise InputError(f"The column {name!r} has lists of different lengths: give each record as many numbers.")
        return torch.from_numpy(flat.to_numpy(zero_copy_only=False).copy()).view(len(column), -1)
    try:
        values = torch.from_numpy(_ArrowBlock(batch.select([name])).numbers(name).copy())
    except _CellError as error:
        raise InputError(
            f"The column {name!r} cannot be used as numbers ({error.problem.partition(':')[0]}): name the columns to use with "
            f"columns=..., or encode it first."
        ) from None
    return values.long() if kind.startswith(("int", "uint", "bool")) else values.float()


def _arrow(part: str, path: Path) -> Any:
    found = _pyarrow(part)
    if found is None:
        raise InputError(f"{path} needs pyarrow: install it with 'pip install privet[tables]'.")
    return found


def _listed(paths: Paths, suffixes: tuple[str, ...]) -> list[Path]:
    """The files of a path, of a folder or of several paths, in the order of their names within a folder."""
    given = [Path(each) for each in ([paths] if isinstance(paths, str | Path) else paths)]
    found = []
    for path in given:
        found += sorted(each for each in path.iterdir() if each.suffix in suffixes) if path.is_dir() else [path]
    if not found:
        raise InputError(f"{given[0] if given else 'The list of files'} holds no {suffixes[0]} file: give one or more.")
    return found


class ArrowRecords(ColumnRecords):
    """Arrow files (.arrow, .feather), memory-mapped: a record is read where it is drawn, also from several files.

    Args:
        paths: a file, a folder of files, or several.
        columns: those to use; by default all.
    """

    def __init__(self, paths: Paths, columns: Sequence[str] | None = None) -> None:
        files = _listed(paths, (".arrow", ".feather", ".ipc"))
        self._open(files)
        super().__init__(files, int(self._ends[-1]))
        self._take_columns(self._batches[0].schema.names, columns)

    def _open(self, files: Sequence[Path]) -> None:
        self._batches: list[Any] = []
        for path in files:
            pyarrow = _arrow("ipc", path)
            try:
                source = pyarrow.memory_map(str(path))
                try:
                    opened = pyarrow.ipc.open_file(source)
                    self._batches += [opened.get_batch(n) for n in range(opened.num_record_batches)]
                except pyarrow.ArrowInvalid:
                    source.seek(0)
                    self._batches += list(pyarrow.ipc.open_stream(source))
            except OSError as error:
                raise unreadable(path, error) from None
            except pyarrow.ArrowInvalid:
                raise InputError(
                    f"{path} is not an Arrow file, or it is truncated: copy or download it again."
                ) from None
        if not self._batches:
            raise InputError(f"{files[0]} has no records: give a file with records.")
        self._ends = np.cumsum([batch.num_rows for batch in self._batches])

    def _gather(self, rows: Rows) -> dict[str, Tensor]:
        order = np.argsort(rows, kind="stable")
        owner = np.searchsorted(self._ends, rows[order], side="right")
        parts = []
        for number in np.unique(owner).tolist():
            batch = self._batches[number]
            inside = rows[order][owner == number] - (self._ends[number] - batch.num_rows)
            parts.append(batch.select(list(self._columns)).take(_arrow("types", self._files[0]).array(inside)))
        back = torch.from_numpy(np.argsort(order, kind="stable"))
        return {name: torch.cat([_tensor(part, name) for part in parts])[back] for name in self._columns}

    def _column(self, name: str) -> Iterator[Any]:
        return (batch.column(name) for batch in self._batches)


class ParquetRecords(ColumnRecords):
    """Parquet files: read from one end to the other, so that the records of several steps are gathered in one pass.

    Memory holds at most `window` bytes of gathered records, and one block of the file as it is decoded. The files are read
    once for each window, and only those row groups that hold a drawn record.

    Args:
        paths: a file, a folder of files, or several.
        columns: those to use; by default all.
        window: bytes of the records that are gathered in one pass. One batch is gathered in any case.
    """

    def __init__(self, paths: Paths, columns: Sequence[str] | None = None, *, window: int = WINDOW) -> None:
        files = _listed(paths, (".parquet",))
        self._groups: list[tuple[int, int, int]] = []
        names: list[str] = []
        for number, path in enumerate(files):
            opened = self._file(path)
            about = opened.metadata
            self._groups += [(number, group, about.row_group(group).num_rows) for group in range(about.num_row_groups)]
            names = list(opened.schema_arrow.names)
        self._ends = np.cumsum([rows for *_, rows in self._groups])
        super().__init__(files, int(self._ends[-1]) if self._groups else 0)
        self._take_columns(names, columns)
        self._window = window
        self._last: tuple[bytes, dict[str, Tensor]] = b"", {}
        one = self._gather(np.zeros(1, dtype=np.int64))
        self._each = max(1, sum(value.nbytes for value in one.values()))

    def windows(self, index_batches: Iterable[Tensor]) -> Iterator[dict[str, Tensor]]:
        """The batch for each tensor of places, in order; those of several steps are gathered in one pass.

        Which records are drawn does not depend on the windows: they are only drawn ahead.
        """
        waiting: deque[Tensor] = deque()
        places = iter(index_batches)
        held: Tensor | None = None
        while True:
            total = 0
            while (taken := held if held is not None else next(places, None)) is not None:
                held = None
                if waiting and (total + len(taken)) * self._each > self._window:
                    held = taken
                    break
                waiting.append(taken)
                total += len(taken)
            if not waiting:
                return
            gathered = self.batch(torch.cat(list(waiting)))
            start = 0
            while waiting:
                end = start + len(waiting.popleft())
                yield {name: values[start:end] for name, values in gathered.items()}
                start = end

    def chunks(self) -> Iterator[Any]:
        return self.windows(torch.arange(len(self)).split(_CHUNK))

    def _gather(self, rows: Rows) -> dict[str, Tensor]:
        asked = repr(self._columns).encode() + rows.tobytes()
        if (
            len(rows) <= _LOOKED_AT and self._last[0] == asked
        ):  # a rehearsal asks for the same few records again and again
            return {name: values.clone() for name, values in self._last[1].items()}
        wanted, back = np.unique(rows, return_inverse=True)
        made: dict[str, Tensor] = {}
        for start, batch in self._blocks(wanted):
            low, high = np.searchsorted(wanted, (start, start + batch.num_rows))
            inside = torch.from_numpy(wanted[low:high] - start)
            for name in self._columns if high > low else ():
                values = _tensor(batch, name)[inside]
                if name not in made:
                    made[name] = torch.empty(len(wanted), *values.shape[1:], dtype=values.dtype)
                if values.shape[1:] != made[name].shape[1:]:
                    raise InputError(
                        f"The column {name!r} has lists of different lengths: give each record as many numbers."
                    )
                made[name][low:high] = values
        order = torch.from_numpy(back.reshape(-1))
        found = {name: values[order] for name, values in made.items()}
        if len(rows) <= _LOOKED_AT:
            self._last = asked, {name: values.clone() for name, values in found.items()}
        return found

    def _blocks(self, wanted: Rows) -> Iterator[tuple[int, Any]]:
        """The first place and the rows of each block of the row groups that hold wanted records, in their order."""
        held = np.unique(np.searchsorted(self._ends, wanted, side="right"))
        opened: tuple[int, Any] = -1, None
        for number in held.tolist():
            file, group, count = self._groups[number]
            if opened[0] != file:
                opened = file, self._file(self._files[file])
            start = int(self._ends[number]) - count
            try:
                for batch in opened[1].iter_batches(_CHUNK, row_groups=[group], columns=list(self._columns)):
                    yield start, batch
                    start += batch.num_rows
            except InputError:
                raise
            except Exception:  # pyarrow's errors for a damaged file have no common base
                raise _not_parquet(self._files[file]) from None

    def _column(self, name: str) -> Iterator[Any]:
        for path in self._files:
            for batch in self._file(path).iter_batches(_CHUNK, columns=[name]):
                yield batch.column(name)

    def _file(self, path: Path) -> Any:
        try:
            return _arrow("parquet", path).parquet.ParquetFile(str(path), memory_map=True, pre_buffer=False)
        except OSError as error:
            raise unreadable(path, error) from None
        except InputError:
            raise
        except Exception:
            raise _not_parquet(path) from None


# --- shards of WebDataset -------------------------------------------------------------------------------------------------

Decode = Callable[[dict[str, bytes]], Any]
INDEX = ".index.npy"


class TarRecords(LargeRecords):
    """Shards of WebDataset: .tar files with the parts of each record one after another, ``00017.npy`` and ``00017.cls``.

    The first time, the headers of each shard are read once, and an index with the place of each part is written beside the
    shard (``NAME.tar.index.npy``) where the folder can be written. With it each record is read where it is drawn.

    Args:
        paths: a shard, a folder of shards, or several.
        parts: the extensions of the parts of each record, in the order in which a batch has them.
        decode: from the bytes of each part, by extension, to a tuple of tensors; it sees one record at a time. Without it .npy,
            .cls and .txt (a whole number), and .png and .jpg (unsigned bytes, channels first) are decoded.
    """

    def __init__(self, paths: Paths, parts: Sequence[str], decode: Decode | None = None) -> None:
        if not parts:
            raise InputError("Name the parts of a record, for example parts=('npy', 'cls').")
        files = _listed(paths, (".tar",))
        self._parts, self._decode = tuple(parts), decode
        found = [_indexed(path, self._parts) for path in files]
        self._shard = np.repeat(np.arange(len(files)), [len(each) for each in found])
        self._index = np.concatenate(found)
        super().__init__(files, len(self._index))

    def _gather(self, rows: Rows) -> Any:
        records: list[Any] = [None] * len(rows)
        for shard in np.unique(self._shard[rows]).tolist():
            with open_file(self._files[shard]) as file:
                for place in np.flatnonzero(self._shard[rows] == shard).tolist():
                    records[place] = self._read(file, self._index[rows[place]])
        return tuple(default_collate(records))

    def _read(self, file: Any, where: NDArray[np.int64]) -> Any:
        found = {}
        for part, (start, size) in zip(self._parts, where.tolist(), strict=True):
            file.seek(start)
            found[part] = file.read(size)
        if self._decode is not None:
            return tuple(self._decode(found))
        return tuple(_decoded(part, content) for part, content in found.items())


def _indexed(path: Path, parts: tuple[str, ...]) -> NDArray[np.int64]:
    """First byte and size of each part of each record of a shard: records x parts x 2."""
    kept = path.with_name(path.name + INDEX)
    mark = int.from_bytes(sha256(repr((path.stat().st_size, parts)).encode()).digest()[:7], "little")
    if kept.exists():
        try:
            found: NDArray[np.int64] = np.load(kept, allow_pickle=False)
            if found.dtype == np.int64 and found.shape[1:] == (len(parts), 2) and found[0, 0, 0] == mark:
                return found[1:]
        except (ValueError, OSError, EOFError, IndexError):
            pass  # it is made anew
    found = np.array(list(_found_in(path, parts)), dtype=np.int64).reshape(-1, len(parts), 2)
    if not len(found):
        raise InputError(f"{path} has no records: give a shard with records.")
    first = np.zeros((1, len(parts), 2), dtype=np.int64)
    first[0, 0, 0] = mark
    saved = BytesIO()
    np.save(saved, np.concatenate([first, found]))
    try:
        write_whole(kept, saved.getvalue())
    except Exception:  # a folder that cannot be written: the index is made anew the next time
        return found
    return found


def _found_in(path: Path, parts: tuple[str, ...]) -> Iterator[list[tuple[int, int]]]:
    try:
        with tarfile.open(path, "r:") as shard:
            name, places = "", dict[str, tuple[int, int]]()
            for member in shard:
                if not member.isfile():
                    continue
                stem, _, part = member.name.rpartition("/")[2].partition(".")
                stem = f"{member.name.rpartition('/')[0]}/{stem}"
                if stem != name:
                    if places:
                        yield _whole(path, places, parts)
                    name, places = stem, {}
                if part in parts:
                    places[part] = (member.offset_data, member.size)
                shard.members = []  # type: ignore[attr-defined]  # tarfile would keep them all
            if places:
                yield _whole(path, places, parts)
    except tarfile.ReadError:
        raise InputError(
            f"{path} is not an uncompressed .tar file, or it is truncated: unpack a compressed shard first, or copy it again."
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None


def _whole(path: Path, places: Mapping[str, tuple[int, int]], parts: tuple[str, ...]) -> list[tuple[int, int]]:
    if missing := [part for part in parts if part not in places]:
        raise InputError(f"{path}: a record has no part .{missing[0]}: give every record all of its parts.")
    return [places[part] for part in parts]


def _decoded(part: str, content: bytes) -> Tensor:
    try:
        if part == "npy":
            return torch.from_numpy(np.load(BytesIO(content), allow_pickle=False))
        if part in ("cls", "txt"):
            return torch.tensor(int(content))
        if part in ("png", "jpg", "jpeg"):
            from PIL import Image

            pixels = torch.from_numpy(np.asarray(Image.open(BytesIO(content))).copy())
            return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.movedim(2, 0)
    except (ValueError, OSError, EOFError, SyntaxError):
        raise InputError(
            f"A part .{part} of a record cannot be decoded: give decode=... for parts of your own."
        ) from None
    raise InputError(
        f"How to decode a part .{part} is not known: give decode=..., from the bytes of each part to tensors."
    )
