"""From the scores of canaries to guesses, and from guesses to the bound of one run."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privet.audit.bounds import OneRun
from privet.audit.claim import Claim
from privet.audit.result import Audit
from privet.errors import InputError, PrivetError

SHARES = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05)
"""Of how many canaries a guess may be worth it."""


def audit_guesses(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    claim: Claim,
    bound: OneRun,
    name: str,
    setting: str = "",
    guesses: int | None = None,
    seed: int = 0,
) -> Audit:
    """The audit of one run: the highest scores are guessed in, as many of the lowest out, and the rest are not guessed.

    Formal guarantees: how many are guessed is either given, or chosen on a quarter of the canaries that are then not guessed.
    """
    values, coins = np.asarray(scores, dtype=np.float64), np.asarray(included, dtype=bool)
    if values.ndim != 1 or values.shape != coins.shape or len(values) < 8:
        raise InputError("One run needs a score and a coin for each of at least 8 canaries.")
    if np.isnan(values).any():
        raise PrivetError("Scores of canaries are not a number: the score or the trained model is bad.")
    # Tied scores are guessed in random order.
    order = np.random.default_rng(seed).permutation(len(values))
    values, coins = values[order], coins[order]
    canaries = len(values)
    if guesses is None:
        cut = canaries // 4
        share = max(SHARES, key=lambda one: bound(*_right(values[:cut], coins[:cut], one * cut), canaries))
        values, coins = values[cut:], coins[cut:]
        guesses = round(share * len(values))
    correct, guesses = _right(values, coins, guesses)
    return Audit(
        name=name,
        claim=claim,
        lower_bound=bound(correct, guesses, canaries),
        ceiling=bound.ceiling(guesses, canaries),
        confidence=bound.confidence,
        method=bound.method,
        evidence=f"{canaries:,} canaries, {guesses:,} guessed, {correct:,} of them right",
        setting=setting,
    )


def _right(scores: NDArray[np.float64], coins: NDArray[np.bool_], guesses: float) -> tuple[int, int]:
    """How many guesses were right, and how many there were."""
    half = max(1, int(guesses // 2))
    ranked = coins[np.argsort(scores, kind="stable")]
    out, inside = ranked[:half], ranked[len(ranked) - half :]
    return int((~out).sum() + inside.sum()), 2 * half
