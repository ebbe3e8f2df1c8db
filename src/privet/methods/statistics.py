"""Private statistics of a data set: a mean, a second moment. Each use is one event in the ledger."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add

import torch
from torch import Tensor

from privet.audit import Audit, GaussianTradeOff, mechanism
from privet.clipping.bounded import BoundedSum
from privet.clipping.rows import (
    clipped_sum,
    grouped_count,
    grouped_second_moment,
    grouped_sum,
    normalized_second_moment,
    symmetric,
)
from privet.data import Progress, Split
from privet.errors import InputError
from privet.noise import GaussianNoise
from privet.privacy import CovarianceRelease, Ledger
from privet.randomness import Randomness

_CHUNK = 2000

Statistic = Callable[[Tensor], Tensor]


def private_mean(
    records: Split,
    *,
    bound: float,
    noise_multiplier: float,
    public_size: int,
    ledger: Ledger,
    randomness: Randomness,
) -> Tensor:
    """The mean of the records, each clipped to norm `bound`, with Gaussian noise of `noise_multiplier` times `bound`.

    Where the records have users, a user's own mean takes the place of a record, and `public_size` is the number of users.

    Formal guarantees: the event is in the ledger before the noise is drawn; the noisy sum is divided by `public_size`, a
    constant that the caller states, and never by the number of records that there are.
    """
    noise = GaussianNoise(noise_multiplier)
    ledger.require_unit(records.unit)
    total = _over(records, lambda rows, shares: clipped_sum(rows, bound, shares))
    ledger.record(noise.event())
    return noise.add(total, randomness.noise)["sum"].div_(public_size).to(torch.float32)


def private_second_moment(
    records: Split,
    *,
    noise_multiplier: float,
    public_size: int,
    ledger: Ledger,
    randomness: Randomness,
    view: Statistic = lambda rows: rows.flatten(1),
) -> Tensor:
    """The mean of X^T X over records scaled to norm 1, with Gaussian noise on its upper triangle, in float64.

    Where the records have users, a user's own mean takes the place of a record, and `public_size` is the number of users.

    Args:
        records: the data.
        noise_multiplier: the standard deviation of the noise on each entry of the sum.
        public_size: the constant that the noisy sum is divided by.
        ledger: where the release is recorded.
        randomness: where its noise comes from.
        view: turns a batch into ``(N, d)`` or ``(N, k, d)``, each record by itself.

    Formal guarantees: one `CovarianceRelease`, in the ledger before the noise is drawn; a record of k rows counts as
    one, since its rows are scaled to norm 1 together.
    """
    noise = GaussianNoise(noise_multiplier)
    ledger.require_unit(records.unit)
    total = _over(records, lambda rows, shares: normalized_second_moment(view(rows), shares))
    ledger.record(CovarianceRelease(noise_multiplier))
    return symmetric(noise.add(total, randomness.noise)).div_(public_size)


def _over(records: Split, sums: Callable[[Tensor, Tensor | None], BoundedSum]) -> BoundedSum:
    chunks, shares = torch.arange(len(records)).split(_CHUNK), records.shares
    parts = ((records.batch(where)[0], None if shares is None else shares[where]) for where in chunks)
    return reduce(add, (sums(*part) for part in parts))


def private_counts(
    groups: Tensor,
    count: int,
    *,
    noise_multiplier: float,
    ledger: Ledger,
    randomness: Randomness,
    shares: Tensor | None = None,
) -> Tensor:
    """How many records are in each of `count` groups, with Gaussian noise; at least 1.

    Here and below `shares` is that of `Split.shares`, where the records have users: each user then counts 1.

    Formal guarantees: one `Gaussian` event, in the ledger before the noise is drawn.
    """
    noise = GaussianNoise(noise_multiplier)
    ledger.require_unit("record" if shares is None else "user")
    total = grouped_count(groups, count, shares)
    ledger.record(noise.event())
    return noise.add(total, randomness.noise)["sum"].clamp(min=1.0)


def private_sums(
    rows: Tensor,
    groups: Tensor,
    count: int,
    *,
    bound: float,
    noise_multiplier: float,
    ledger: Ledger,
    randomness: Randomness,
    shares: Tensor | None = None,
) -> Tensor:
    """``(count, d)``: the sum of each group's rows, clipped to `bound`, with noise of `noise_multiplier` times `bound`.

    Formal guarantees: one `Gaussian` event for all groups together, since a record is in one of them.
    """
    noise = GaussianNoise(noise_multiplier)
    ledger.require_unit("record" if shares is None else "user")
    total = _over_groups(rows, groups, shares, lambda *some: grouped_sum(some[0], some[1], count, bound, some[2]))
    ledger.record(noise.event())
    return noise.add(total, randomness.noise)["sum"]


def private_second_moments(
    rows: Tensor,
    groups: Tensor,
    count: int,
    *,
    bound: float,
    noise_multiplier: float,
    ledger: Ledger,
    randomness: Randomness,
    shares: Tensor | None = None,
) -> Tensor:
    """``(count, d, d)``: the sum of x^T x over each group's rows, clipped to `bound`, with noise on the triangles.

    Formal guarantees: one `CovarianceRelease` for all groups together, since a record is in one of them.
    """
    noise = GaussianNoise(noise_multiplier)
    ledger.require_unit("record" if shares is None else "user")
    total = _over_groups(
        rows, groups, shares, lambda *some: grouped_second_moment(some[0], some[1], count, bound, some[2])
    )
    ledger.record(CovarianceRelease(noise_multiplier))
    return symmetric(noise.add(total, randomness.noise))


def _over_groups(
    rows: Tensor, groups: Tensor, shares: Tensor | None, sums: Callable[[Tensor, Tensor, Tensor | None], BoundedSum]
) -> BoundedSum:
    chunks = torch.arange(len(rows)).split(_CHUNK)
    return reduce(
        add, (sums(rows[where], groups[where], None if shares is None else shares[where]) for where in chunks)
    )


def private_components(
    records: Split, components: int, *, noise_multiplier: float, ledger: Ledger, randomness: Randomness
) -> Tensor:
    """The `components` leading eigenvectors of the noisy second moment, as rows, the largest eigenvalue first.

    Records are scaled to norm 1, as in the paper. Everything after the noise is post-processing.

    Formal guarantees: one `CovarianceRelease` of sensitivity 1 for adding or removing a record.
    """
    width = records[0][0].numel()
    if not 1 <= components <= width:
        raise InputError(f"DP-PCA can give from 1 to {width} components of records of size {width}, not {components}.")
    # Directions do not depend on what the sum is divided by.
    moment = private_second_moment(
        records, noise_multiplier=noise_multiplier, public_size=1, ledger=ledger, randomness=randomness
    )
    _, vectors = torch.linalg.eigh(moment)
    leading: Tensor = vectors[:, -components:].flip(1).mT
    return leading.to(torch.float32).contiguous()


# --- audits -----------------------------------------------------------------------------------------------------------

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


def audit_release(
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
    data, neighbor = Split(RECORDS, labels), Split(RECORDS[:-1], labels[:-1])
    fn(data, torch.Generator().manual_seed(seed))
    ((event, _),) = ledger
    return mechanism(
        fn,
        data,
        neighbor,
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
