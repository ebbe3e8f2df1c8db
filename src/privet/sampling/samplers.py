"""Samplings: how the records or the users of a batch are drawn, and the privacy event that follows."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from scipy.special import bdtrc
from torch import Tensor

from privet.data.owners import Key, owners_of
from privet.errors import InputError, PrivetError
from privet.privacy import Event, FixedSizeSampled, PaddedPoisson, PoissonSampled, Relation
from privet.randomness import SecureSource, Source
from privet.randomness.sources import permutation

EMPTY = -1
"""The index of a place that holds no record."""


class SampleOverflowError(PrivetError):
    """A sample had more records than there are places; the probability of this is part of delta."""


@runtime_checkable
class Sampling(Protocol):
    """Draws the batch of each step; a frozen dataclass of public settings.

    Formal guarantees, which every implementation must keep: `draw` depends on the source alone, and `event` is the cost of
    what it draws, for the neighboring relations in `relations`.
    """

    if TYPE_CHECKING:  # a property at run time would become the default of a dataclass's field

        @property
        def rate(self) -> float:
            """The probability with which each record is in a batch."""

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The neighboring relations for which `event` holds."""
        return tuple(Relation)

    @property
    def unit(self) -> str:
        """The unit of privacy, which is drawn: a record, or a user with all their examples."""
        return "record"

    @property
    def padded(self) -> bool:
        """Whether a batch has places that stay empty, with the index `EMPTY`."""
        return False

    def expected_size(self, records: int) -> float:
        """The expected size of a batch from a data set of public size `records`: the public constant that divides every sum."""
        return self.rate * records

    @abstractmethod
    def draw(self, records: int, source: Source) -> Tensor:
        """The indices of one batch out of ``range(records)``; it may be empty."""

    @abstractmethod
    def event(self, each: Event) -> Event:
        """The event of a batch to which `each` is done."""


@dataclass(frozen=True)
class PoissonSampling(Sampling):
    """Each record joins a batch with probability `rate`, independently of all others.

    Formal guarantees: `draw` is exactly Poisson sampling. A secure source draws one coin for each record. A seeded source
    draws the number of records from the binomial distribution, and then a uniform subset of that
    size, which is the same distribution and faster.
    """

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise InputError(
                f"The sampling rate must lie in (0, 1], not {self.rate}: is the batch larger than the data?"
            )

    def draw(self, records: int, source: Source) -> Tensor:
        """The indices of one batch, sorted; possibly none."""
        if isinstance(source, SecureSource):
            return source.coins(records, self.rate).nonzero().flatten()
        trials = torch.tensor(float(records), dtype=torch.float64)
        chosen = int(torch.binomial(trials, torch.tensor(self.rate, dtype=torch.float64), generator=source))
        return uniform_subset(records, chosen, source)

    def event(self, each: Event) -> Event:
        return PoissonSampled(self.rate, each) if self.rate < 1 else each


@dataclass(frozen=True)
class FixedSizeSampling(Sampling):
    """Exactly `size` of `records` records without replacement, every subset equally likely, in random order.

    Formal guarantees: amplification holds for replacing one record. The order is random: a batch without a record and the batch
    in which another has taken its place then differ in one place, also where each place is released by itself.
    """

    size: int
    records: int

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.records:
            raise InputError(f"A batch has from 1 to {self.records} of {self.records} records, not {self.size}.")

    @property
    def rate(self) -> float:
        return self.size / self.records

    @property
    def relations(self) -> tuple[Relation, ...]:
        return (Relation.REPLACE_ONE,)

    @property
    def rows(self) -> int:
        """The number of rows of every batch."""
        return self.size

    def expected_size(self, records: int) -> float:
        self._check(records)
        return float(self.size)

    def draw(self, records: int, source: Source) -> Tensor:
        """The indices of one batch, in random order."""
        self._check(records)
        if isinstance(source, torch.Generator):
            return uniform_subset(records, self.size, source)[permutation(self.size, source)]
        return permutation(records, source)[: self.size]

    def event(self, each: Event) -> Event:
        return FixedSizeSampled(self.size, self.records, each) if self.size < self.records else each

    def _check(self, records: int) -> None:
        if records != self.records:
            raise InputError(
                f"The sampling is for {self.records} records, and there are {records}: their number is public here."
            )


@dataclass(frozen=True)
class PaddedPoissonSampling(Sampling):
    """Each of at most `records` records takes one of `rows` places with probability `rate`; the other places stay empty.

    This hides the size of the sample where every place is released by itself. Where only a sum is released, as in a training
    step, `PoissonSampling` is enough.

    Formal guarantees: places are a random permutation, so that adding a record fills one empty place and changes nothing
    else: releasing every place with noise of its own costs as much as Poisson sampling, and a step adds the
    probability of more than `rows` records to delta, as its event says. Such a draw raises `SampleOverflowError`.
    """

    rate: float
    records: int
    rows: int

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise InputError(f"The sampling rate must lie in (0, 1], not {self.rate}.")
        if self.records < 1 or self.rows < 1:
            raise InputError(f"There must be at least one record and one row, not {self.records} and {self.rows}.")

    @classmethod
    def for_steps(cls, size: int, records: int, steps: int, overflow: float) -> PaddedPoissonSampling:
        """The fewest rows for which `steps` batches of `size` expected records overflow with probability at most `overflow`."""
        if not 1 <= size <= records:
            raise InputError(f"A batch has from 1 to {records} of {records} records, not {size}.")
        low, high, rate = size, records, size / records
        while low < high:
            rows = (low + high) // 2
            low, high = (low, rows) if steps * bdtrc(rows, records, rate) <= overflow else (rows + 1, high)
        return cls(rate, records, low)

    @property
    def padded(self) -> bool:
        return True

    def draw(self, records: int, source: Source) -> Tensor:
        """The index of the record in each place, or `EMPTY`."""
        if records > self.records:
            raise InputError(f"The sampling is for at most {self.records} records, and there are more.")
        chosen = PoissonSampling(self.rate).draw(records, source)
        if len(chosen) > self.rows:
            raise SampleOverflowError(
                f"More than {self.rows} records were drawn: the step is void. Nothing was released."
            )
        places = torch.full((self.rows,), EMPTY)
        places[: len(chosen)] = chosen
        return places[permutation(self.rows, source)]

    def event(self, each: Event) -> Event:
        """The event of a batch to every place of which `each` is done."""
        return PaddedPoisson(self.rate, self.records, self.rows, each)


def uniform_subset(records: int, size: int, generator: torch.Generator) -> Tensor:
    """A uniformly random subset of ``range(records)``, sorted."""
    if 4 * size > records:
        return torch.randperm(records, generator=generator)[:size].sort().values
    # Draw with replacement, and draw again for collisions: each new member is uniform among those not yet chosen.
    chosen = torch.empty(0, dtype=torch.int64)
    while len(chosen) < size:
        more = torch.randint(records, (size - len(chosen),), generator=generator)
        chosen = torch.cat([chosen, more]).unique()
    return chosen


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
