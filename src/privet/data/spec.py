"""One way to name any data set: a name of the catalogue, or a format and a path."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from privet.data.catalogue import CATALOGUE
from privet.data.cifar import read_cifar
from privet.data.csv_table import read_csv
from privet.data.dataset import Dataset
from privet.data.download import Progress
from privet.data.fetch import get
from privet.data.folder import read_folder
from privet.data.idx import read_idx_dataset
from privet.data.labels import TEN_DIGITS
from privet.data.parquet_table import read_parquet
from privet.data.schema import Schema, read_schema
from privet.data.svhn import read_svhn
from privet.errors import InputError

PLAIN: dict[str, Callable[[Path], Dataset]] = {"cifar": read_cifar, "svhn": read_svhn, "folder": read_folder}
TABLES: dict[str, Callable[[Path, Schema], Dataset]] = {"csv": read_csv, "parquet": read_parquet}
FORMATS = ("idx", *PLAIN, *TABLES)


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
    """The data set that ``spec`` names: ``mnist``, or ``idx:``, ``cifar:``, ``svhn:``, ``folder:``, ``csv:`` or
    ``parquet:`` and a path.

    A name of the catalogue is fetched where the cache does not hold it. Tables need a ``schema`` (or its file);
    ``idx:`` takes ``classes``, which are the ten digits otherwise. With ``header=False`` the first row of a CSV file is a
    record, and its columns are those of the schema in their order. ``user`` names the column of a table that says whose a row
    is, in the place of the schema's ``user``. Raises InputError for whatever cannot be used.
    """
    kind, colon, text = spec.partition(":")
    if schema is not None and not (colon and kind in TABLES):
        raise InputError(f"{spec} takes no schema: only csv:PATH and parquet:PATH do.")
    if classes is not None and not (colon and kind == "idx"):
        raise InputError(f"{spec} names its classes itself: only idx:PATH takes them.")
    if user and not (colon and kind in TABLES):
        raise InputError(f"{spec} has no column of users: only csv:PATH and parquet:PATH do.")
    if not header and not (colon and kind == "csv"):
        raise InputError(f"{spec} is no CSV file: only csv:PATH can go without a header.")
    if not colon:
        if spec not in CATALOGUE and spec and Path(spec).exists():
            raise InputError(f"{spec} is a path: say what it holds, as in {', '.join(f'{f}:{spec}' for f in FORMATS)}.")
        return get(spec, cache=cache, progress=progress)
    if kind not in FORMATS or not text:
        raise InputError(
            f"{spec!r} names no data set: use one of {', '.join(CATALOGUE)}, "
            f"or {', '.join(f'{form}:PATH' for form in FORMATS)}."
        )
    path = Path(text).expanduser()
    if not path.exists():
        raise InputError(f"{path} does not exist: check the path.")
    if kind in PLAIN:
        return PLAIN[kind](path)
    if kind == "idx":
        return read_idx_dataset(path, TEN_DIGITS if classes is None else classes)
    if schema is None:
        raise InputError(
            f"{path} needs a schema: its bounds and categories must be public, so they are not taken from the rows."
        )
    described = schema if isinstance(schema, Schema) else read_schema(schema)
    if user:
        described = replace(described, user=user, ignore=tuple(name for name in described.ignore if name != user))
    return read_csv(path, described, header=header) if kind == "csv" else TABLES[kind](path, described)
