"""A data set: named splits of records, the class names, and a fingerprint."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet.data.schema import Numeric
from privet.errors import InputError

MOST_RECORDS = 10**15
"""The largest public number of records: the record of a run holds no larger one."""


def as_float(inputs: Tensor) -> Tensor:
    """Convert a batch for a network: float32, and images with a channel dimension.

    - uint8 values are pixels and are divided by 255, which gives [0, 1];
    - all other types are only cast to float32;
    - ``[N, H, W]`` becomes ``[N, 1, H, W]``; all other shapes stay as they are.
    """
    floats = inputs.to(torch.float32)
    if inputs.dtype == torch.uint8:
        floats = floats / 255
    return floats.unsqueeze(1) if floats.ndim == 3 else floats


@dataclass(frozen=True, eq=False)
class Split:
    """Records and their labels as stored; also a torch map-style data set of ``(x, y)`` pairs.

    Guaranteed: ``inputs`` and ``labels`` have the same length, which is not zero; labels are int64 and not negative, or, where a
    number is to be predicted, float32 and in [0, 1], the target scaled by its public bounds.
    ``inputs`` may be memory-mapped from the cache, so images use no memory until they are read; changes never reach the
    file (copy on write). ``split[i]``, ``batch`` and ``tensors`` convert the inputs with ``as_float``.
    """

    inputs: Tensor
    labels: Tensor
    users: Tensor | None = None
    """The number of each record's user, if the unit of privacy is a user. A user's number does not depend on the other users,
    because `divide` uses it."""

    def __post_init__(self) -> None:
        if self.labels.ndim != 1 or self.labels.dtype not in (torch.int64, torch.float32):
            raise InputError("labels must be a one-dimensional int64 tensor: convert them with labels.long().")
        if self.inputs.ndim < 2 or len(self.inputs) != len(self.labels):
            raise InputError(
                "inputs and labels do not match: give one row of inputs, with at least one number, for each label."
            )
        if len(self.labels) == 0:
            raise InputError("a split has no records: give at least one.")
        if self.is_regression and not bool(((self.labels >= 0) & (self.labels <= 1)).all()):
            raise InputError("targets must be in [0, 1]: scale them by their public bounds.")
        if int(self.labels.min()) < 0:
            raise InputError("labels must not be negative: number the classes from 0.")
        if self.users is not None and (self.users.shape != self.labels.shape or self.users.dtype != torch.int64):
            raise InputError("users must be a one-dimensional int64 tensor with an entry for each record.")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no record {index}")
        return as_float(self.inputs[index].unsqueeze(0))[0], self.labels[index]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (self[index] for index in range(len(self)))

    def batch(self, indices: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
        """The records at ``indices`` as one batch; only these are read and converted."""
        where = torch.as_tensor(indices, dtype=torch.int64)
        return as_float(self.inputs[where]), self.labels[where]

    @cached_property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """All records as ``(x, y)``, converted once and kept in memory. Use ``batch`` to save memory."""
        return as_float(self.inputs), self.labels

    def select(self, indices: Tensor | Sequence[int]) -> Split:
        """A split with only the records at ``indices``, in that order."""
        where = torch.as_tensor(indices, dtype=torch.int64)
        return Split(self.inputs[where], self.labels[where], None if self.users is None else self.users[where])

    def with_inputs(self, inputs: Tensor) -> Split:
        """The same records with other inputs; labels and users stay."""
        return Split(inputs, self.labels, self.users)

    @property
    def is_regression(self) -> bool:
        """Whether the labels are numbers to predict, and not classes."""
        return self.labels.is_floating_point()

    @property
    def unit(self) -> str:
        """The unit of privacy: "record" or "user"."""
        return "record" if self.users is None else "user"

    @cached_property
    def units(self) -> int:
        """The number of records, or of users if a user is the unit of privacy."""
        return len(self) if self.users is None else len(self.users.unique())

    @cached_property
    def shares(self) -> Tensor | None:
        """The weight of each record in a statistic, so that all records of a user weigh 1 together; None without users."""
        if self.users is None:
            return None
        _, owners, counts = self.users.unique(return_inverse=True, return_counts=True)
        shares: Tensor = 1 / counts.double()[owners]
        return shares

    def require_records(self, what: str) -> None:
        """Raise if a user is the unit of privacy: `what` has no proof for users with several records."""
        if self.users is not None:
            raise InputError(
                f"{what} protects records, and has no proof for users with several records: choose another method, or leave "
                "the users out to protect records."
            )


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set: a name, class names and splits.

    Guaranteed: every label is below ``len(classes)``; the records of all splits have the same shape and type.

    Attributes:
        name, classes, splits: the content.
        public_size: the public number of training records, or of users if a user is the unit of privacy; None if nothing is
            known except the records themselves.
        size_is_stated: whether the user stated `public_size`; otherwise it was computed from the records.
        measured_share: the share of a file's records that a keyed hash put into ``test``; 0 if the file was not divided.
        unprotected: whether the user asked that ``test`` is not protected.
        undivided: the fingerprint of the file before it was divided; empty if it was not divided.
        target: the number to predict, with its public bounds; None where classes are predicted.
    """

    name: str
    classes: tuple[str, ...]
    splits: Mapping[str, Split]
    public_size: int | None = None
    size_is_stated: bool = False
    measured_share: float = 0.0
    unprotected: bool = False
    undivided: str = ""
    target: Numeric | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "splits", MappingProxyType(dict(self.splits)))
        if not self.splits:
            raise InputError(f"{self.name} has no splits: give at least one.")
        kinds = {(split.inputs.shape[1:], split.inputs.dtype) for split in self.splits.values()}
        if len(kinds) > 1:
            raise InputError(f"the splits of {self.name} have records of different shapes or types: make them alike.")
        for title, split in self.splits.items():
            if split.is_regression != (self.target is not None) or (self.target is not None and self.classes):
                raise InputError(
                    f"{self.name}, split {title}: labels that are numbers need a target with its bounds and no classes, and "
                    "classes need labels that are int64."
                )
            if self.target is None and int(split.labels.max()) >= len(self.classes):
                raise InputError(
                    f"{self.name}, split {title}: a label is out of range for {len(self.classes)} classes: "
                    "name every class."
                )
        if self.public_size is not None and self.public_size < 1:
            raise InputError(f"The public number of records must be at least 1, and is {self.public_size}.")
        if self.public_size is not None and self.public_size > MOST_RECORDS:
            raise InputError(f"The public number of records is at most {MOST_RECORDS:,}: state a smaller one.")

    def __reduce__(self) -> tuple[type[Dataset], tuple[Any, ...]]:
        # A read-only mapping cannot be pickled.
        told = (
            self.public_size,
            self.size_is_stated,
            self.measured_share,
            self.unprotected,
            self.undivided,
            self.target,
        )
        return Dataset, (self.name, self.classes, dict(self.splits), *told)

    def __getitem__(self, split: str) -> Split:
        try:
            return self.splits[split]
        except KeyError:
            raise InputError(f"{self.name} has no split {split!r}: it has {', '.join(self.splits)}.") from None

    def __len__(self) -> int:
        """The number of records in all splits together."""
        return sum(len(split) for split in self.splits.values())

    @property
    def train(self) -> Split:
        return self["train"]

    @property
    def test(self) -> Split:
        return self["test"]

    @property
    def outputs(self) -> int:
        """How many numbers a model of these records gives: one for each class, or one for a target."""
        return 1 if self.target is not None else len(self.classes)

    @property
    def size(self) -> int:
        """The public number of training records, or users. Everything that depends on a size uses this number."""
        return self.public_size if self.public_size is not None else self.train.units

    @property
    def at_most(self) -> int:
        """A public upper bound of the number of training records, if the public size is right: the size of the file."""
        return math.ceil(round(self.size / (1 - self.measured_share), 6))

    @property
    def protected(self) -> int:
        """The public number of protected records: delta should be below 1 over this number."""
        return self.size if self.unprotected else self.at_most

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record as a network gets it: ``(1, 28, 28)`` for MNIST."""
        return tuple(next(iter(self.splits.values()))[0][0].shape)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 in hex over class names, split names, shapes, types and contents, but not the name of the data set.

        The same records in the same order have the same fingerprint, whatever reader or source they come from.
        """
        digest = hashlib.sha256()
        digest.update(repr(self.classes).encode())
        for title, split in sorted(self.splits.items()):
            for part in (split.inputs, split.labels):
                digest.update(repr((title, tuple(part.shape), str(part.dtype))).encode())
                digest.update(part.contiguous().numpy().reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    @property
    def origin(self) -> str:
        """The fingerprint of the original records, which does not depend on how a file is divided."""
        return self.undivided or self.fingerprint

    def __repr__(self) -> str:
        counts = ", ".join(f"{title} {len(split)}" for title, split in self.splits.items())
        predicted = f"{len(self.classes)} classes" if self.target is None else f"target {self.target.name}"
        return f"Dataset({self.name}: {counts}; records {self.shape}; {predicted})"


TEN_DIGITS = tuple("0123456789")


def check_labels(path: Path, labels: NDArray[Any], classes: Sequence[str]) -> Tensor:
    """The labels as an int64 tensor of indices into ``classes``; otherwise InputError with the first bad record."""
    wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(wrong):
        raise InputError(
            f"{path}, record {wrong[0] + 1}: the label is out of range for {len(classes)} classes "
            f"(0 to {len(classes) - 1}): fix the record, or declare more classes."
        )
    return torch.from_numpy(labels.astype(np.int64))
