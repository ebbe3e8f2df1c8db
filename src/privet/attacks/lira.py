"""The likelihood-ratio attack (Carlini et al. 2022): is this record's fit that of a member or of a non-member?

Shadow models are trained on random halves of the records; for each record the fits of the models that had it and of those
that had not are two Gaussians, and the score is the log-ratio of their densities at the target's fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet.attacks.answers import Classifier, Outputs, Records, as_inputs, as_labels
from privet.attacks.fitting import Train, train_each
from privet.attacks.loss_threshold import log_odds, membership_scores
from privet.attacks.roc import Roc
from privet.errors import InputError

OWN_SPREAD = 64
"""From so many shadow models on, each record's Gaussians have a spread of their own; below, the spread is shared."""


@dataclass(frozen=True, eq=False)
class LiraResult:
    """The ROC, and in words how the shadow models were trained."""

    roc: Roc
    how: str


def lira(
    model: Classifier,
    members: Records,
    non_members: Records,
    train: Train,
    generator: torch.Generator,
    *,
    shadows: int = 16,
    population: Records | None = None,
    outputs: Outputs = "logits",
) -> LiraResult:
    """Attack a classifier with `shadows` models that `train` makes (a `Fitting` makes them in one pass).

    Each pair of shadow models divides all records, members, non-members and the population, in two halves, so that every
    record is in exactly half of the models (of an odd number of records, each pair leaves one out).
    """
    if shadows < 4 or shadows % 2:
        raise InputError(f"The attack needs an even number of shadow models, 4 or more, and {shadows} were asked for.")
    sides = [members, non_members] + ([population] if population is not None else [])
    inputs = torch.cat([as_inputs(side[0]) for side in sides])
    labels = torch.cat([torch.as_tensor(side[1]) for side in sides])
    rows = _halves(len(inputs), shadows, generator)
    ensemble = train_each(train, inputs, labels, rows, generator, outputs)
    asked = len(members[0]) + len(non_members[0])
    scores = ensemble.class_scores(inputs[:asked])
    fits = log_odds(scores, as_labels(labels[:asked], scores.shape[-1], asked))
    inside = torch.zeros(shadows, len(inputs), dtype=torch.bool).scatter_(1, rows, True)[:, :asked]
    target = membership_scores(model, inputs[:asked], labels[:asked], outputs=outputs)
    ratio = log_likelihood_ratio(torch.from_numpy(target), fits, inside)
    return LiraResult(Roc.of(ratio[: len(members[0])], ratio[len(members[0]) :]), ensemble.how)


def log_likelihood_ratio(target: Tensor, fits: Tensor, inside: Tensor) -> NDArray[np.float64]:
    """log N(fit; in) - log N(fit; out) of each record; `fits` and `inside` are models x records."""
    finite = fits.clamp(-1e6, 1e6)
    ratio = torch.zeros_like(target)
    for chosen, sign in ((inside, 1.0), (~inside, -1.0)):
        count = chosen.sum(0)
        mean = (finite * chosen).sum(0) / count.clamp(min=1)
        squares = ((finite - mean).square() * chosen).sum(0)
        if len(fits) >= OWN_SPREAD:
            variance = squares / (count - 1).clamp(min=1)
        else:
            variance = (squares.sum() / (count.sum() - len(count)).clamp(min=1)).expand_as(target)
        spread = variance.sqrt().clamp(min=1e-6)
        density = -((target.clamp(-1e6, 1e6) - mean) / spread).square() / 2 - spread.log() - math.log(2 * math.pi) / 2
        ratio = ratio + sign * density
    result: NDArray[np.float64] = ratio.numpy()
    return result


def _halves(records: int, models: int, generator: torch.Generator) -> Tensor:
    """For each model the indices of its half; models 2k and 2k + 1 have the two halves of one division."""
    half = records // 2
    rows = []
    for _ in range(models // 2):
        order = torch.randperm(records, generator=generator)
        rows += [order[:half], order[half : 2 * half]]
    return torch.stack(rows)
