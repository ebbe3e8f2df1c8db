"""Synthetic data in place of records: the order, the result, and the base class of the methods that make it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from privet.audit import Audit
from privet.data import Categorical, Numeric, Progress, Split
from privet.errors import InputError
from privet.io import in_bytes, memory_here
from privet.methods.method import Context, Method, Outcome, Power, Ran, Task, option
from privet.methods.private_accuracy import PrivateAccuracy, left_for_others
from privet.methods.statistics import releases_in
from privet.privacy import Budget, Event, Gaussian, Ledger, Relation, UnsupportedEventError
from privet.training import Plan
from privet.training.identity import plain, rebuild
from privet.training.logs import OnStep as OnStep

LABELS = ("protected", "votes")


@dataclass(frozen=True)
class Order:
    """The order for a method that makes synthetic data.

    Attributes:
        classes: the public number of classes.
        size: the number of artificial examples to make.
        epsilon, delta: the budget for every use of the records.
        labels: "protected" if a record's label is protected with it; "votes" if teachers of disjoint records also vote on the
            labels of the examples (`privet.methods.pate`).
        seed: makes the run repeatable; such examples are not for release.
        source: a name for the records, for the cache of their features.
        records: the public number of records; 0 if none was stated.
        at_most: a public upper bound on the number of records; 0 if it is `records`.
        columns: for a table, the public columns that became inputs, in their order.
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
    """Artificial examples and the ledger of everything that was done to the records to make them.

    Formal guarantees: everything that is computed from the examples is post-processing.

    Attributes:
        inputs: in the form for a network (`privet.data.as_float`): float32, of the shape of a record, in [0, 1].
        labels: int64, one for each example.
        soft: for each example the probabilities of the classes, if a teacher gave them; float32.
        ledger: every use of the records.
        settings: the method's settings in words, for the page and the card.
        accountant: the accountant that calibrated the noise.
        place: where the noise enters, as `privet.report.places` names it; if empty, it follows from the ledger.
        plan: the plan of the private steps, which an audit rebuilds; None if there are none.
        steps: number of steps that were done.
    """

    inputs: Tensor
    labels: Tensor
    soft: Tensor | None
    ledger: Ledger
    settings: dict[str, str] = field(default_factory=dict)
    accountant: str = "pld"
    place: str = ""
    plan: Plan | None = None
    steps: int = 0

    def __post_init__(self) -> None:
        if self.inputs.dtype != torch.float32 or self.labels.dtype != torch.int64:
            raise InputError("Artificial inputs are float32 and their labels int64.")
        if len(self.inputs) != len(self.labels) or (self.soft is not None and len(self.soft) != len(self.labels)):
            raise InputError("There must be one label for each artificial example.")
        if not bool(self.inputs.isfinite().all()):
            raise InputError("Some artificial examples are not finite: the training diverged; lower its learning rate.")

    @property
    def targets(self) -> Tensor:
        """The targets of a student: the teacher's probabilities if there are any, otherwise the labels."""
        return self.labels if self.soft is None else self.soft

    def split(self) -> Split:
        """The examples as a split, with their hard labels."""
        return Split(self.inputs, self.labels)


def check_classes(order: Order) -> None:
    """Raise unless there are at least two classes."""
    if order.classes < 2:
        raise InputError("There is only one class: name at least two classes.")


class Synthesizer(Protocol):
    """A method: a frozen dataclass of public settings that turns records into artificial examples."""

    @property
    def title(self) -> str:
        """Its name on a page; it says so if its epsilon is only claimed."""
        ...

    @property
    def relation(self) -> Relation:
        """The relation under which it accounts; its ledger is opened with it."""
        ...

    def synthesize(self, records: Split, order: Order, context: Context) -> Synthetic:
        """Make the examples. Every use of `records` is in the ledger of `context` before its result is used.

        What was paid for is kept in its folder, if it has one: a run that was killed goes on from there.
        """
        ...


S = TypeVar("S", bound="SyntheticMethod")
MOST = 30_000
"""The largest default number of examples."""


