"""Audit any mechanism: a function of records, called many times on two neighbouring data sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet.audit.bounds import ClopperPearson, TwoSampleBound
from privet.audit.claim import Claim, Claimed
from privet.audit.result import Audit
from privet.audit.threshold import audit_scores
from privet.data import Progress
from privet.errors import InputError, PrivetError
from privet.privacy import Relation

Mechanism = Callable[[Any, torch.Generator], Any]
Score = Callable[[Any], float]
Array = NDArray[np.float64]


def mechanism(
    fn: Mechanism,
    data: Any,
    neighbour: Any,
    *,
    claimed: Claimed,
    delta: float = 0.0,
    score: Score | None = None,
    draws: int = 4000,
    confidence: float = 0.99,
    bound: TwoSampleBound | None = None,
    relation: Relation | str = Relation.ADD_REMOVE,
    name: str | None = None,
    setting: str = "",
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Bound the epsilon of a mechanism from below by calling it on two neighbouring data sets.

        privet.audit.mechanism(noisy_sum, data=[1.0, 0.3], neighbour=[0.3], claimed=1.0)

    Formal guarantees: those of `bound`, by default Clopper-Pearson, which assumes nothing about `fn`. The score and its
    threshold are found on other draws than those that are counted. The draws are independent as far as `fn` takes its
    randomness from the generator it is given.

    Args:
        fn: from records and a generator to a release: numbers, arrays or tensors, also in lists or dictionaries.
        data: the records; `neighbour`: the same without one record, or with one replaced.
        claimed: an event, a ledger or a statement, or an epsilon at `delta`.
        delta: the delta of the claim; one by events holds at every delta, and large ones need fewer draws.
        score: a number for each release, higher where it looks like `data`, such as a log-likelihood ratio. Without it a
            quadratic logistic regression is learnt on the first half of the draws.
        draws: how often `fn` is called on each of the two.
        confidence: of the bound.
        bound: another bound than Clopper-Pearson.
        relation: what makes the two data sets neighbours, for a claim by events.
        progress: called with what is done, the draws so far and the draws in all.
    """
    if draws < 40:
        raise InputError(f"An audit needs at least 40 draws, and {draws} were asked for.")
    chosen = bound or ClopperPearson(delta, confidence)
    claim = Claim.of(claimed, delta, relation)
    called = name or getattr(fn, "__name__", type(fn).__name__).replace("_", " ")

    def tell(before: int, done: int) -> None:
        if progress is not None:
            progress(f"Auditing: {called}", before + done, 2 * draws)

    releases = [
        _drawn(fn, records, draws, seed + side, partial(tell, side * draws))
        for side, records in enumerate((data, neighbour))
    ]
    if score is not None:
        members, others = (np.array([float(score(release)) for release in side]) for side in releases)
        chosen_on = 0.25
    else:
        members, others = learnt_scores(*(_matrix(side) for side in releases))
        chosen_on = 0.5
    return audit_scores(members, others, claim=claim, bound=chosen, name=called, setting=setting, chosen_on=chosen_on)


def learnt_scores(members: Array, others: Array) -> tuple[Array, Array]:
    """Log-odds of "with the record" by a logistic regression on the values and their squares, learnt on the first halves."""
    from sklearn.linear_model import LogisticRegression

    halves = members[: len(members) // 2], others[: len(others) // 2]
    seen = np.concatenate(halves)
    centre, spread = seen.mean(axis=0), seen.std(axis=0)
    spread[spread == 0] = 1.0

    def features(rows: Array) -> Array:
        # Values far out are squashed: one of them would otherwise decide what is learnt.
        scaled = np.clip((rows - centre) / spread, -30, 30)
        return np.concatenate([scaled, scaled**2], axis=1)

    labels = np.repeat([1, 0], [len(half) for half in halves])
    model = LogisticRegression(C=10.0, max_iter=2000).fit(features(seen), labels)
    return model.decision_function(features(members)), model.decision_function(features(others))


def _drawn(fn: Mechanism, records: Any, draws: int, seed: int, tell: Callable[[int], None]) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for done in range(1, draws + 1):
        drawn.append(fn(records, generator))
        tell(done)
    return drawn


def _matrix(releases: Sequence[Any]) -> Array:
    rows = [np.concatenate(_parts(release)) for release in releases]
    if len({len(row) for row in rows}) > 1:
        raise InputError(
            "The releases differ in size, which tells by itself; give a score that says how much each looks like the data."
        )
    matrix = np.stack(rows)
    if not np.isfinite(matrix).all():
        raise PrivetError("Some releases hold values that are not finite: give a score that understands them.")
    return matrix


def _parts(release: Any) -> list[Array]:
    """Everything that was released, as flat rows of numbers."""
    if isinstance(release, Tensor):
        return [release.detach().to(torch.float64).numpy().reshape(-1)]
    if isinstance(release, Mapping):
        return [part for key in sorted(release) for part in _parts(release[key])]
    if isinstance(release, tuple | list):
        return [part for value in release for part in _parts(value)]
    return [np.asarray(release, dtype=np.float64).reshape(-1)]
