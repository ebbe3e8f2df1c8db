"""The accuracy of a classifier on protected records: noisy counts, charged before they are read."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from privet.clipping.rows import grouped_count
from privet.errors import PrivetError
from privet.noise import GaussianNoise
from privet.privacy import Budget, Event, Gaussian, Ledger, Relation
from privet.randomness import Randomness

SHARE = 0.05
"""Of the budget, in mu^2 of the Gaussian trade-off, in which Gaussian releases add up; it makes other noise 2.6 % larger."""
LEVEL = 0.95


@dataclass(frozen=True)
class Measured:
    """An accuracy that may be published.

    Attributes:
        accuracy: the share of the records whose label the model gives.
        low, high: an interval that covers the noise and the choice of the records, with probability `level`.
        majority: the share of the most frequent class: what a model that always answers it has right.
        noise: the standard deviation of the noise on each count.
    """

    accuracy: float
    low: float
    high: float
    majority: float
    noise: float
    level: float = LEVEL


@dataclass(frozen=True)
class PrivateAccuracy:
    """How many records of each class a model has right and wrong, each count with Gaussian noise.

    Where the records have users, each user counts 1 with all their records.

    Formal guarantees: a record is in one of the counts and changes it by 1, so all of them together are one release of
    sensitivity 1, which is one `Gaussian` event; a user changes all of them together by 1. `charge` writes the event into the
    ledger; `read` refuses a ledger without it. Everything else is computed from the noisy counts.
    """

    noise_multiplier: float

    @classmethod
    def within(cls, epsilon: float, delta: float, relation: Relation | str = Relation.ADD_REMOVE) -> PrivateAccuracy:
        """The noise for a share of `SHARE` of the budget."""
        return cls(_whole(epsilon, delta, relation) / math.sqrt(SHARE))

    @property
    def event(self) -> Event:
        return GaussianNoise(self.noise_multiplier).event()

    def charge(self, ledger: Ledger) -> None:
        """Write the event down, before the counts are read and before the noise of a training is calibrated."""
        ledger.record(self.event)

    def read(
        self,
        predicted: Tensor,
        labels: Tensor,
        classes: int,
        *,
        ledger: Ledger,
        randomness: Randomness,
        shares: Tensor | None = None,
    ) -> Measured:
        """The noisy accuracy; to be read once for each charge.

        Args:
            predicted, labels: classes from 0, one for each record.
            classes: how many there are; public.
            ledger: where the event was charged.
            randomness: where the noise comes from; no other release may draw from it.
            shares: what each record counts, as in `Split.shares`.
        """
        if self.event not in {event for event, _ in ledger}:
            raise PrivetError("The accuracy of protected records was to be read before it was charged to the ledger.")
        ledger.require_unit("record" if shares is None else "user")
        cells = 2 * labels + (predicted == labels).long()
        counts = grouped_count(cells, 2 * classes, shares)
        noisy = GaussianNoise(self.noise_multiplier).add(counts, randomness.noise)["sum"]
        return measured(noisy.reshape(classes, 2), self.noise_multiplier)


def left_for_others(epsilon: float, delta: float, relation: Relation | str = Relation.ADD_REMOVE) -> float:
    """The epsilon of the budget without the share of the accuracy, for a method that spends all that it is given."""
    noise = _whole(epsilon, delta, relation) / math.sqrt(1 - SHARE)
    return Budget(epsilon, delta, relation, "gdp").spent(Gaussian(noise)).epsilon


def measured(counts: Tensor, noise: float) -> Measured:
    """What noisy counts ``(classes, 2)``, wrong and right, say of the accuracy."""
    classes = len(counts)
    right, total = float(counts[:, 1].sum()), float(counts.sum())
    if total < 1:  # so few records that the noise hides them
        return Measured(0.0, 0.0, 1.0, 1.0, noise)
    accuracy = min(max(right / total, 0.0), 1.0)
    # Of right / (right + wrong), each with the noise of one count for each class; then that of drawing the records.
    spread = noise**2 * classes * ((1 - accuracy) ** 2 + accuracy**2) / total**2
    # Wilson's variance: not zero at an accuracy of 0 or 1.
    sampled = accuracy * (1 - accuracy) / total + 1 / total**2
    reach = float(stats.norm.ppf((1 + LEVEL) / 2)) * math.sqrt(spread + sampled)
    majority = min(max(float(counts.sum(1).max()) / total, 1 / classes), 1.0)
    return Measured(accuracy, max(accuracy - reach, 0.0), min(accuracy + reach, 1.0), majority, noise)


def _whole(epsilon: float, delta: float, relation: Relation | str) -> float:
    """The noise of one Gaussian release that spends all of the budget."""
    return Budget(epsilon, delta, relation, "gdp").least(Gaussian)


def exactly(predicted: Tensor, labels: Tensor, classes: int) -> Measured:
    """The accuracy on records that are public, or that their holder leaves without protection: counted, not noisy."""
    right, total = int((predicted == labels).sum()), len(labels)
    found = stats.binomtest(right, total).proportion_ci(LEVEL, method="wilson")
    majority = int(torch.bincount(labels, minlength=classes).max()) / total
    return Measured(right / total, float(found.low), float(found.high), majority, 0.0)
