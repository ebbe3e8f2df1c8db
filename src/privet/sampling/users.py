"""Users: all examples of one person are one record, drawn together and clipped together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from privet.data.owners import Key, owners_of
from privet.errors import InputError
from privet.privacy import Event, Relation
from privet.randomness import Source
from privet.randomness.sources import permutation
from privet.sampling.samplers import Sampling


@dataclass(frozen=True, eq=False)
class Users:
    """States that the user is the unit of privacy, and not the example.

    A user who is drawn for a step takes part with all their examples if they have at most `most`, and otherwise with `most` of
    them, drawn anew in every step without replacement. The gradients of these examples are joined before they are
    clipped: averaged where the loss is a mean or a vector of losses, added up where it is a sum.

    Attributes:
        key: a user for each example: a vector, a list, a function of the example's index, or the name of a column.
        most: the largest number of examples of one user in a step. More of them make a user's gradient less noisy and a step
            slower; the guarantee is the same.
    """

    key: Key
    most: int = 8

    def __post_init__(self) -> None:
        _check_most(self.most)

    @classmethod
    def of(cls, users: Users | Key) -> Users:
        return users if isinstance(users, Users) else cls(users)

    def found_in(self, dataset: Any) -> Holdings:
        """The holdings of each user in a data set."""
        return Holdings(owners_of(self.key, dataset), self.most)


@dataclass(frozen=True)
class UserSampling(Sampling):
    """Draws users by another sampling; each takes part with at most `most` of their examples.

    Formal guarantees: those of `users`, for the user as the unit of privacy. The number of a user's examples is bounded for speed
    only; their joint gradient is clipped as one.
    """

    users: Sampling
    most: int = 8

    def __post_init__(self) -> None:
        _check_most(self.most)
        if self.users.unit != "record":
            raise InputError(
                "UserSampling draws users by a sampling such as PoissonSampling, not by another UserSampling."
            )

    @property
    def rate(self) -> float:
        return self.users.rate

    @property
    def relations(self) -> tuple[Relation, ...]:
        return self.users.relations

    @property
    def unit(self) -> str:
        return "user"

    @property
    def padded(self) -> bool:
        return self.users.padded

    def expected_size(self, records: int) -> float:
        """The expected number of users in a batch, out of `records` users."""
        return self.users.expected_size(records)

    def draw(self, records: int, source: Source) -> Tensor:
        """The numbers of the users in one batch, out of `records` users, sorted."""
        return self.users.draw(records, source).sort().values

    def event(self, each: Event) -> Event:
        return self.users.event(each)


class Holdings:
    """The examples that each user holds.

    Formal guarantees: every example has exactly one user. `drawn` gives each chosen user's examples separately: the result
    for one user depends on that user's examples and on randomness of its own, and on no other user.
    """

    def __init__(self, owners: Tensor, most: int = 8) -> None:
        """`owners` holds the number of each example's user, starting at 0."""
        self.owners, self.most = owners, most
        self.sizes = torch.bincount(owners)
        """The number of examples of each user."""
        self._examples = owners.argsort(stable=True)
        self._ends = self.sizes.cumsum(0)

    def __len__(self) -> int:
        """The number of users."""
        return len(self.sizes)

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.owners.numpy().tobytes()).hexdigest()

    def drawn(self, users: Tensor, source: Source) -> Iterator[Tensor]:
        """The examples with which users take part in a step, as matrices with a row for each user: one matrix for users
        who take part with one example, one for users with two, and so on. `users` is sorted."""
        sizes = self.sizes[users]
        rows = self._of(users)
        if bool((sizes > self.most).any()):
            # In a random order of all examples, those of one user are in random order, too.
            rows = rows[permutation(len(rows), source)]
            rows = rows[self.owners[rows].argsort(stable=True)]
        starts = sizes.cumsum(0) - sizes
        parts = sizes.clamp(max=self.most)
        for count in parts.unique().tolist():
            yield rows[starts[parts == count].unsqueeze(1) + torch.arange(count)]

    def some(self, users: Tensor, count: int) -> Tensor:
        """`count` examples of each user, repeated from the first where a user has fewer: for a rehearsal."""
        places = torch.arange(count).unsqueeze(0) % self.sizes[users].unsqueeze(1)
        return self._examples[(self._ends - self.sizes)[users].unsqueeze(1) + places]

    def _of(self, users: Tensor) -> Tensor:
        """All examples of users given in ascending order, user by user."""
        sizes = self.sizes[users]
        first = (self._ends[users] - sizes).repeat_interleave(sizes)
        within = torch.arange(int(sizes.sum())) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        return self._examples[first + within]


def _check_most(most: int) -> None:
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise InputError(f"A user takes part with at least one example, not with {most!r}: give most=1 or more.")
