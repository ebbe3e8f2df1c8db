"""Teachers: classifiers that each saw a part of the records that no other one saw, and vote (Papernot et al. 2017)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from privet.data import Split
from privet.errors import InputError, PrivetError
from privet.randomness import SecureSource, Source

_FARTHEST = 1e3
"""Coordinates beyond this many typical distances are cut: a kernel is 0 there anyway, and sums stay finite."""
_CHUNK = 1000

OnStep = Callable[[dict[str, Any]], None]
Votes = Callable[[Tensor], Tensor]
"""From queries to one class for each."""


class Teach(Protocol):
    """How a teacher learns its part: a function of these records alone, and of nothing that other teachers saw."""

    def __call__(self, inputs: Tensor, labels: Tensor, classes: int) -> Votes: ...


@dataclass(frozen=True, eq=False)
class PublicView:
    """Leading principal components of public records, in which two of them are at a mean squared distance of 1.

    Formal guarantees: it is a function of the public records alone.
    """

    mean: Tensor
    directions: Tensor

    @classmethod
    def of(cls, public: Tensor, components: int = 150) -> PublicView:
        rows = public.flatten(1)
        mean = rows.mean(0)
        centred = rows - mean
        generator = torch.Generator().manual_seed(0)
        # Always the same start: a view that differed from call to call could not be told from one that saw records.
        kept = min(components, *rows.shape)
        start = torch.randn(rows.shape[1], min(kept + 20, *rows.shape), generator=generator)
        basis = torch.linalg.qr(centred @ start).Q
        for _ in range(2):
            basis = torch.linalg.qr(centred @ (centred.mT @ basis)).Q
        directions = torch.linalg.svd(basis.mT @ centred, full_matrices=False).Vh[:kept].mT
        spread = float((centred @ directions).square().sum()) / len(rows)
        if not spread > 0:
            raise InputError("All public records are alike: they cannot tell what private ones have in common.")
        return cls(mean, directions / (2 * spread) ** 0.5)

    def __call__(self, rows: Tensor) -> Tensor:
        seen = [(chunk.flatten(1) - self.mean) @ self.directions for chunk in rows.split(_CHUNK)]
        return torch.cat(seen).nan_to_num(0.0, 0.0, 0.0).clamp(-_FARTHEST, _FARTHEST)


def kernel(one: Tensor, other: Tensor) -> Tensor:
    """Gaussian, as wide as the typical distance of public records."""
    return torch.cdist(one, other).square_().neg_().exp_()


@dataclass(frozen=True, eq=False)
class KernelTeacher:
    """Least squares in the space of a Gaussian kernel, in closed form: the same part always gives the same teacher.

    Records go through `view` here; queries must have gone through it before, once for all teachers.
    """

    view: PublicView
    ridge: float = 0.01

    def __call__(self, inputs: Tensor, labels: Tensor, classes: int) -> Votes:
        known = self.view(inputs)
        targets = one_hot(labels, classes).to(known.dtype) - 1 / classes
        weights = torch.linalg.solve(kernel(known, known) + self.ridge * torch.eye(len(known)), targets)

        def votes(queries: Tensor) -> Tensor:
            return torch.cat([(kernel(chunk, known) @ weights).argmax(1) for chunk in queries.split(_CHUNK)])

        return votes


def parts(records: int, teachers: int, source: Source, owners: Tensor | None = None) -> Iterator[Tensor]:
    """The places of the records of each teacher: every record goes to one of them, drawn for it alone.

    Where records have `owners`, numbered from 0 on, all of one user go to one teacher, drawn for that user alone.

    Formal guarantees: disjoint, and all records are in them. Whether a record is there does not move any other (a cut
    into parts of equal size would move them all), so that adding, removing or replacing it changes one part. So does a user.
    """
    units = records if owners is None else int(owners.max()) + 1
    if isinstance(source, SecureSource):
        drawn = source.integers(units).remainder(teachers)
    else:
        drawn = torch.randint(teachers, (units,), generator=source)
    drawn = drawn if owners is None else drawn[owners]
    order = drawn.argsort(stable=True)
    yield from order.split(drawn.bincount(minlength=teachers).tolist())


def check_teachers(teachers: int, records: int, classes: int) -> None:
    """There is something to vote on, and somebody to vote."""
    if classes < 2:
        raise InputError("Teachers vote between classes, and there is only one.")
    if teachers < 2:
        raise InputError(f"A vote needs at least two teachers, and {teachers} was asked for.")
    if teachers > records:
        raise InputError(f"There are fewer records than {teachers:,} teachers: ask for fewer teachers.")


def ballots(
    records: Split,
    queries: Tensor,
    classes: int,
    *,
    teachers: int,
    teach: Teach,
    source: Source,
    on_step: OnStep | None = None,
) -> Tensor:
    """How many teachers vote for each class at each query: a tensor ``(queries, classes)`` that is not for release.

    Formal guarantees: one record, added, removed or replaced, changes one teacher, so that at each query at most one vote
    moves from a class to another. A teacher that got no record votes for the first class.
    """
    check_teachers(teachers, records.units, classes)
    owners = None if records.users is None else records.users.unique(return_inverse=True)[1]
    counts = torch.zeros(len(queries), classes, dtype=torch.int64)
    for number, part in enumerate(parts(len(records), teachers, source, owners), 1):
        votes = torch.zeros(len(queries), dtype=torch.int64)
        if len(part):
            votes = teach(*records.batch(part), classes)(queries)
        if votes.shape != (len(queries),) or not bool(((votes >= 0) & (votes < classes)).all()):
            raise PrivetError(f"Teacher {number} did not give one class from 0 to {classes - 1} for each query.")
        counts += one_hot(votes, classes)
        if on_step is not None:
            on_step({"what": "Teachers", "step": number, "steps": teachers})
    return counts
