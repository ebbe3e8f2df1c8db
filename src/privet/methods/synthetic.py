"""Synthetic data in place of records: the order, what comes back, and the base of the methods that make it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from privet.data import Categorical, Numeric, Split
from privet.errors import InputError
from privet.methods.method import Context, Method, Outcome, Task, option
from privet.methods.private_accuracy import PrivateAccuracy, left_for_others
from privet.privacy import Budget, Gaussian, Ledger, Relation, UnsupportedEventError
from privet.training.logs import OnStep as OnStep

LABELS = ("protected", "votes")


@dataclass(frozen=True)
class Order:
    """What is asked of a method.

    Attributes:
        classes: how many classes there are; public.
        size: how many artificial examples to make.
        epsilon, delta: the budget for everything that looks at the records.
        labels: "protected", where a record's label is part of what is protected; "votes", where teachers of disjoint records
            vote on the labels of the examples (`privet.methods.voted_labels`), and a record is protected with its label.
        seed: makes the run repeatable; such examples are not for release.
        source: a name for the records, for the cache of their features.
        records: how many records there are, as far as that is public; 0 where nothing is known but the records.
        at_most: a public number that the records do not exceed; 0 where it is `records`.
        columns: of a table, those that became inputs, in their order; public.
    """

    classes: int
    size: int
    epsilon: float
    delta: float
    labels: str = "protected"
    seed: int | None = None
    source: str = "records"
    records: int = 0
    columns: tuple[Numeric | Categorical, ...] = ()
    at_most: int = 0

    def number_of(self, records: Split) -> int:
        """The public number of records: everything that a method derives from a number of records uses it."""
        return self.records or records.units

    def __post_init__(self) -> None:
        if self.size < self.classes:
            raise InputError(
                f"{self.size} examples are too few for {self.classes} classes: ask for at least one of each."
            )
        if not (math.isfinite(self.epsilon) and self.epsilon > 0) or not 0 < self.delta < 1:
            raise InputError(f"A budget of epsilon {self.epsilon} at delta {self.delta} cannot be kept.")
        if self.labels not in LABELS:
            raise InputError(f"Labels are {', '.join(LABELS)}, not {self.labels!r}.")


@dataclass(frozen=True, eq=False)
class Synthetic:
    """Artificial examples with what making them did to the records.

    Formal guarantees: nothing here but the ledger knows of the records; everything that is computed from it is
    post-processing.

    Attributes:
        inputs: as a network takes them (`privet.data.as_float`): float32, of the shape of a record, in [0, 1].
        labels: int64, one for each example.
        soft: for each example the probabilities of the classes, where a teacher gave them; float32.
        ledger: every use of the records.
        settings: the method's settings in words, for the page and the card.
        accountant: whose theorem calibrated the noise.
        place: where the noise enters, as `privet.report.places` names it; where it is not given, the ledger tells.
    """

    inputs: Tensor
    labels: Tensor
    soft: Tensor | None
    ledger: Ledger
    settings: dict[str, str] = field(default_factory=dict)
    accountant: str = "pld"
    place: str = ""

    def __post_init__(self) -> None:
        if self.inputs.dtype != torch.float32 or self.labels.dtype != torch.int64:
            raise InputError("Artificial inputs are float32 and their labels int64.")
        if len(self.inputs) != len(self.labels) or (self.soft is not None and len(self.soft) != len(self.labels)):
            raise InputError("There must be one label for each artificial example.")
        if not bool(self.inputs.isfinite().all()):
            raise InputError(
                "Some artificial examples are not finite: the training went astray; lower its learning rate."
            )

    @property
    def targets(self) -> Tensor:
        """What a student learns: the teacher's probabilities where there are any, else the labels."""
        return self.labels if self.soft is None else self.soft

    def split(self) -> Split:
        """The examples as a split, with their hard labels."""
        return Split(self.inputs, self.labels)


def check_classes(order: Order) -> None:
    """There is something to tell apart."""
    if order.classes < 2:
        raise InputError("There is one class only, and nothing to tell apart: name at least two classes.")