@dataclass(frozen=True, kw_only=True)
class SyntheticMethod(Method):
    """Base of the methods that make synthetic data: a subclass is a `Synthesizer` too.

    Formal guarantees: those of `synthesize`, of votes on labels if they are used, and of a noisy accuracy if test records are
    protected; all are in one ledger within the task's budget.
    """

    makes = "data"
    limits: ClassVar[dict[str, str]] = {"votes_share": "(0, 1)"}
    size: int = option(0, f"number of examples; 0 for as many as records, at most {MOST:,}")
    labels: str = option("protected", "protected with the record, or votes: teachers of disjoint records vote on them")
    votes_share: float = option(0.5, "with votes: their share of the budget")
    teachers: int = option(0, "with votes: number of teachers; 0 for the usual number")
    queries: int = option(
        0, "with votes: number of examples that the teachers label; 0 for as many as the noise allows"
    )
    threshold: float = option(0.0, "with votes: answer only if a class has this many votes; 0 for all")
    threshold_noise: float = option(0.0, "with votes: the noise of the count that is compared with the threshold")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labels not in LABELS:
            raise InputError(f"Labels are {' or '.join(LABELS)}, not {self.labels!r}.")

    @property
    def full_title(self) -> str:
        return f"{self.title}, labeled by noisy votes" if self.labels == "votes" else self.title

    def synthesize(self, records: Split, order: Order, context: Context) -> Synthetic:
        """Make the examples. Every use of `records` is in the ledger of `context` before its result is used."""
        raise NotImplementedError

    def carried_to(self, other: S) -> S:
        """The other method with this one's size and labels."""
        shared = {each.name for each in fields(SyntheticMethod)} - {each.name for each in fields(Method)}
        return replace(other, **{name: getattr(self, name) for name in shared})

    def order(self, task: Task) -> Order:
        """The order for a task. One that does not fit into the machine's memory is refused."""
        dataset = task.dataset
        size = self.size or min(dataset.size, MOST)
        if (needed := 8 * size * (math.prod(dataset.shape) + 1)) > (there := memory_here()):
            raise InputError(
                f"{size:,} examples take {in_bytes(needed)} of memory, and this machine has {in_bytes(there)}: ask for a smaller "
                "size."
            )
        return Order(
            classes=len(dataset.classes),
            records=dataset.size,
            at_most=dataset.at_most,
            size=size,
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
        made = kept("synthetic", context, lambda: maker.synthesize(task.dataset.train, given, context))
        accuracy = _charged(order, context, made.accountant) if context.protect_test else None
        return Outcome(
            made,
            plan=made.plan,
            steps=made.steps,
            settings=made.settings,
            accuracy=accuracy,
            accountant=made.accountant,
            noise_path=made.place,
        )

    def _check_without_votes(self) -> None:
        for each in fields(SyntheticMethod):
            if each.metadata.get("meaning", "").startswith("with votes") and getattr(self, each.name) != each.default:
                raise InputError(
                    f"The setting {each.name} is used for labels by votes: ask for them (--labels votes, or labels='votes'), or "
                    f"leave it out."
                )

    def statistics(self) -> tuple[str, ...]:
        """The releases of `privet.methods.statistics` that it makes, in their order; an audit runs their code."""
        return ()

    def release_audits(
        self, ran: Ran, power: Power, progress: Progress | None = None
    ) -> tuple[tuple[Audit, ...], Event]:
        from privet.methods.voting import voting_audits

        asked = power.asked(ran.delta, progress)
        found, covered = releases_in(ran.ledger, self.statistics(), **asked)
        votes, voted = voting_audits(ran.ledger, **asked)
        return (*found, *votes), covered + voted

    def _synthesizer(self, task: Task) -> Synthesizer:
        if self.labels != "votes":
            self._check_without_votes()
            return self
        from privet.methods.pate import VotedLabels, usual_teachers

        return VotedLabels(
            self,
            self.votes_share,
            self.teachers or usual_teachers(task.dataset.size, task.epsilon),
            self.queries,
            self.threshold,
            self.threshold_noise,
        )


def kept(name: str, context: Context, make: Callable[[], Synthetic]) -> Synthetic:
    """The examples that the run kept under this name, or new ones, which are written to the disk before they are used."""
    if context.folder is None:
        return make()

    def examples() -> dict[str, Any]:
        made = make()
        values = {each.name: getattr(made, each.name) for each in fields(Synthetic) if each.name != "ledger"}
        return values | {"plan": None if made.plan is None else plain(made.plan)}

    found = context.releases.keep(name, examples)
    return Synthetic(**found | {"ledger": context.ledger, "plan": rebuild(found["plan"], part="the plan")})


def _charged(order: Order, context: Context, accountant: str) -> PrivateAccuracy | None:
    """Charge the accuracy with its share of the budget, or with what is left; None if nothing is left.

    The method's own accountant computes what is left.
    """

    def charge(ledger: Ledger) -> float | None:
        # The share of the accuracy and the noise of the method were fixed by the order, before anything was released.
        budget = Budget(order.epsilon, order.delta, ledger.relation, accountant).after(ledger, fixed_beforehand=True)
        planned = PrivateAccuracy.within(order.epsilon, order.delta, ledger.relation)
        try:
            measuring = PrivateAccuracy(max(budget.least(Gaussian), planned.noise_multiplier))
        except (InputError, UnsupportedEventError):
            return None  # the method has spent everything
        measuring.charge(ledger)
        return measuring.noise_multiplier

    noise = context.releases.get("accuracy", charge)
    return None if noise is None else PrivateAccuracy(noise)
