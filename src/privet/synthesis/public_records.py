"""PATE for the table of students: public records with labels by vote, in place of artificial examples."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from privet.data import Dataset, Split, compute_features, set_aside
from privet.methods.pate import label_all, usual_teachers
from privet.methods.synthetic import OnStep, Order
from privet.methods.voting import Voting
from privet.models import scattering_linear
from privet.privacy import Budget, Ledger, PublicRecords
from privet.randomness import Randomness


@dataclass(frozen=True)
class VotedRecords:
    """So many test records are taken as public, without their labels, and are not tested on.

    Formal guarantees: those of `privet.methods.pate.label_all`; students see the public records and the labels alone.
    """

    count: int
    teachers: int

    @classmethod
    def fitting(cls, dataset: Dataset, order: Order) -> VotedRecords:
        """Half of the test records, and as many teachers as `privet train --method pate` has."""
        return cls(len(dataset.test) // 2, usual_teachers(order.records, order.epsilon))

    def label(
        self, dataset: Dataset, order: Order, ledger: Ledger, on_step: OnStep | None = None
    ) -> tuple[Tensor, Tensor, Split]:
        """The public images, their labels, and the test records that are left."""
        channels, height, width = dataset.shape
        model = scattering_linear(channels, height, width, order.classes)
        seen = set_aside(compute_features(dataset, model.features, model.key), self.count)
        divided = set_aside(dataset, self.count)
        ledger.record(PublicRecords(self.count, f"{self.count:,} of the test records of {dataset.name}"))
        _, labels = label_all(
            seen.train,
            seen["public"].tensors[0],
            order.classes,
            budget=Budget(order.epsilon, order.delta, ledger.relation),
            ledger=ledger,
            randomness=Randomness.of(order.seed),
            voting=Voting(self.teachers),
            on_step=on_step,
        )
        return divided["public"].tensors[0], labels, divided.test
