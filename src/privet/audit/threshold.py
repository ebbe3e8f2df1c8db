"""A threshold on scores, chosen on some draws and counted on others."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privet.audit.bounds import Counts, TwoSampleBound, ceiling
from privet.audit.claim import Claim
from privet.audit.result import Audit
from privet.errors import InputError, PrivetError

Array = NDArray[np.float64]
CANDIDATES = 400


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
    """The audit of scores that were drawn with the record (`members`) and without it (`others`), higher meaning with.

    The first `chosen_on` of each side choose the threshold; only the rest is counted.
    """
    inside, outside = _checked(members), _checked(others)
    cuts = [round(chosen_on * len(side)) for side in (inside, outside)]
    if min(cuts) < 1 or cuts[0] == len(inside) or cuts[1] == len(outside):
        raise InputError("An audit needs draws to choose its threshold on and draws to count: take more of them.")
    counted = inside[cuts[0] :], outside[cuts[1] :]
    threshold = choose_threshold(inside[: cuts[0]], outside[: cuts[1]], bound)
    counts = Counts(
        int((counted[0] >= threshold).sum()), len(counted[0]), int((counted[1] >= threshold).sum()), len(counted[1])
    )
    return Audit(
        name=name,
        claim=claim,
        lower_bound=bound(counts),
        ceiling=ceiling(bound, counts.members, counts.others),
        confidence=bound.confidence,
        method=bound.method,
        evidence=f"{counts.members:,} draws with the record and {counts.others:,} without",
        setting=setting,
    )


def choose_threshold(members: Array, others: Array, bound: TwoSampleBound) -> float:
    """The score from which on "with the record" is said that gives the best bound on these draws."""
    pooled = np.unique(np.concatenate([members, others]))
    if len(pooled) > CANDIDATES:
        # Evenly by rank, and each of the highest and lowest: the best threshold often lies far out.
        edge = CANDIDATES // 4
        ranks = np.linspace(0, len(pooled) - 1, CANDIDATES // 2).round().astype(np.int64)
        ranks = np.unique(np.concatenate([np.arange(edge), ranks, np.arange(len(pooled) - edge, len(pooled))]))
        pooled = pooled[ranks]
    caught = len(members) - np.searchsorted(np.sort(members), pooled, side="left")
    accused = len(others) - np.searchsorted(np.sort(others), pooled, side="left")
    return float(pooled[int(np.argmax(bound.merit(caught, len(members), accused, len(others))))])


def _checked(scores: ArrayLike) -> Array:
    array = np.asarray(scores, dtype=np.float64)
    if array.ndim != 1:
        raise InputError(f"Scores are one row of numbers, one for each draw, not of shape {array.shape}.")
    if np.isnan(array).any():
        raise PrivetError(f"{int(np.isnan(array).sum())} scores are not a number: the score or the mechanism is bad.")
    return array
