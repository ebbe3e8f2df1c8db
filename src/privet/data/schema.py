"""The public description of a table: its columns, their bounds and categories, and the label.

Bounds and categories decide how records are scaled and encoded, so they must not be taken from the records: the largest value
of a column may belong to one person. They come from you, or from a public document.
"""

import json
import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privet.errors import InputError
from privet.io import MisfitError, from_json, from_yaml, read_text, user_path

SCHEMA_LIMIT = 16 << 20


@dataclass(frozen=True)
class Numeric:
    """A column of numbers from ``low`` to ``high``; it becomes one input, scaled to [0, 1].

    ``whole`` marks a column of integers: synthetic values are then rounded.
    """

    name: str
    low: float
    high: float
    whole: bool = False

    def __post_init__(self) -> None:
        finite = math.isfinite(self.low) and math.isfinite(self.high) and math.isfinite(self.high - self.low)
        if not (finite and self.low < self.high):
            raise InputError(f"Column {self.name!r} has bounds {self.low} to {self.high}: give finite low < high.")

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.name,)


@dataclass(frozen=True)
class Categorical:
    """A column whose values are ``categories``; it becomes one input for each category, 0 or 1."""

    name: str
    categories: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.categories or len(set(self.categories)) < len(self.categories):
            raise InputError(f"Column {self.name!r} needs categories, each listed once: fix the list.")

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={category}" for category in self.categories)


@dataclass(frozen=True)
class Schema:
    """The columns of a table. ``label`` names the column to predict: a categorical one, whose categories are the classes, or a
    numeric one, for a regression.

    ``ignore`` names columns that are not read. With ``clip`` a number outside its bounds is moved to the nearer bound;
    otherwise it is an error. ``user`` names the column with the user of each row, if a user may have several rows: all rows
    of a user are then protected together. It is not an input and is never released.
    """

    columns: tuple[Numeric | Categorical, ...]
    label: str
    ignore: tuple[str, ...] = ()
    clip: bool = False
    user: str = ""

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        for name in names:
            if names.count(name) > 1 or name in self.ignore:
                raise InputError(f"Column {name!r} is described twice in the schema: remove one.")
        if self.user and (self.user in names or self.user in self.ignore):
            raise InputError(
                f"The column of users {self.user!r} is described a second time in the schema: name it only in user."
            )
        self._label_column()
        if not self.features:
            raise InputError("The schema has no column except the label: describe at least one.")

    def _label_column(self) -> Numeric | Categorical:
        for column in self.columns:
            if column.name == self.label:
                return column
        raise InputError(f"The label {self.label!r} is not among the schema's columns: describe it there.")

    @property
    def classes(self) -> tuple[str, ...]:
        column = self._label_column()
        return column.categories if isinstance(column, Categorical) else ()

    @property
    def target(self) -> Numeric | None:
        """The number to predict, with its public bounds; None where the label is a class."""
        column = self._label_column()
        return column if isinstance(column, Numeric) else None

    @property
    def features(self) -> tuple[Numeric | Categorical, ...]:
        """The columns that become inputs, in the schema's order."""
        return tuple(column for column in self.columns if column.name != self.label)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs, in the order of a record."""
        return tuple(name for column in self.features for name in column.inputs)


def read_schema(path: Path | str) -> Schema:
    """Read a schema from a ``.json`` or ``.yaml`` file::

    label: income
    columns:
      age: {low: 17, high: 90, whole: true}     # whole is optional
      work: {categories: [private, public, none]}
      income: {categories: ["<=50K", ">50K"]}
    ignore: [id]        # optional
    clip: false         # optional
    user: patient       # optional: the column with the user of each row
    """
    path = user_path(path)
    content = _parse(path, read_text(path, SCHEMA_LIMIT))
    try:
        return _schema(content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _parse(path: Path, text: str) -> Any:
    if path.suffix not in (".json", ".yaml", ".yml"):
        raise InputError(f"{path} is neither .json nor .yaml: write the schema in one of them.")
    try:
        return from_json(text) if path.suffix == ".json" else from_yaml(text)
    except ImportError:
        raise InputError(f"{path} needs PyYAML: install it with 'pip install pyyaml', or write JSON.") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not valid JSON ({error}): fix it.") from None
    except MisfitError as error:
        raise InputError(f"{path}: {error}: fix it.") from None


def _schema(content: Any) -> Schema:
    table = _mapping(content, "The schema", {"label", "columns"}, {"ignore", "clip", "user"})
    columns: list[Numeric | Categorical] = []
    for name, description in _mapping(table["columns"], "The part 'columns'").items():
        what = f"Column {name!r}"
        keys = {"categories"} if isinstance(description, Mapping) and "categories" in description else {"low", "high"}
        column = _mapping(description, what, keys, set() if keys == {"categories"} else {"whole"})
        if keys == {"categories"}:
            columns.append(Categorical(name, _names(column["categories"], f"{what}: categories")))
        else:
            if not isinstance(whole := column.get("whole", False), bool):
                raise InputError(f"{what}: whole must be true or false: fix it.")
            columns.append(Numeric(name, _number(column["low"], what), _number(column["high"], what), whole))
    if not isinstance(table["label"], str) or not isinstance(table.get("clip", False), bool):
        raise InputError("The label must be a column's name and clip true or false: fix them.")
    if not isinstance(table.get("user", ""), str):
        raise InputError("The part 'user' must be a column's name: fix it.")
    ignore = _names(table.get("ignore", []), "ignore")
    return Schema(tuple(columns), table["label"], ignore, table.get("clip", False), table.get("user", ""))


def _mapping(
    value: Any, what: str, required: Set[str] = frozenset(), optional: Set[str] = frozenset()
) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InputError(f"{what} is not a table of names: write it as 'name: value'.")
    if missing := sorted(required - value.keys()):
        raise InputError(f"{what} lacks {', '.join(missing)}: add it.")
    if required and (unknown := sorted(value.keys() - required - optional)):
        raise InputError(
            f"{what} has the unknown entry {unknown[0]!r}: allowed are {', '.join(sorted(required | optional))}."
        )
    return dict(value)


def _names(value: Any, what: str) -> tuple[str, ...]:
    # YAML reads a bare yes or no as a boolean, whose text would match no cell.
    if not isinstance(value, list) or not all(
        isinstance(item, str | int) and not isinstance(item, bool) for item in value
    ):
        raise InputError(f"{what} must be a list of names: put yes, no and fractions in quotes.")
    return tuple(str(item) for item in value)


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{what}: low and high must be numbers: fix them.")
    try:
        return float(value)
    except OverflowError:
        raise InputError(f"{what}: low or high is too large for a number: fix them.") from None
