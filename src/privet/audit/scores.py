"""From scores to an audit: a threshold on draws with and without a record, or guesses about the canaries of one run."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privet.audit.bounds import Counts, OneRun, TwoSampleBound, ceiling
from privet.audit.result import Audit, Claim, now, round_down
from privet.errors import InputError, PrivetError

Array = NDArray[np.float64]
CANDIDATES = 400
"""Thresholds that are tried."""
SHARES = (1.0, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05)
"""Shares of the canaries that are tried as the number of guesses."""


def audit_scores(
    members: ArrayLike,
    others: ArrayLike,
    *,
    claim: Claim,
    bound: TwoSampleBound,
    name: str,
    setting: str = "",
    chosen_on: float = 0.25,
) -> Audit:
    """The audit of scores that were drawn with the record (`members`) and without it (`others`); a higher score means with.

    The first `chosen_on` of each side choose the threshold; only the rest is counted.
    """
    inside, outside = _checked(members), _checked(others)
    cuts = [round(chosen_on * len(side)) for side in (inside, outside)]
    if min(cuts) < 1 or cuts[0] == len(inside) or cuts[1] == len(outside):
        raise InputError("An audit needs draws to choose its threshold on and draws to count: take more draws.")
    counted = inside[cuts[0] :], outside[cuts[1] :]
    threshold = choose_threshold(inside[: cuts[0]], outside[: cuts[1]], bound)
    counts = Counts(
        int((counted[0] >= threshold).sum()), len(counted[0]), int((counted[1] >= threshold).sum()), len(counted[1])
    )
    most = ceiling(bound, counts.members, counts.others)
    evidence = f"{counts.members:,} draws with the record and {counts.others:,} without"
    return Audit(
        name=name,
        claim=claim,
        lower_bound=bound(counts),
        ceiling=most,
        confidence=bound.confidence,
        method=bound.method,
        evidence=evidence,
        setting=setting,
        power=f"{evidence}; at most epsilon {round_down(most)} could have been shown",
        date=now(),
    )


def choose_threshold(members: Array, others: Array, bound: TwoSampleBound) -> float:
    """The threshold with the best bound on these draws: scores from it on are taken for draws with the record."""
    pooled = np.unique(np.concatenate([members, others]))
    if len(pooled) > CANDIDATES:
        # Evenly by rank, and all of the highest and lowest: the best threshold often lies far out.
        edge = CANDIDATES // 4
        ranks = np.linspace(0, len(pooled) - 1, CANDIDATES // 2).round().astype(np.int64)
        ranks = np.unique(np.concatenate([np.arange(edge), ranks, np.arange(len(pooled) - edge, len(pooled))]))
        pooled = pooled[ranks]
    caught = len(members) - np.searchsorted(np.sort(members), pooled, side="left")
    accused = len(others) - np.searchsorted(np.sort(others), pooled, side="left")
    return float(pooled[int(np.argmax(bound.merit(caught, len(members), accused, len(others))))])


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

    Formal guarantees: the number of guesses is given, or chosen on a quarter of the canaries, which are then not guessed.
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
    most = bound.ceiling(guesses, canaries)
    return Audit(
        name=name,
        claim=claim,
        lower_bound=bound(correct, guesses, canaries),
        ceiling=most,
        confidence=bound.confidence,
        method=bound.method,
        evidence=f"{canaries:,} canaries, {guesses:,} guessed, {correct:,} of them right",
        setting=setting,
        power=f"{canaries:,} canaries, {guesses:,} guessed; at most epsilon {round_down(most)} could have been shown",
        date=now(),
    )


def _right(scores: Array, coins: NDArray[np.bool_], guesses: float) -> tuple[int, int]:
    """How many guesses were right, and how many there were."""
    half = max(1, int(guesses // 2))
    ranked = coins[np.argsort(scores, kind="stable")]
    out, inside = ranked[:half], ranked[len(ranked) - half :]
    return int((~out).sum() + inside.sum()), 2 * half


def _checked(scores: ArrayLike) -> Array:
    array = np.asarray(scores, dtype=np.float64)
    if array.ndim != 1:
        raise InputError(f"Scores are one row of numbers, one for each draw, not of shape {array.shape}.")
    if np.isnan(array).any():
        raise PrivetError(f"{int(np.isnan(array).sum())} scores are not a number: the score or the mechanism is bad.")
    return array
