"""An audit of noisy voting, by the code that labels: all answers of a run together."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from privet.audit import Audit, Claim, GaussianTradeOff, audit_scores
from privet.data import Progress
from privet.errors import InputError
from privet.methods.voting import noisy_counts
from privet.privacy import Ledger, NoisyVotes
from privet.privacy.events import tally

AT_ONCE = 2**20
"""Counts that get their noise in one call."""


def votes(
    noise: float = 40.0,
    answers: int = 1,
    *,
    delta: float = 1e-5,
    draws: int = 8000,
    confidence: float = 0.99,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Audit the noisy counts from which `answers` labels are taken, when one teacher changes its vote at every query.

    The attacker knows all other votes and sees the noisy counts, of which a student gets only the winners. The score is the
    exact log-likelihood ratio.

    Formal guarantees: the bound is that of a Gaussian trade-off, which is what `NoisyVotes` claims.
    """
    if draws < 40:
        raise InputError(f"An audit needs at least 40 draws, not {draws}.")
    name = f"Noisy votes, {answers:,} answers" if answers > 1 else "Noisy votes, one answer"
    generator = torch.Generator().manual_seed(seed)

    def scores(side: int) -> NDArray[np.float64]:
        found = []
        for start in range(0, draws, most := max(1, AT_ONCE // (2 * answers))):
            counts = torch.zeros(min(most, draws - start) * answers, 2, dtype=torch.float64)
            counts[:, side] = 1.0  # the teacher votes for the first label with the record, for the second without it
            noisy = noisy_counts(counts, noise, Ledger(), generator)
            found.append((noisy[:, 0] - noisy[:, 1]).view(-1, answers).sum(1).numpy())
            if progress is not None:
                progress(f"Auditing: {name}", side * draws + min(draws, start + most), 2 * draws)
        return np.concatenate(found)

    return audit_scores(
        scores(0),
        scores(1),
        claim=Claim.of(NoisyVotes(noise) * answers, delta),
        bound=GaussianTradeOff(delta, confidence),
        name=name,
        setting="the noisy counts; one teacher votes for another label at every query",
    )


def votes_in(ledger: Ledger, **settings: Any) -> tuple[Audit, ...]:
    """The audit of the votes in a ledger, those with the least noise where there are several kinds; nothing without votes."""
    found = [
        (event.noise_multiplier, count)
        for event, count in tally(ledger.event)
        if isinstance(event, NoisyVotes) and event.noise == "gaussian"
    ]
    return (votes(*min(found), **settings),) if found else ()
