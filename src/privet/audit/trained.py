"""Audit any trainer: a callable from records to whatever it trains, and a score of canaries by what was trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from privet.attacks import membership_scores
from privet.audit.bounds import ClopperPearson, OneRun
from privet.audit.canaries import Canaries
from privet.audit.claim import Claim, Claimed
from privet.audit.guessing import audit_guesses
from privet.audit.result import Audit
from privet.audit.threshold import audit_scores
from privet.errors import InputError
from privet.privacy import Relation

Records = tuple[Tensor, Tensor]
Trainer = Callable[[Records, torch.Generator], Any]
Score = Callable[[Any, Tensor, Tensor], ArrayLike]


def trainer(
    train: Trainer,
    data: Records,
    canaries: Canaries,
    *,
    claimed: Claimed,
    delta: float,
    score: Score = membership_scores,
    runs: int = 1,
    guesses: int | None = None,
    confidence: float = 0.99,
    relation: Relation | str = Relation.ADD_REMOVE,
    name: str | None = None,
    seed: int = 0,
) -> Audit:
    """Bound the epsilon of a training from below, end to end.

    One run: each canary is put in with probability one half, the trainer runs once, and the attacker guesses. More
    runs: the first canary is in the data in `runs` trainings and not in as many others.

    Formal guarantees: those of the one-run bound or of Clopper-Pearson, which assume nothing about the trainer. The
    bound says what this attacker saw, who has only what `train` returns; a white-box attacker may see more.

    Args:
        train: from inputs and labels, and a generator, to what is trained.
        data: the inputs and labels beside which the canaries stand.
        canaries: see `mislabelled` and `out_of_distribution`; a thousand of them allow a bound of about 5.
        claimed: an event, a ledger, a statement, or an epsilon at `delta`.
        score: from what was trained and canaries to a score each, higher where a canary seems to have been in; for a
            classifier the log-odds of its label.
        runs: 1, or how many trainings there are on each side.
        guesses: of how many canaries one run guesses; without it, chosen on a quarter of them.
    """
    inputs, labels = data
    claim = Claim.of(claimed, delta, relation)
    called = name or getattr(train, "__name__", type(train).__name__).replace("_", " ")
    generator = torch.Generator().manual_seed(seed)

    def scores(included: Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
        records = torch.cat([inputs, canaries.inputs[included]]), torch.cat([labels, canaries.labels[included]])
        found = np.asarray(score(train(records, generator), canaries.inputs, canaries.labels), dtype=np.float64)
        if found.shape != (len(canaries),):
            raise InputError(f"The score must give one number for each of {len(canaries)} canaries, not {found.shape}.")
        return found

    if runs == 1:
        coins = torch.rand(len(canaries), generator=generator) < 0.5
        return audit_guesses(
            scores(coins),
            coins.numpy(),
            claim=claim,
            bound=OneRun(delta, confidence),
            name=called,
            setting=f"one training, {canaries.kind} each in with probability 1/2",
            guesses=guesses,
            seed=seed,
        )
    if runs < 40:
        raise InputError(f"Trainings with and without a canary are counted: {runs} are too few, give 1 or at least 40.")
    first = torch.zeros(len(canaries), dtype=torch.bool)
    first[0] = True
    members, others = ([scores(present)[0] for _ in range(runs)] for present in (first, torch.zeros_like(first)))
    return audit_scores(
        members,
        others,
        claim=claim,
        bound=ClopperPearson(delta, confidence),
        name=called,
        setting=f"{runs} trainings with and {runs} without one of {canaries.kind}",
    )
