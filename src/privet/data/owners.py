"""Whose each example is, where a person may hold several."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privet.errors import InputError

Key = Tensor | np.ndarray[Any, Any] | Sequence[Hashable] | Callable[[int], Hashable] | str
"""Whose an example is: a value for each example, a function of its index, or the name of a column of the data set."""


def owners_of(key: Key, dataset: Any) -> Tensor:
    """The number of each example's user, from 0 on; `dataset` has a length, and perhaps columns."""
    if isinstance(key, str):
        key = _column(key, dataset)
    if callable(key):
        key = [key(index) for index in range(len(dataset))]
    if isinstance(key, Tensor):
        key = key.detach().cpu().numpy()
    if isinstance(key, np.ndarray) and key.ndim != 1:
        raise _several()
    if len(key) != len(dataset):
        raise InputError(
            f"The key of users has {len(key)} entries, and the data set {len(dataset)} examples: give a user for each."
        )
    if isinstance(key, np.ndarray) and key.dtype.kind in "iu":
        return torch.from_numpy(np.unique(key, return_inverse=True)[1].astype(np.int64).reshape(-1))
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(_checked(name), len(numbers)) for name in key], dtype=torch.int64)


def _column(name: str, dataset: Any) -> Any:
    """A column of a data set that has columns: a table, a data frame, or one of Hugging Face's."""
    names = getattr(dataset, "column_names", None) or getattr(dataset, "columns", None)
    if names is None or name not in list(names):
        raise InputError(
            "The data set has no column of the name that was given as the key of users: give a vector with a user for each "
            "example, or a function of the example's index."
        )
    column = dataset[name]
    return column.to_numpy() if hasattr(column, "to_numpy") else list(column)


def _checked(name: Any) -> Hashable:
    """A user's name, whatever it is: one value, and not a missing one. It is a private value and stands in no message."""
    if isinstance(name, Tensor) and name.ndim == 0:
        name = name.item()
    if isinstance(name, (tuple, list, set, frozenset, dict, Tensor, np.ndarray)):
        raise _several()
    if name is None or name != name or name == "":  # NaN is not itself
        raise InputError(
            "An example has no user: its key is empty. Leave the example out, or give it a user of its own if it is nobody's."
        )
    if not isinstance(name, Hashable):
        raise InputError(f"A user's key is a number or a text, not {type(name).__name__}.")
    return name


def _several() -> InputError:
    return InputError(
        "An example has a key of several parts, as if it belonged to several users: then removing one of them would change the "
        "others' examples, and no bound would hold. Give each example one user; join the parts into one text if they name one."
    )
