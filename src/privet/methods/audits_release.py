"""Audits of releases that come before training: a private mean, and the second moment that DP-PCA decomposes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from privet.audit import Audit, GaussianTradeOff, mechanism
from privet.data import Progress, Split
from privet.methods.statistics import private_mean, private_second_moment
from privet.privacy import Ledger
from privet.randomness import Randomness

Release = Callable[[Split, float, Ledger, Randomness], Tensor]

RECORDS = torch.tensor([[0.0, 0.5, 0.0], [0.0, 0.0, -0.5], [1e3, 0.0, 0.0]])
"""The canary is the last one, orthogonal to the others."""


def _mean(records: Split, noise_multiplier: float, ledger: Ledger, randomness: Randomness) -> Tensor:
    return private_mean(
        records,
        bound=1.0,
        noise_multiplier=noise_multiplier,
        public_size=len(RECORDS),
        ledger=ledger,
        randomness=randomness,
    )


def _moment(records: Split, noise_multiplier: float, ledger: Ledger, randomness: Randomness) -> Tensor:
    return private_second_moment(
        records, noise_multiplier=noise_multiplier, public_size=len(RECORDS), ledger=ledger, randomness=randomness
    )[0]


RELEASES: dict[str, Release] = {"mean": _mean, "second-moment": _moment}
"""By name. The first coordinate of each is scored: only the canary moves it."""


def release(
    kind: str,
    noise_multiplier: float = 1.0,
    *,
    delta: float = 1e-5,
    draws: int = 8000,
    confidence: float = 0.99,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Audit a release of `privet.methods.statistics`; the claim is the event that it writes to its ledger.

    Formal guarantees: the bound is that of a Gaussian trade-off, which is what that event claims.
    """
    made = RELEASES[kind]
    ledger = Ledger()

    def fn(records: Split, generator: torch.Generator) -> Tensor:
        return made(records, noise_multiplier, ledger, Randomness(generator, generator, seed))

    labels = torch.zeros(len(RECORDS), dtype=torch.int64)
    data, neighbour = Split(RECORDS, labels), Split(RECORDS[:-1], labels[:-1])
    fn(data, torch.Generator().manual_seed(seed))
    ((event, _),) = ledger
    return mechanism(
        fn,
        data,
        neighbour,
        claimed=event,
        delta=delta,
        score=lambda row: float(row[0]),
        draws=draws,
        bound=GaussianTradeOff(delta, confidence),
        name=f"Private {kind.replace('-', ' ')}",
        setting="two records, and a third one far above the bound",
        seed=seed,
        progress=progress,
    )
