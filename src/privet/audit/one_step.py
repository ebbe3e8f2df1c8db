"""White-box audits of one private step, by the code that trains, on the records that reveal the most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privet.audit.bounds import ClopperPearson, GaussianTradeOff, SampledStep, TwoSampleBound
from privet.audit.rebuilt import OTHERS, Course, Directions, Subject, find_shapes, stand_in, two_layers
from privet.audit.result import Audit, Claim, contradicted
from privet.audit.scores import audit_scores
from privet.clipping import (
    AdaptiveClipping,
    AutomaticClipping,
    BoundedSum,
    Clipping,
    EllipticalClipping,
    FlatClipping,
    PerLayerClipping,
)
from privet.data import Progress
from privet.errors import InputError
from privet.noise import GaussianNoise, GroupedL2Noise, IsotropicL2Noise, Noise, ProductLaplaceNoise
from privet.privacy import Ledger, Relation
from privet.randomness import Randomness
from privet.sampling import PoissonSampling
from privet.training import Plan

WIDTH = 4
"""Coordinates of each parameter of the stand-in model."""
AT_ONCE = 2**20
"""Numbers to which noise is added in one call."""
SAMPLES = 4
"""Samples that count how often the record is drawn, for each draw of a step."""
CHECKED = 100
"""Samples in which no record may be twice, where every record takes part."""

On = Callable[[Course], Subject]
"""Makes the model and the records on which a plan's steps are taken."""


def clippings() -> dict[str, Clipping]:
    """Every way of clipping that the library has, on the stand-in model."""
    generator = torch.Generator().manual_seed(0)
    diagonal = {name: torch.rand(shape, generator=generator) * 3 + 0.2 for name, shape in two_layers(WIDTH).items()}
    return {
        "flat": FlatClipping(1.0),
        "per-layer": PerLayerClipping(1.0),
        "automatic": AutomaticClipping(1.0),
        "adaptive": AdaptiveClipping(1.0),
        "elliptical": EllipticalClipping(diagonal),
    }


def noises(epsilon: float) -> dict[str, Noise]:
    """Every optimized noise of a pure epsilon, with the weights that give the least noise to the canary's coordinates."""
    weights = torch.tensor([1.0, *[1e-3] * (WIDTH - 1)] * len(two_layers(WIDTH)))
    return {
        "product Laplace": ProductLaplaceNoise.solve(weights, epsilon),
        "isotropic L2": IsotropicL2Noise.solve(weights, epsilon),
        "grouped L2": GroupedL2Noise.solve(weights, epsilon),
    }


def step(
    plan: Plan | Clipping,
    noise_multiplier: float = 1.0,
    *,
    noise: Noise | None = None,
    rate: float = 1.0,
    on: On | None = None,
    delta: float = 1e-5,
    draws: int = 20_000,
    confidence: float = 0.99,
    bound: TwoSampleBound | None = None,
    name: str = "One step of DP-SGD",
    seed: int | None = 0,
    progress: Progress | None = None,
) -> Audit:
    """Audit one step: sampling, per-example gradients, clipping, noise and release, as training runs them.

    The attacker sees the released gradient, knows all records but one and chose that one: its gradient is far above the
    clipping norm. The score is the projection of the release on the exact difference of the two clipped sums, each coordinate
    weighted by its noise: under Gaussian noise that is the exact log-likelihood ratio. If clipping or noise changes from step
    to step, a later step is audited, after a warm-up on other records.

    Formal guarantees: the claim is the event that the step itself wrote to its ledger. Under Gaussian noise the bound is that
    of a Gaussian trade-off, because that is what the event claims, and Clopper-Pearson under any other noise. On Poisson
    samples, the draws count how often the record is drawn, and separately audit steps in which it takes part (`SampledStep`).
    A record that is twice in a sample is a contradiction. On other samples, and for a given `bound`, each draw samples
    anew. Without a seed the streams have secret keys, as in a release.

    Args:
        plan: of a run; or a clipping, which makes a plan with the three arguments that follow.
        noise_multiplier, noise, rate: Gaussian noise, or another one, and the sampling rate.
        on: the model and the records; by default a stand-in model whose gradients are chosen by the records.
        delta: of the audit.
        draws: releases with the record, and as many without it.
        confidence: of the bound.
        bound: another bound for the scores.
        name: of the step, in words.
        seed: of sampling and noise.
        progress: called with a description, the draws so far and all draws.
    """
    if draws < 40:
        raise InputError(f"An audit needs at least 40 draws, not {draws}.")
    if not isinstance(plan, Plan):
        plan = Plan(PoissonSampling(rate), plan, noise or GaussianNoise(noise_multiplier), 1, 1000)
    course = Course(plan, Randomness.of(seed))
    relation = course.relation
    subject = (on or stand_in_for)(course)
    course.warm_up(subject)
    releases = _Releases(course, subject, relation)
    claim = Claim.of(course.event, delta, relation)
    setting = f"the released gradient of one step, with and without a record whose gradient is clipped; {subject.words}"
    apart = bound is None and course.independent and relation is Relation.ADD_REMOVE
    if bound is None:
        gaussian = course.noise_multiplier > 0
        if apart:
            sampled = course.rate < 1
            samples = SAMPLES * draws if sampled else CHECKED
            drawn, twice = releases.times_drawn(samples)
            if twice:
                said = f"a record was twice in {twice:,} of {samples:,} samples"
                return contradicted(name, claim, confidence, said, setting=setting)
        if apart and sampled:
            bound = SampledStep.drawn(drawn, samples, delta, confidence, gaussian)
        else:
            bound = (GaussianTradeOff if gaussian and apart else ClopperPearson)(delta, confidence)

    def tell(before: int, done: int) -> None:
        if progress is not None:
            progress(f"Auditing: {name}", before + done, 2 * draws)

    ledger = Ledger(relation=relation)
    members, others = (
        releases.scores(side == 0, draws, not apart, ledger, partial(tell, side * draws)) for side in (0, 1)
    )
    ((event, _),) = ledger  # every draw recorded the same event
    claim = Claim.of(event, delta, relation)
    return audit_scores(members, others, claim=claim, bound=bound, name=name, setting=setting)


