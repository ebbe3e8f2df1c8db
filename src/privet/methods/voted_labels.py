"""Labels of artificial examples by noisy voting: any method makes the inputs, teachers of disjoint records name them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privet.data import Dataset, Split, compute_features
from privet.errors import InputError
from privet.methods.class_moments import scatters
from privet.methods.pate import label_all
from privet.methods.synthetic import OnStep, Order, Synthesizer, Synthetic
from privet.methods.voting import Answers, Confidence, Voting, check_teachers
from privet.models import scattering_linear
from privet.privacy import Budget, Gaussian, Ledger, Relation
from privet.randomness import Randomness

_AT_ONCE = 128


@dataclass(frozen=True)
class VotedLabels:
    """A method's examples with other labels: those that win the votes of teachers, each of a part of the records.

    Formal guarantees: those of `method`, and of `privet.methods.voting.label_by_votes` with the examples as queries, which
    were released before: all is in one ledger, and the votes spend what `method` left of the order's budget. A record is
    protected with its label.

    Attributes:
        method: makes the examples; the labels that it gives them are not used.
        votes_share: of the budget (of mu^2 of the Gaussian trade-off, in which releases add up) for the votes.
        teachers: how many parts the records are dealt out to.
        queries: how many examples the teachers are asked about; 0 means as many as their noise allows. Examples that were
            not asked about, or not answered, get the label of those that are alike, and so do answered ones.
        threshold, threshold_noise: of confident voting: answer where the largest count, with noise, reaches so many votes; a
            noise of 0 means that every query is answered.
    """

    method: Synthesizer
    votes_share: float = 0.5
    teachers: int = 250
    queries: int = 0
    threshold: float = 0.0
    threshold_noise: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.votes_share < 1:
            raise InputError(f"votes_share is a part of the budget, between 0 and 1, and is {self.votes_share:g}.")
        if (self.threshold > 0) != (self.threshold_noise > 0):
            raise InputError("Confident voting takes both a threshold and a threshold_noise above 0, in votes.")

    @property
    def title(self) -> str:
        return f"{self.method.title}, labelled by noisy votes"

    @property
    def relation(self) -> Relation:
        return self.method.relation

    def synthesize(self, records: Split, order: Order, ledger: Ledger, on_step: OnStep | None = None) -> Synthetic:
        check_teachers(self.teachers, order.number_of(records), order.classes)
        if self.queries > order.size:
            raise InputError(f"{self.queries:,} queries cannot be asked of {order.size:,} examples.")
        made = self.method.synthesize(records, self._for_inputs(order), ledger, on_step)
        known, asked = _seen(records, made.inputs, order)
        sure = Confidence(self.threshold, self.threshold_noise) if self.threshold_noise else None
        answers, labels = label_all(
            known,
            asked,
            order.classes,
            budget=Budget(order.epsilon, order.delta, ledger.relation),
            ledger=ledger,
            randomness=Randomness.apart("votes", order.seed),
            voting=Voting(self.teachers, sure),
            queries=self.queries or None,
            on_step=on_step,
        )
        settings = made.settings | {
            "Votes": f"with {100 * self.votes_share:g} % of the budget",
            "Labels": self._told(answers, order),
        }
        return Synthetic(made.inputs, labels, None, ledger, settings, place="voted labels")

    def _for_inputs(self, order: Order) -> Order:
        """The order to the method: what is left of the budget without the share of the votes."""
        budget = Budget(order.epsilon, order.delta, self.relation, "gdp")
        noise = budget.least(Gaussian) / math.sqrt(1 - self.votes_share)
        return replace(order, epsilon=budget.spent(Gaussian(noise)).epsilon, labels="protected")

    def _told(self, answers: Answers, order: Order) -> str:
        answered = "all answered"
        if self.threshold_noise:
            answered = (
                f"{len(answers.labels):,} answered, with {self.threshold:g} votes and noise of {self.threshold_noise:g}"
            )
        return (
            f"by vote of {self.teachers:,} teachers, each of its own part of the records; {answers.asked:,} of {order.size:,} "
            f"examples asked, {answered}; noise of {answers.noise:.4g} votes on each count; the others by those that are alike"
        )


def _seen(records: Split, examples: Tensor, order: Order) -> tuple[Split, Tensor]:
    """Records and examples as the teachers see them: through scattering, which is fixed, where they are such images."""
    shape = tuple(examples.shape[1:])
    if not scatters(shape):
        return records, examples
    channels, height, width = shape
    model = scattering_linear(channels, height, width, order.classes)
    dataset = Dataset(order.source, tuple(map(str, range(order.classes))), {"train": records})
    with torch.no_grad():
        asked = torch.cat([model.features(some) for some in examples.split(_AT_ONCE)])
    return compute_features(dataset, model.features, model.key).train, asked
