"""Labels by noisy voting: Gaussian noisy-max aggregation, plain or confident (Papernot et al. 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from privet.data import Split
from privet.errors import InputError, PrivetError
from privet.methods.teachers import KernelTeacher, OnStep, PublicView, Teach, ballots
from privet.methods.vote_analysis import DataDependent, analyse
from privet.privacy import Budget, Ledger, NoisyTopCount, NoisyVotes
from privet.randomness import Randomness, Source
from privet.randomness.sources import fill_normal


@dataclass(frozen=True)
class Confidence:
    """Answer only where the noisy largest count reaches `threshold` votes; `noise` is its standard deviation in votes."""

    threshold: float
    noise: float

    def __post_init__(self) -> None:
        if not 0 < self.noise < math.inf or not math.isfinite(self.threshold):
            raise InputError(
                f"Confident voting needs a threshold and a positive noise, not {self.threshold} and {self.noise}."
            )


@dataclass(frozen=True)
class Voting:
    """How labels are voted: how many teachers, and whether every query is answered or only those they are sure of."""

    teachers: int = 100
    confidence: Confidence | None = None


@dataclass(frozen=True, eq=False)
class Answers:
    """The labels that were released.

    Attributes:
        queries: the places of the queries that were answered, in order.
        labels: one for each of them.
        asked: how many queries there were.
        noise: the standard deviation of the noise on each count of votes.
        internal: the data-dependent cost of the same votes: not for release, and not part of any statement.
    """

    queries: Tensor
    labels: Tensor
    asked: int
    noise: float
    internal: DataDependent | None = field(default=None, repr=False)


def label_by_votes(
    records: Split,
    queries: Tensor,
    classes: int,
    *,
    budget: Budget,
    ledger: Ledger,
    randomness: Randomness,
    voting: Voting | None = None,
    teach: Teach | None = None,
    on_step: OnStep | None = None,
) -> Answers:
    """Labels for `queries` (public, or released before: artificial examples, say) from teachers of disjoint `records`.

    Args:
        records: what is protected, as a fixed transform or earlier releases give them.
        queries: in the same space; a row for each.
        classes: how many; public.
        budget: for everything in `ledger` and the votes together; the noise spends what is left of it.
        ledger: where checks and answers are recorded before their noise is drawn.
        voting: how many teachers, and whether they must be sure.
        teach: how each teacher learns and votes on `queries` as they are; by default a kernel classifier in a view of them.
        on_step: called after each teacher.

    Formal guarantees: one record changes one vote at each query (`privet.methods.teachers.ballots`). Which queries are
    answered is decided by a release of its own, then all answers together spend what is left whatever their number, so
    that the total is known before any vote is counted.
    """
    ledger.require_unit(records.unit)
    voting = voting or Voting()
    if len(queries) == 0:
        raise InputError("There is nothing to label: a vote needs at least one public record.")
    if teach is None:
        view = PublicView.of(queries)
        teach, queries = KernelTeacher(view), view(queries)
    counts = ballots(
        records,
        queries,
        classes,
        teachers=voting.teachers,
        teach=teach,
        source=randomness.sampling,
        on_step=on_step,
    )
    return answer(counts, voting.confidence, budget=budget, ledger=ledger, source=randomness.noise)


def answer(counts: Tensor, confidence: Confidence | None, *, budget: Budget, ledger: Ledger, source: Source) -> Answers:
    """The noisy winner at every query, or at those whose noisy largest count reaches the threshold."""
    asked = torch.arange(len(counts))
    left = budget.after(ledger, fixed_beforehand=True)
    if confidence is not None:
        checks = NoisyTopCount(confidence.noise) * len(counts)
        if not left.allows(checks):
            raise InputError(
                f"Whether the teachers are sure at {len(counts):,} queries costs more than the budget: "
                f"{left.spent(checks)}. Count with more noise, or ask fewer queries."
            )
        left = left.after(checks)
        asked = asked[noisy_top_counts(counts, confidence.noise, ledger, source) >= confidence.threshold]
        if len(asked) == 0:
            raise PrivetError(
                f"At none of {len(counts):,} queries did a class get {confidence.threshold:g} noisy votes: lower the threshold."
            )
    # How many are answered depends on a release, so the answers' noise is that of one release, spread over them: Gaussian
    # releases chosen after others cost what their total allows, which is fixed here (Smith and Thakurta 2022).
    sigma = left.least(NoisyVotes, math.sqrt(2), "noise of the votes") * math.sqrt(len(asked))
    labels = noisy_counts(counts[asked], sigma, ledger, source).argmax(1)
    return Answers(asked, labels, len(counts), sigma, analyse(counts, asked, sigma, confidence, budget.delta))


def noisy_counts(counts: Tensor, noise: float, ledger: Ledger, source: Source) -> Tensor:
    """The counts with Gaussian noise. Only the winners may be shown: the numbers are floats, and their low bits tell.

    Formal guarantees: one `NoisyVotes` for each query, in the ledger before the noise is drawn.
    """
    ledger.record(NoisyVotes(noise), count=len(counts))
    return counts + noise * _normal(counts.numel(), source).view(counts.shape)


def noisy_top_counts(counts: Tensor, noise: float, ledger: Ledger, source: Source) -> Tensor:
    """The largest count at each query with Gaussian noise; only whether it reaches a threshold may be shown.

    Formal guarantees: one `NoisyTopCount` for each query, in the ledger before the noise is drawn.
    """
    ledger.record(NoisyTopCount(noise), count=len(counts))
    return counts.max(1).values + noise * _normal(len(counts), source)


def _normal(count: int, source: Source) -> Tensor:
    return fill_normal(torch.empty(count, dtype=torch.float64), source)
