"""The accuracy of a classifier on protected records: noisy counts, charged before they are read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy import stats
from torch import Tensor

from privet.clipping.bounded import clipped_sum, grouped_count
from privet.errors import PrivetError
from privet.noise import GaussianNoise
from privet.privacy import Budget, Event, Gaussian, Ledger, Relation
from privet.randomness import Randomness

SHARE = 0.05
"""The share of the budget, in mu^2 of the Gaussian trade-off, where releases add up; other noise becomes 2.6 % larger."""
LEVEL = 0.95


@dataclass(frozen=True)
class Measured:
    """An accuracy that may be published.

    Attributes:
        accuracy: the share of the records that the model labels correctly.
        low, high: an interval that covers the noise and the choice of the records, with probability `level`.
        majority: the share of the most frequent class, which is the accuracy of always answering it.
        noise: the standard deviation of the noise on each count.
    """

    accuracy: float
    low: float
    high: float
    majority: float
    noise: float
    level: float = LEVEL


@dataclass(frozen=True)
class MeasuredError:
    """The error of a regression that may be published, in the unit of the target.

    Attributes:
        error: the root of the mean squared error. With noise, an error above half of the target's range counts as half of it.
        low, high: an interval that covers the noise and the choice of the records, with probability `level`.
        constant: the same error of the best constant, which is the standard deviation of the targets.
        noise: the standard deviation of the noise on each of the sums; 0 where nothing was noised.
    """

    error: float
    low: float
    high: float
    constant: float
    noise: float
    level: float = LEVEL


@dataclass(frozen=True)
class PrivateAccuracy:
    """Noisy counts of right and wrong answers for each class, or noisy sums of the errors of a regression.

    If the records have users, all records of a user together count 1.

    Formal guarantees: a record is in one of the counts and changes it by 1, so all of them together are one release of
    sensitivity 1, which is one `Gaussian` event; a user changes all of them together by 1. `charge` writes the event into the
    ledger; `read` refuses a ledger without it. Everything else is computed from the noisy counts. For a regression the release
    is the sum of one vector for each record, clipped to length 1 (`read_error`): the same event. One of the two is read.
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
        """Record the event before the counts are computed and before the noise of a training is calibrated."""
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
        """The noisy accuracy; call it once for each charge.

        Args:
            predicted, labels: classes from 0, one for each record.
            classes: how many there are; public.
            ledger: where the event was charged.
            randomness: where the noise comes from; no other release may draw from it.
            shares: what each record counts, as in `Split.shares`.
        """
        self._require_charge(ledger, shares)
        cells = 2 * labels + (predicted == labels).long()
        counts = grouped_count(cells, 2 * classes, shares)
        noisy = GaussianNoise(self.noise_multiplier).add(counts, randomness.noise)["sum"]
        return measured(noisy.reshape(classes, 2), self.noise_multiplier)

    def read_error(
        self,
        predicted: Tensor,
        targets: Tensor,
        span: float,
        *,
        ledger: Ledger,
        randomness: Randomness,
        shares: Tensor | None = None,
    ) -> MeasuredError:
        """The noisy error of a regression; call it once for each charge, instead of `read`.

        Formal guarantees: a record adds half of (1, 4 e^2, 2 z, 4 z^2) to the sum, where e is its error and z its target minus
        one half, both clipped to [-1/2, 1/2]. No entry exceeds 1, so half of the vector has a norm of at most 1, to which it is
        clipped.
        A prediction that is not finite counts as an error of one half.

        Args:
            predicted, targets: one for each record, scaled so that targets are in [0, 1].
            span: the length of the target's range, public; the result is in its unit.
            ledger, randomness, shares: as in `read`.
        """
        self._require_charge(ledger, shares)
        off = (predicted - targets).double().nan_to_num(nan=0.5, posinf=0.5, neginf=-0.5)
        error, place = (value.clamp(-0.5, 0.5) for value in (off, targets.double() - 0.5))
        rows = torch.stack([torch.ones_like(error), 4 * error**2, 2 * place, 4 * place**2], 1) / 2
        total = clipped_sum(rows, 1.0, shares)
        noisy = 2 * GaussianNoise(self.noise_multiplier).add(total, randomness.noise)["sum"]
        return _measured_error(noisy.tolist(), span, 2 * self.noise_multiplier)

    def _require_charge(self, ledger: Ledger, shares: Tensor | None) -> None:
        if self.event not in {event for event, _ in ledger}:
            raise PrivetError("The accuracy of protected records must be charged to the ledger before it is read.")
        ledger.require_unit("record" if shares is None else "user")


def left_for_others(epsilon: float, delta: float, relation: Relation | str = Relation.ADD_REMOVE) -> float:
    """The epsilon of the budget without the share of the accuracy, for a method that spends its whole budget."""
    noise = _whole(epsilon, delta, relation) / math.sqrt(1 - SHARE)
    return Budget(epsilon, delta, relation, "gdp").spent(Gaussian(noise)).epsilon


def measured(counts: Tensor, noise: float) -> Measured:
    """The accuracy that follows from noisy counts ``(classes, 2)`` of wrong and right answers."""
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


def _measured_error(sums: Sequence[float], span: float, noise: float) -> MeasuredError:
    """The error computed from noisy sums of 1, 4 e^2, 2 z and 4 z^2."""
    count, squares, places, place_squares = sums
    if count < 1:  # so few records that the noise hides them
        return MeasuredError(span / 2, 0.0, span / 2, span / 2, noise)
    mean = min(max(squares / count, 0.0), 1.0)
    # Of a ratio of two noisy sums; then that of drawing the records, whose entries are in [0, 1].
    spread = (noise**2 * (1 + mean**2) + count * mean * (1 - mean) + 1) / count**2
    reach = float(stats.norm.ppf((1 + LEVEL) / 2)) * math.sqrt(spread)
    varied = min(max(place_squares / count - (places / count) ** 2, 0.0), 1.0)
    error, low, high, constant = (
        span / 2 * math.sqrt(min(max(value, 0.0), 1.0)) for value in (mean, mean - reach, mean + reach, varied)
    )
    return MeasuredError(error, low, high, constant, noise)


def error_exactly(predicted: Tensor, targets: Tensor, span: float) -> MeasuredError:
    """The exact error on public or unprotected records, and that of the best constant in hindsight."""
    squares = (predicted - targets).double() ** 2
    mean = float(squares.mean())
    spread = float(squares.std()) / math.sqrt(len(squares)) if len(squares) > 1 else mean
    reach = float(stats.norm.ppf((1 + LEVEL) / 2)) * spread
    low, error, high = (span * math.sqrt(max(value, 0.0)) for value in (mean - reach, mean, mean + reach))
    return MeasuredError(error, low, high, span * float(targets.double().std(correction=0)), 0.0)


def _whole(epsilon: float, delta: float, relation: Relation | str) -> float:
    """The noise of one Gaussian release that spends all of the budget."""
    return Budget(epsilon, delta, relation, "gdp").least(Gaussian)


def exactly(predicted: Tensor, labels: Tensor, classes: int) -> Measured:
    """The exact accuracy on public or unprotected records."""
    right, total = int((predicted == labels).sum()), len(labels)
    found = stats.binomtest(right, total).proportion_ci(LEVEL, method="wilson")
    majority = int(torch.bincount(labels, minlength=classes).max()) / total
    return Measured(right / total, float(found.low), float(found.high), majority, 0.0)
