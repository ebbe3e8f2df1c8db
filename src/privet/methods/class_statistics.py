"""Private statistics of the classes of a data set: how many, their means, their second moments. Each is one event."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add

import torch
from torch import Tensor

from privet.clipping.bounded import BoundedSum
from privet.clipping.rows import grouped_count, grouped_second_moment, grouped_sum, symmetric
from privet.noise import GaussianNoise
from privet.privacy import CovarianceRelease, Ledger
from privet.randomness import Randomness

_CHUNK = 5000


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
    total = _over(rows, groups, shares, lambda *some: grouped_sum(some[0], some[1], count, bound, some[2]))
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
    total = _over(rows, groups, shares, lambda *some: grouped_second_moment(some[0], some[1], count, bound, some[2]))
    ledger.record(CovarianceRelease(noise_multiplier))
    return symmetric(noise.add(total, randomness.noise))


def _over(
    rows: Tensor, groups: Tensor, shares: Tensor | None, sums: Callable[[Tensor, Tensor, Tensor | None], BoundedSum]
) -> BoundedSum:
    chunks = torch.arange(len(rows)).split(_CHUNK)
    return reduce(
        add, (sums(rows[where], groups[where], None if shares is None else shares[where]) for where in chunks)
    )
