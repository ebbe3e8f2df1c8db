"""Whose each example is, where a person may hold several."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset

from privet.errors import InputError

Key = Tensor | np.ndarray[Any, Any] | Sequence[Hashable] | Callable[[int], Hashable] | str
"""Whose an example is: a value for each example, a function of its index, or the name of a column of the data set."""


def owners_of(key: Key, dataset: Any) -> Tensor:
    """The number of each example's user, from 0 on in the order of their first examples.

    `dataset` has a length, and perhaps columns.
    """
    if isinstance(key, str):
        key = _column(key, dataset)
    if callable(key):
        key = [key(index) for index in range(len(dataset))]
    if isinstance(key, Tensor):
        key = key.detach().cpu()
        key = (key.double() if key.is_floating_point() else key).numpy()
    if isinstance(key, (Mapping, AbstractSet, bytes, bytearray)) or not hasattr(key, "__len__"):
        raise InputError(
            f"The key of users is a {type(key).__name__}, which has no user at each example's place: give a vector or a list "
            f"with a user for each example, in their order, or a function of the example's index."
        )
    if getattr(key, "ndim", 1) != 1 or getattr(getattr(key, "dtype", None), "names", None):
        raise _several()
    if len(key) != len(dataset):
        # How many there are may be private.
        raise InputError(
            "The key of users has more or fewer entries than the data set has examples: give a user for each."
        )
    if isinstance(key, np.ma.MaskedArray):
        if np.ma.getmaskarray(key).any():
            raise _nobody()
        key = key.data
    if isinstance(key, np.ndarray) and key.dtype.kind in "iu":
        _, first, users = np.unique(key, return_index=True, return_inverse=True)
        return torch.from_numpy(first.argsort().argsort()[users.reshape(-1)].astype(np.int64))
    names = [_checked(name) for name in key]
    if len({_kind(name) for name in names}) > 1:
        raise InputError(
            "Some keys of users are numbers and others texts, so that one user could be two, as 1 and '1': give all of them as "
            "one kind."
        )
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(name, len(numbers)) for name in names], dtype=torch.int64)


def user_number(name: bytes) -> int:
    """A number that depends on a user's name alone, and on nobody else: 63 bits of its hash."""
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little") >> 1


def users_within(dataset: Any) -> Tensor | None:
    """The users that a data set brings along: a `Split` its own, a subset or a concatenation those of its parts."""
    if isinstance(users := getattr(dataset, "users", None), Tensor):
        return users
    if isinstance(dataset, Subset):
        inner = users_within(dataset.dataset)
        return None if inner is None else inner[torch.as_tensor(dataset.indices, dtype=torch.int64)]
    if isinstance(dataset, ConcatDataset):
        parts = [users_within(part) for part in dataset.datasets]
        known = [part for part in parts if part is not None]
        if 0 < len(known) < len(parts):
            raise _hidden()
        return torch.cat(known) if known else None
    inside = getattr(dataset, "dataset", None)
    if inside is not None and inside is not dataset and users_within(inside) is not None:
        raise _hidden()
    return None


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
    if not isinstance(name, Hashable):
        raise InputError(f"A user's key is a number or a text, not {type(name).__name__}.")
    if name is None or _is_missing(name) or (isinstance(name, (str, bytes)) and not name):
        raise _nobody()
    return name


def _is_missing(name: Any) -> bool:
    """NaN and NaT are not themselves, and for NA of a data frame nobody can say whether it is."""
    try:
        return bool(name != name)
    except TypeError:
        return True


def _kind(name: Hashable) -> str:
    """What a key is: keys of different kinds can look alike and differ, or differ and be equal, as 1 and True."""
    if isinstance(name, (bool, np.bool_)):
        return "truth"
    if isinstance(name, (int, float, complex, np.number)):
        return "number"
    return "text" if isinstance(name, str) else type(name).__name__


def _nobody() -> InputError:
    return InputError(
        "An example has no user: its key is empty. Leave the example out, or give it a user of its own if it is nobody's."
    )


def _hidden() -> InputError:
    return InputError(
        "The data set holds a part with users, and it is not known whose each of its examples is: give users=... with a user "
        "for each example."
    )


def _several() -> InputError:
    return InputError(
        "An example has a key of several parts, as if it belonged to several users: then removing one of them would change the "
        "others' examples, and no bound would hold. Give each example one user; join the parts into one text if they name one."
    )
