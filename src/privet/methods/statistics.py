"""Private statistics of a data set: a mean, a second moment. Each use is one event in the ledger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from privet.audit import Audit, GaussianTradeOff, mechanism
from privet.clipping.bounded import (
    BoundedSum,
    clipped_sum,
    grouped_count,
    grouped_second_moment,
    grouped_sum,
    normalized_second_moment,
    symmetric,
)
from privet.data import Split
from privet.errors import InputError
from privet.noise import GaussianNoise
from privet.privacy import CovarianceRelease, Event, Gaussian, Ledger
from privet.privacy.events import composed
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

    Formal guarantees: the event is in the ledger before the noise is drawn; the noisy sum is divided by the stated constant
    `public_size`, never by the true number of records.
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
    """The number of records in each of `count` groups, with Gaussian noise; at least 1.

    Here and below, `shares` is that of `Split.shares` if the records have users: each user then counts 1.

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
    return _grouped(grouped_sum, noise, noise.event(), rows, groups, count, bound, ledger, randomness, shares)["sum"]


def private_second_moments(
    rows: Tensor, groups: Tensor, count: int, *, noise_multiplier: float, shares: Tensor | None = None, **settings: Any
) -> Tensor:
    """``(count, d, d)``: the sum of x^T x over each group's rows, clipped to `bound`, with noise on the triangles.

    `settings` are the bound, the ledger and the randomness, as in `private_sums`.

    Formal guarantees: one `CovarianceRelease` for all groups together, since a record is in one of them.
    """
    noise, event = GaussianNoise(noise_multiplier), CovarianceRelease(noise_multiplier)
    found = _grouped(grouped_second_moment, noise, event, rows, groups, count, shares=shares, **settings)
    return symmetric(found)


def _grouped(
    statistic: Callable[[Tensor, Tensor, int, float, Tensor | None], BoundedSum],
    noise: GaussianNoise,
    event: Event,
    rows: Tensor,
    groups: Tensor,
    count: int,
    bound: float,
    ledger: Ledger,
    randomness: Randomness,
    shares: Tensor | None,
) -> dict[str, Tensor]:
    """A statistic of every group with its noise; the event is in the ledger before the noise is drawn."""
    ledger.require_unit("record" if shares is None else "user")
    total = _over_groups(rows, groups, shares, lambda *some: statistic(some[0], some[1], count, bound, some[2]))
    ledger.record(event)
    return noise.add(total, randomness.noise)


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
    # Directions do not depend on the divisor of the sum.
    moment = private_second_moment(
        records, noise_multiplier=noise_multiplier, public_size=1, ledger=ledger, randomness=randomness
    )
    _, vectors = torch.linalg.eigh(moment)
    leading: Tensor = vectors[:, -components:].flip(1).mT
    return leading.to(torch.float32).contiguous()


# --- audits -----------------------------------------------------------------------------------------------------------

Release = Callable[..., Tensor]
"""A function from records to the release; noise, ledger and randomness are given by name."""
FEWER = 4
"""Factor by which the number of draws is reduced if releases are drawn one by one."""

RECORDS = torch.tensor([[0.0, 0.5, 0.0], [0.0, 0.0, -0.5], [1e3, 0.0, 0.0]])
"""The canary is the last one, orthogonal to the others."""
GROUPS = torch.tensor([1, 1, 0])
"""The canary is alone in its group."""


def _mean(records: Split, **settings: Any) -> Tensor:
    return private_mean(records, bound=1.0, public_size=len(RECORDS), **settings)


def _moment(records: Split, **settings: Any) -> Tensor:
    return private_second_moment(records, public_size=len(RECORDS), **settings)[0]


def _counts(records: Split, **settings: Any) -> Tensor:
    return private_counts(records.labels, 2, **settings)


def _sums(records: Split, **settings: Any) -> Tensor:
    return private_sums(records.inputs, records.labels, 2, bound=1.0, **settings)[0]


def _moments(records: Split, **settings: Any) -> Tensor:
    return private_second_moments(records.inputs, records.labels, 2, bound=1.0, **settings)[0, 0]


RELEASES: dict[str, tuple[type[Event], Release]] = {
    "mean": (Gaussian, _mean),
    "second-moment": (CovarianceRelease, _moment),
    "counts": (Gaussian, _counts),
    "sums": (Gaussian, _sums),
    "second-moments": (CovarianceRelease, _moments),
}
"""The releases by name, each with its kind of event. The first coordinate is the score: only the canary changes it."""


def releases_in(
    ledger: Ledger, kinds: Sequence[str], *, draws: int, **settings: Any
) -> tuple[tuple[Audit, ...], Event]:
    """Audits of the releases of these kinds in a ledger, by the code that makes them, and the events that they cover.

    Events of the right type are assigned to the kinds in their order in the ledger; events without a kind are left out.
    """
    left = list(dict.fromkeys(event for event, _ in ledger.event.leaves()))
    found: list[Audit] = []
    covered: list[Event] = []
    for kind in kinds:
        event = next((one for one in left if type(one) is RELEASES[kind][0]), None)
        if event is not None:
            left.remove(event)
            noise: float = event.noise_multiplier  # type: ignore[attr-defined]
            audit = audit_release(kind, noise, draws=max(40, draws // FEWER), **settings)
            said = f"the run's noise, in the code that released the {kind.replace('-', ' ')}"
            unit = "" if ledger.unit == "record" else f"how the records of a {ledger.unit} are joined"
            found.append(replace(audit, audited=said, not_audited="the run's records and bounds").leaving_out(unit))
            covered.append(event)
    return tuple(found), composed(*covered)


def audit_release(kind: str, noise_multiplier: float = 1.0, *, delta: float = 1e-5, **settings: Any) -> Audit:
    """Audit a release of `privet.methods.statistics`; the claim is the event that it writes to its ledger.

    `settings` are those of `privet.audit.mechanism`: draws, confidence, seed and progress.

    Formal guarantees: the bound is that of a Gaussian trade-off, which is what that event claims.
    """
    _, made = RELEASES[kind]
    ledger = Ledger()

    def fn(records: Split, generator: torch.Generator) -> Tensor:
        randomness = Randomness(generator, generator, None)
        return made(records, noise_multiplier=noise_multiplier, ledger=ledger, randomness=randomness)

    data, neighbor = Split(RECORDS, GROUPS), Split(RECORDS[:-1], GROUPS[:-1])
    fn(data, torch.Generator())
    ((event, _),) = ledger
    return mechanism(
        fn,
        data,
        neighbor,
        claimed=event,
        delta=delta,
        score=lambda row: float(row[0]),
        bound=GaussianTradeOff,
        name=f"Private {kind.replace('-', ' ')}",
        setting="two records, and a third one far above the bound",
        **{"draws": 8000, **settings},
    )
