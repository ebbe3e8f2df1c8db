"""The stations that methods add to the laboratory: the teachers of PATE, and the class counts of a GAN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from privet.audit import ClopperPearson, GaussianTradeOff, Seen
from privet.audit.bounds import TwoSampleBound
from privet.audit.result import Claimable
from privet.audit.stations import COUNTED_DELTA, DELTA, add_stations
from privet.data import Split
from privet.methods import teachers, voting
from privet.methods.dpgan import Dpgan
from privet.methods.synthetic import Order
from privet.privacy import Ledger, NoisyVotes
from privet.randomness import Randomness


@dataclass(frozen=True)
class Teachers:
    """PATE: records go to teachers, who vote, and the noisy counts are released. One teacher votes as the record tells it."""

    name: str = "teachers"
    looks_for: str = "teachers whose parts overlap, or move when a record is added"
    noise: float = 0.7
    teachers: int = 6
    effort: float = 1.0

    def claimed(self) -> Claimable:
        return NoisyVotes(self.noise)

    def bound(self, confidence: float) -> TwoSampleBound:
        return GaussianTradeOff(DELTA, confidence)

    def run(self, present: bool, seed: int, noise: float | None = None) -> Seen:
        inputs = torch.zeros(12, 1)
        inputs = torch.cat([inputs, torch.ones(1, 1)]) if present else inputs
        records = Split(inputs, torch.zeros(len(inputs), dtype=torch.int64))
        randomness, ledger = Randomness.of(seed), Ledger()
        counts = teachers.ballots(
            records,
            torch.zeros(1, 1),
            2,
            teachers=self.teachers,
            teach=_told_by_the_record,
            source=randomness.sampling,
        )
        noisy = voting.noisy_counts(counts, self.noise if noise is None else noise, ledger, randomness.noise)
        faults = () if len(ledger) == 1 else (f"one query was answered and {len(ledger)} are in the ledger",)
        return Seen({"noisy counts": noisy}, {}, ledger.event, faults=faults)


def _told_by_the_record(inputs: Tensor, labels: Tensor, classes: int) -> Callable[[Tensor], Tensor]:
    vote = int(inputs.max() > 0)
    return lambda queries: torch.full((len(queries),), vote)


@dataclass(frozen=True)
class ClassCounts:
    """A DPGAN of one step: the labels that it makes follow its noisy count of the classes, and the record moves one of them.

    A GAN takes the size of the data as public, so the record is there with one label or with the other one. That is two
    changes of one record each, and the claim is that of a budget for two.
    """

    name: str = "class counts of a GAN"
    looks_for: str = "counts of the classes without noise"
    epsilon: float = 0.5
    effort: float = 0.25

    def claimed(self) -> Claimable:
        return 2 * self.epsilon  # and a delta of (1 + e^epsilon) times that of one record, which is below COUNTED_DELTA

    def bound(self, confidence: float) -> TwoSampleBound:
        return ClopperPearson(COUNTED_DELTA, confidence)

    def run(self, present: bool, seed: int, noise: float | None = None) -> Seen:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.tensor([0, 1]).repeat(10)
        labels[0] = int(present)
        records = Split(torch.rand(20, 2, generator=generator), labels)
        order = Order(2, 400, self.epsilon, COUNTED_DELTA / 4, seed=seed, records=20)
        method = Dpgan(lot=4, steps=1, turns=1, made=4, width=1, latent=2, counts_share=0.5)
        try:
            made = method.synthesize(records, order, Ledger())
        except Exception as error:  # whether it raises is one of the things that the station looks at
            return Seen.of_error(error)
        return Seen({}, {"labels of the second class": float(made.labels.sum())})


add_stations(Teachers(), ClassCounts())
