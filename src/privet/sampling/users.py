"""Users: all examples of one person are one record, drawn together and clipped together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privet.errors import InputError
from privet.randomness import Source
from privet.randomness.draws import permutation

Key = Tensor | np.ndarray[Any, Any] | Sequence[Hashable] | Callable[[int], Hashable] | str
"""Whose an example is: a value for each example, a function of its index, or the name of a column of the data set."""


@dataclass(frozen=True, eq=False)
class Users:
    """The user is the unit of privacy, and not the example.

    A user who is drawn for a step takes part with all their examples if they have at most `most`, and else with `most` of
    them, drawn afresh in every step without replacement. The gradients of these examples are joined before they are
    clipped: averaged where the loss is a mean or a vector of losses, added up where it is a sum.

    Attributes:
        key: a user for each example: a vector, a list, a function of the example's index, or the name of a column.
        most: how many examples of one user take part in a step. More of them make a user's gradient less noisy and a step
            slower; the guarantee is the same.
    """

    key: Key
    most: int = 8

    def __post_init__(self) -> None:
        if isinstance(self.most, bool) or not isinstance(self.most, int) or self.most < 1:
            raise InputError(
                f"A user takes part with at least one example, not with {self.most!r}: give most=1 or more."
            )

    @classmethod
    def of(cls, users: Users | Key) -> Users:
        return users if isinstance(users, Users) else cls(users)

    def found_in(self, dataset: Any) -> Holdings:
        """Who holds which examples of a data set."""
        return Holdings(owners_of(self.key, dataset), self.most)


class Holdings:
    """Which examples each user holds.

    Formal guarantees: every example has exactly one user. `drawn` gives each chosen user's examples by themselves: what it
    gives for one user depends on that user's examples and on randomness of its own, and on no other user.
    """

    def __init__(self, owners: Tensor, most: int = 8) -> None:
        """`owners` holds the number of each example's user, from 0 on."""
        self.owners, self.most = owners, most
        self.sizes = torch.bincount(owners)
        """How many examples each user has."""
        self._examples = owners.argsort(stable=True)
        self._ends = self.sizes.cumsum(0)

    def __len__(self) -> int:
        """How many users there are."""
        return len(self.sizes)

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.owners.numpy().tobytes()).hexdigest()

    def drawn(self, users: Tensor, source: Source) -> Iterator[Tensor]:
        """The examples with which users take part in a step, as matrices with a row for each user: one matrix for those
        who take part with one example, one for those with two, and so on."""
        sizes = self.sizes[users]
        rows = self._of(users)
        if bool((sizes > self.most).any()):
            # In a random order of all of them, those of one user are in random order too.
            rows = rows[permutation(len(rows), source)]
            rows = rows[self.owners[rows].argsort(stable=True)]
        starts = sizes.cumsum(0) - sizes
        parts = sizes.clamp(max=self.most)
        for count in parts.unique().tolist():
            yield rows[starts[parts == count].unsqueeze(1) + torch.arange(count)]

    def some(self, users: Tensor, count: int) -> Tensor:
        """`count` examples of each user, again from the first where there are fewer: for a rehearsal."""
        places = torch.arange(count).unsqueeze(0) % self.sizes[users].unsqueeze(1)
        return self._examples[(self._ends - self.sizes)[users].unsqueeze(1) + places]

    def _of(self, users: Tensor) -> Tensor:
        """All examples of users that are given in ascending order, user by user."""
        sizes = self.sizes[users]
        first = (self._ends[users] - sizes).repeat_interleave(sizes)
        within = torch.arange(int(sizes.sum())) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        return self._examples[first + within]


def owners_of(key: Key, dataset: Any) -> Tensor:
    """The number of each example's user, from 0 on."""
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