def stand_in_for(course: Course, model: nn.Module | None = None) -> Subject:
    """The stand-in model for a plan, with records in proportion to its clipping norm.

    `model` is the run's: the stand-in has its parameters where the plan's clipping or noise was made for them.
    """
    shapes = find_shapes(course.plan, WIDTH, model)
    scale = course.scale(Directions(shapes))
    return stand_in(shapes, scale)


class _Releases:
    """Releases of one step on a few records: the sum of each batch is computed once, its noise for every draw."""

    def __init__(self, course: Course, subject: Subject, relation: Relation) -> None:
        self.course, self.relation = course, relation
        self.subject = subject.with_opposites() if relation is Relation.REPLACE_ONE else subject
        self._tried = len(subject.canaries)
        self._sums: dict[tuple[int, ...], BoundedSum] = {}
        changes = [self._change(canary) for canary in subject.canaries]
        lengths = [sum(float(part.square().sum()) for part in change.values()) for change in changes]
        best = int(np.argmax(np.nan_to_num(lengths, nan=-1.0)))
        self._canary = subject.canaries[best]
        """The record that changes the clipped sum most, relative to its noise."""
        deviations = course.release(self._sum(self._rows(True)), Ledger()).deviations()
        self._direction = {name: part / deviations[name] for name, part in changes[best].items()}

    def _change(self, canary: int) -> dict[str, Tensor]:
        """The change of the clipped sum by a canary, in units of the noise for one record."""
        self._canary = canary
        present, absent = (self._sum(self._rows(side)) for side in (True, False))
        return {
            name: (tensor - absent.tensors[name]).double() / present.scales[name]
            for name, tensor in present.tensors.items()
        }

    def times_drawn(self, samples: int) -> tuple[int, int]:
        """In how many samples the record is, and in how many any record is twice."""
        times = twice = 0
        for _ in range(samples):
            drawn = self.course.sample(OTHERS + 1)
            times += OTHERS in drawn
            twice += len(set(drawn)) < len(drawn)
        return times, twice

    def scores(
        self, present: bool, draws: int, sampled: bool, ledger: Ledger, tell: Callable[[int], None]
    ) -> NDArray[np.float64]:
        """The log-likelihood ratio of each release, up to a constant and a rising function."""
        most = max(1, AT_ONCE // self.subject.numel) if self.course.copies else 1
        found: list[Tensor] = []
        done = 0
        for batch, count in self._batches(present, draws, sampled).items():
            for start in range(0, count, most):
                found.append(self._released(batch, min(most, count - start), ledger))
                done += len(found[-1])
                tell(done)
        # The draws came batch by batch; in random order, every part of them is a sample.
        return np.random.default_rng(draws).permutation(torch.cat(found).numpy())

    def _batches(self, present: bool, draws: int, sampled: bool) -> Counter[tuple[int, ...]]:
        rows = self._rows(present)
        if not sampled:
            return Counter({rows: draws})
        size = self.course.data_size(len(rows))
        return Counter(
            tuple(rows[place] for place in sorted(self.course.sample(size)) if place < len(rows)) for _ in range(draws)
        )

    def _rows(self, present: bool) -> tuple[int, ...]:
        """The records of the data with the canary, or without it: removed, or replaced by the opposite record."""
        others = tuple(range(OTHERS))
        if present:
            return (*others, self._canary)
        return others if self.relation is Relation.ADD_REMOVE else (*others, self._canary + self._tried)

    def _released(self, batch: tuple[int, ...], copies: int, ledger: Ledger) -> Tensor:
        """Scores of independent releases of one sum."""
        released = self.course.release(self._sum(batch), ledger, copies).gradients
        scores = torch.zeros(copies, dtype=torch.float64)
        for name, direction in self._direction.items():
            scores += (released[name].double() * direction).reshape(copies, -1).sum(1)
        return scores

    def _sum(self, batch: tuple[int, ...]) -> BoundedSum:
        if batch not in self._sums:
            self._sums[batch] = self.course.sum(self.subject, batch)
        return self._sums[batch]