class Synthesizer(Protocol):
    """A method: a frozen dataclass of public settings that turns records into artificial examples."""

    @property
    def title(self) -> str:
        """Its name on a page, which says so where its epsilon is only claimed."""
        ...

    @property
    def relation(self) -> Relation:
        """The relation under which it accounts; its ledger is opened with it."""
        ...

    def synthesize(self, records: Split, order: Order, ledger: Ledger, on_step: OnStep | None = None) -> Synthetic:
        """Make the examples. Every use of `records` is in `ledger` before its noise is drawn.

        `on_step` is called as `privet.methods.dpsgd.train` calls it.
        """
        ...


S = TypeVar("S", bound="SyntheticMethod")
MOST = 30_000
"""Examples that are made at most where the user does not say how many."""


@dataclass(frozen=True, kw_only=True)
class SyntheticMethod(Method):
    """Base of the methods that make synthetic data: a subclass is a `Synthesizer` too.

    Formal guarantees: those of `synthesize`, of the votes on labels where they are asked for, and of a noisy accuracy where
    test records are protected; all are in one ledger within the task's budget.
    """

    makes = "data"

    size: int = option(0, f"how many examples to make; 0 for as many as records, at most {MOST:,}")
    labels: str = option("protected", "protected with the record, or votes: teachers of disjoint records vote on them")
    votes_share: float = option(0.5, "with votes: their share of the budget")
    teachers: int = option(0, "with votes: how many teachers; 0 for the usual number")
    queries: int = option(
        0, "with votes: how many examples the teachers are asked about; 0 for as many as the noise allows"
    )
    threshold: float = option(0.0, "with votes: answer only where a class has this many votes; 0 for all")
    threshold_noise: float = option(0.0, "with votes: the noise of the count that is compared with the threshold")

    def synthesize(self, records: Split, order: Order, ledger: Ledger, on_step: OnStep | None = None) -> Synthetic:
        """Make the examples. Every use of `records` is in `ledger` before its noise is drawn."""
        raise NotImplementedError

    def carried_to(self, other: S) -> S:
        """The other method with this one's size and labels."""
        shared = {each.name for each in fields(SyntheticMethod)} - {each.name for each in fields(Method)}
        return replace(other, **{name: getattr(self, name) for name in shared})

    def order(self, task: Task) -> Order:
        """The order for a task."""
        dataset = task.dataset
        return Order(
            classes=len(dataset.classes),
            records=dataset.size,
            at_most=dataset.at_most,
            size=self.size or min(dataset.size, MOST),
            epsilon=task.epsilon,
            delta=task.delta,
            labels=self.labels,
            seed=task.seed,
            source=dataset.name,
            columns=task.schema.features if task.schema is not None else (),
        )

    def fit(self, task: Task, context: Context) -> Outcome:
        order, maker = self.order(task), self._synthesizer(task)
        given = order
        if context.protect_test:  # without the share of the accuracy
            given = replace(order, epsilon=left_for_others(order.epsilon, order.delta, self.relation))
        made = maker.synthesize(task.dataset.train, given, context.ledger, context.on_step)
        accuracy = _charged(order, context.ledger, made.accountant) if context.protect_test else None
        return Outcome(
            made,
            settings=made.settings,
            accuracy=accuracy,
            accountant=made.accountant,
            noise_path=made.place,
        )

    def _synthesizer(self, task: Task) -> Synthesizer:
        if self.labels != "votes":
            return self
        from privet.methods.pate import usual_teachers
        from privet.methods.voted_labels import VotedLabels

        return VotedLabels(
            self,
            self.votes_share,
            self.teachers or usual_teachers(task.dataset.size, task.epsilon),
            self.queries,
            self.threshold,
            self.threshold_noise,
        )


def _charged(order: Order, ledger: Ledger, accountant: str) -> PrivateAccuracy | None:
    """The accuracy with its share of the budget, or with less where less is left, charged; None where nothing is left.

    The rest is counted by the method's own accountant, which is the one of a claim.
    """
    # The share of the accuracy and the noise of the method were fixed by the order, before anything was released.
    budget = Budget(order.epsilon, order.delta, ledger.relation, accountant).after(ledger, fixed_beforehand=True)
    planned = PrivateAccuracy.within(order.epsilon, order.delta, ledger.relation)
    try:
        measuring = PrivateAccuracy(max(budget.least(Gaussian), planned.noise_multiplier))
    except (InputError, UnsupportedEventError):
        return None  # the method has spent everything
    measuring.charge(ledger)
    return measuring
