"""Attacks on synthetic data: does it lie closer to the records it was made from than to others like them?

Every figure stands beside the same figure for held-out records of the same distribution: closeness alone is no leak.
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class ClosestRecords:
    """For how many synthetic rows the closest real record is one of the training records, and not a held-out one.

    Without memorisation that share is one half: both sides have the same number of records.

    Attributes:
        share: of the synthetic rows; a tie counts one half.
        interval: of the share (Clopper-Pearson), the rows taken as independent.
        to_training, to_holdout: the medians of the distances.
        rows, records: how many synthetic rows, and records on each side.
    """

    share: float
    interval: Interval
    to_training: float
    to_holdout: float
    rows: int
    records: int

    def __str__(self) -> str:
        return (
            f"{100 * self.share:.1f} % of {self.rows:,} synthetic rows lie closer to a training record than to a held-out "
            f"one ({100 * self.interval.level:g} % interval {100 * self.interval.low:.1f} to "
            f"{100 * self.interval.high:.1f} %; a coin has 50 %); median distance {self.to_training:.4g} against "
            f"{self.to_holdout:.4g}"
        )


@dataclass(frozen=True)
class Copies:
    """Synthetic rows that are a record, exactly or within a tolerance: of the training data and of held-out records."""

    of_training: int
    of_holdout: int
    rows: int
    tolerance: float

    def __str__(self) -> str:
        how = "exact copies" if self.tolerance == 0 else f"copies within {self.tolerance:g}"
        return (
            f"{self.of_training:,} of {self.rows:,} synthetic rows are {how} of training records, {self.of_holdout:,} of "
            f"held-out ones"
        )


def closest_records(
    synthetic: Inputs, training: Inputs, holdout: Inputs, generator: torch.Generator, level: float = 0.95
) -> ClosestRecords:
    """Distance to the closest record, against a held-out baseline of the same size (the larger side is sampled)."""
    rows, inside, outside = (_rows(part) for part in (synthetic, training, holdout))
    size = min(len(inside), len(outside))
    inside, outside = (side[torch.randperm(len(side), generator=generator)[:size]] for side in (inside, outside))
    near, far = nearest(rows, inside), nearest(rows, outside)
    wins = float((near < far).sum() + 0.5 * (near == far).sum())
    tail = (1 - level) / 2
    low = float(stats.beta.ppf(tail, wins, len(rows) - wins + 1)) if wins > 0 else 0.0
    high = float(stats.beta.ppf(1 - tail, wins + 1, len(rows) - wins)) if wins < len(rows) else 1.0
    interval = Interval(low, high, level, "Clopper-Pearson")
    medians = float(near.median()), float(far.median())
    return ClosestRecords(wins / len(rows), interval, *medians, len(rows), size)


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
    """How many synthetic rows are a record, within `tolerance` in Euclidean distance; 0 asks for equality."""
    rows, inside, outside = (_rows(part) for part in (synthetic, training, holdout))
    if tolerance > 0:
        copied, alike = (int((nearest(rows, side) <= tolerance).sum()) for side in (inside, outside))
    else:
        known = ({row.tobytes() for row in _plain(side)} for side in (inside, outside))
        copied, alike = (sum(row.tobytes() in side for row in _plain(rows)) for side in known)
    return Copies(copied, alike, len(rows), tolerance)


def nearest(rows: Tensor, others: Tensor) -> Tensor:
    """The Euclidean distance of each row to the closest of the others."""
    parts = []
    for chunk in rows.split(CHUNK):
        best = torch.full((len(chunk),), float("inf"), dtype=rows.dtype)
        for some in others.split(CHUNK):
            # The exact differences: squares and products would round the distance of a copy to something above zero.
            best = torch.minimum(best, torch.cdist(chunk, some, compute_mode="donot_use_mm_for_euclid_dist").amin(1))
        parts.append(best)
    return torch.cat(parts)


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
