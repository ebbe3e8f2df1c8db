"""Attacks on synthetic data: does it lie closer to the records it was made from than to others like them?

Every figure stands beside the same figure for held-out records of the same distribution: closeness alone is no leak.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from privet.attacks.answers import Inputs
from privet.attacks.roc import Interval, Roc
from privet.errors import InputError

Array = NDArray[np.float64]
CHUNK = 2048
DIVISIONS = 2000
"""So many times records are divided at random."""


@dataclass(frozen=True)
class ClosestRecords:
    """For how many synthetic rows the closest real record is one of the training records, and not a held-out one.

    Without memorisation that share is one half in the mean: both sides have the same number of records. It scatters about it far
    more than the number of rows suggests, since many rows can have the same closest record.

    Attributes:
        share: of the synthetic rows; a tie counts one half.
        by_chance: what the share is where the same records are divided into two sides at random: above it, rows lie closer to
            the training records than chance explains, if training and held-out records are of one distribution.
        to_training, to_holdout: the medians of the distances.
        rows, records: how many synthetic rows, and records on each side.
        closest: so many records would be closest to a row each if all had equally many rows: 1 / sum of squared shares.
    """

    share: float
    by_chance: Interval
    to_training: float
    to_holdout: float
    rows: int
    records: int
    closest: float

    @property
    def leaks(self) -> bool:
        """Whether the share is above what chance explains."""
        return self.share > self.by_chance.high

    def __str__(self) -> str:
        low, high = 100 * self.by_chance.low, 100 * self.by_chance.high
        verdict = "more than chance explains" if self.leaks else "no more than chance explains"
        return (
            f"{100 * self.share:.1f} % of {self.rows:,} synthetic rows lie closer to a training record than to a held-out "
            f"one, {verdict}: dividing the same {2 * self.records:,} records at random gives {low:.1f} to {high:.1f} % in "
            f"{100 * self.by_chance.level:g} % of cases, because the rows are close to about {self.closest:.0f} of them; "
            f"median distance {self.to_training:.4g} against {self.to_holdout:.4g}"
        )


@dataclass(frozen=True)
class Copies:
    """Synthetic rows that are a record, exactly or within a tolerance: of the training data and of held-out records.

    Attributes:
        of_training, of_holdout: how many rows are.
        rows, training, holdout: how many rows and records were compared.
    """

    of_training: int
    of_holdout: int
    rows: int
    training: int
    holdout: int
    tolerance: float

    def __str__(self) -> str:
        how = "exact copies" if self.tolerance == 0 else f"copies within {self.tolerance:g}"
        return (
            f"{self.of_training:,} of {self.rows:,} synthetic rows are {how} of one of {self.training:,} training records, "
            f"{self.of_holdout:,} of one of {self.holdout:,} held-out ones"
        )


def closest_records(
    synthetic: Inputs, training: Inputs, holdout: Inputs, generator: torch.Generator, level: float = 0.95
) -> ClosestRecords:
    """Distance to the closest record, against a held-out baseline of the same size (the larger side is sampled).

    Formal guarantees: where training and held-out records are exchangeable and the rows are independent of which is which, the
    share is outside `by_chance` with probability 1 - `level` (up to the number of random divisions), however the rows depend
    on each other: it is a permutation test.
    """
    rows, inside, outside = (_rows(part) for part in (synthetic, training, holdout))
    size = min(len(inside), len(outside))
    inside, outside = (side[torch.randperm(len(side), generator=generator)[:size]] for side in (inside, outside))
    (near, inner), (far, outer) = _closest(rows, inside), _closest(rows, outside)
    won = (near < far).double() + 0.5 * (near == far).double()
    # How much of the rows has each record, of both sides, for its closest.
    weights = torch.cat([torch.bincount(place, part, size) for place, part in ((inner, won), (outer, 1 - won))]) / len(
        rows
    )
    divided = [weights[torch.randperm(2 * size, generator=generator)[:size]].sum() for _ in range(DIVISIONS)]
    tail = (1 - level) / 2
    low, high = torch.stack(divided).quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    medians = float(near.median()), float(far.median())
    by_chance = Interval(low, high, level, "random divisions")
    return ClosestRecords(float(won.mean()), by_chance, *medians, len(rows), size, 1 / float(weights.square().sum()))


def distance_attack(synthetic: Inputs, members: Inputs, non_members: Inputs) -> Roc:
    """Membership by the distance to the closest synthetic row: small for a record that was memorised."""
    rows = _rows(synthetic)
    inside, outside = ((-nearest(_rows(side), rows)).numpy() for side in (members, non_members))
    return Roc.of(inside, outside)


def density_ratio(
    synthetic: Inputs, reference: Inputs, members: Inputs, non_members: Inputs, *, components: int = 8
) -> Roc:
    """Membership by log p(x | synthetic) - log p(x | reference), after DOMIAS (van Breugel et al. 2023).

    High where the synthetic data is denser than the population, which overfitting explains. The densities are Gaussian
    kernels on the leading principal components of both sets; `reference` are records of the population that are
    neither members nor the non-members that are asked about.
    """
    parts = [_rows(part).numpy() for part in (synthetic, reference, members, non_members)]
    made, known = parts[:2]
    centre = known.mean(axis=0)
    _, values, axes = np.linalg.svd(np.concatenate([made, known]) - centre, full_matrices=False)
    kept = min(components, int((values > 1e-9 * values[0]).sum()), min(len(made), len(known)) - 2)
    if kept < 1:
        raise InputError(
            "The densities need more rows that differ: give more synthetic rows and more of the reference."
        )
    projected = [(part - centre) @ axes[:kept].T for part in parts]
    densities = [stats.gaussian_kde(part.T) for part in projected[:2]]
    scores: list[Array] = [densities[0].logpdf(part.T) - densities[1].logpdf(part.T) for part in projected[2:]]
    return Roc.of(*(np.nan_to_num(score, nan=0.0) for score in scores))


def exact_copies(synthetic: Inputs, training: Inputs, holdout: Inputs, tolerance: float = 0.0) -> Copies:
    """How many synthetic rows are a record, within `tolerance` in Euclidean distance; 0 asks for equality, and is quick."""
    if tolerance > 0:
        rows, inside, outside = (_rows(part) for part in (synthetic, training, holdout))
        copied, alike = (int((nearest(rows, side) <= tolerance).sum()) for side in (inside, outside))
    else:
        made, known, other = (list(_digests(part)) for part in (synthetic, training, holdout))
        copied, alike = (sum(digest in side for digest in made) for side in (set(known), set(other)))
    return Copies(copied, alike, len(synthetic), len(training), len(holdout), tolerance)


def _digests(inputs: Inputs) -> Iterator[bytes]:
    """Of each row one digest: equal rows have equal ones. A part of the rows at a time, since float64 takes memory."""
    tensor = torch.as_tensor(inputs)
    for start in range(0, max(len(tensor), 1), CHUNK):
        for row in _plain(_rows(tensor[start : start + CHUNK])):
            yield hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def nearest(rows: Tensor, others: Tensor) -> Tensor:
    """The Euclidean distance of each row to the closest of the others."""
    return _closest(rows, others)[0]


def _closest(rows: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """The Euclidean distance of each row to the closest of the others, and which one it is: the first of several."""
    distances, places = [], []
    for chunk in rows.split(CHUNK):
        best = torch.full((len(chunk),), float("inf"), dtype=rows.dtype)
        where = torch.zeros(len(chunk), dtype=torch.int64)
        for start in range(0, len(others), CHUNK):
            some = others[start : start + CHUNK]
            # The exact differences: squares and products would round the distance of a copy to something above zero.
            found, place = torch.cdist(chunk, some, compute_mode="donot_use_mm_for_euclid_dist").min(1)
            where = torch.where(found < best, place + start, where)
            best = torch.minimum(best, found)
        distances.append(best)
        places.append(where)
    return torch.cat(distances), torch.cat(places)


def _rows(inputs: Inputs) -> Tensor:
    tensor = torch.as_tensor(inputs).to(torch.float64)
    if tensor.ndim < 2 or len(tensor) == 0:
        raise InputError(f"An attack on synthetic data needs rows of numbers, not a shape of {tuple(tensor.shape)}.")
    if not bool(tensor.isfinite().all()):
        raise InputError("Some rows hold values that are not finite: fill them before the attack.")
    return tensor.flatten(1)


def _plain(rows: Tensor) -> Array:
    # Adding zero turns -0 into 0, whose bytes differ.
    plain: Array = np.ascontiguousarray(rows.numpy() + 0.0)
    return plain
