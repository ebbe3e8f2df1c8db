"""Private statistics of a data set: a mean, a second moment. Each use is one event in the ledger."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add

import torch
from torch import Tensor

from privet.clipping.bounded import BoundedSum
from privet.clipping.rows import clipped_sum, normalized_second_moment, symmetric
from privet.data import Split
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
