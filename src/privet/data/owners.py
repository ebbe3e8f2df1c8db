"""The user of each example, if users may have several examples."""

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
"""The users of examples: a value for each example, a function of its index, or the name of a column of the data set."""


def owners_of(key: Key, dataset: Any) -> Tensor:
    """Number the users from 0, in the order of their first examples, and give the number of each example's user.

    `dataset` must have a length, and may have columns.
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
            "with one user for each example, in their order, or a function of the example's index."
        )
    if getattr(key, "ndim", 1) != 1 or getattr(getattr(key, "dtype", None), "names", None):
        raise _several()
    if len(key) != len(dataset):
        # The message has no numbers: the number of examples may be private.
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
            "Some keys of users are numbers and others are texts, so one user could count as two, as 1 and '1': give all keys "
            "as one kind."
        )
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(name, len(numbers)) for name in names], dtype=torch.int64)


def user_number(name: bytes) -> int:
    """A number that depends only on the user's name: 63 bits of its hash."""
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little") >> 1


def users_within(dataset: Any) -> Tensor | None:
    """The users of a data set that knows them: of a `Split`, or of the parts of a subset or a concatenation."""
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
    """A column of a data set that has columns: a table, a data frame, or a Hugging Face data set."""
    names = getattr(dataset, "column_names", None) or getattr(dataset, "columns", None)
    if names is None or name not in list(names):
        raise InputError(
            "The data set has no column with the name given as the key of users: give a vector with a user for each example, "
            "or a function of the example's index."
        )
    column = dataset[name]
    return column.to_numpy() if hasattr(column, "to_numpy") else list(column)


def _checked(name: Any) -> Hashable:
    """Check that a user's name is one value and not missing. The name is private, so no message contains it."""
    if isinstance(name, Tensor) and name.ndim == 0:
        name = name.item()
    if isinstance(name, (tuple, list, set, frozenset, dict, Tensor, np.ndarray)):
        raise _several()
    if not isinstance(name, Hashable):
        raise InputError(f"A user's key must be a number or a text, not {type(name).__name__}.")
    if name is None or _is_missing(name) or (isinstance(name, (str, bytes)) and not name):
        raise _nobody()
    return name


def _is_missing(name: Any) -> bool:
    """Whether a key is missing: NaN and NaT do not equal themselves, and comparing NA of a data frame raises."""
    try:
        return bool(name != name)
    except TypeError:
        return True


def _kind(name: Hashable) -> str:
    """The kind of a key. Keys of different kinds can look alike and differ, or differ and be equal, as 1 and True."""
    if isinstance(name, (bool, np.bool_)):
        return "truth"
    if isinstance(name, (int, float, complex, np.number)):
        return "number"
    return "text" if isinstance(name, str) else type(name).__name__


def _nobody() -> InputError:
    return InputError("An example has no user: its key is empty. Leave the example out, or give it a user of its own.")


def _hidden() -> InputError:
    return InputError(
        "A part of the data set has users, but the users of all its examples are not known: give users=... with a user for "
        "each example."
    )


def _several() -> InputError:
    return InputError(
        "An example has a key of several parts, as if it belonged to several users. Removing one of them would change the "
        "examples of the others, and no bound would hold. Give each example one user; if the parts name one user, join them "
        "into one text."
    )
