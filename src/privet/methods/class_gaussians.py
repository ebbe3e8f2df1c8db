"""A Gaussian for each class on common directions, from four private releases."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from privet.data import Split
from privet.methods.class_statistics import private_counts, private_second_moments, private_sums
from privet.methods.statistics import private_second_moment
from privet.privacy import Ledger
from privet.randomness import Randomness


@dataclass(frozen=True)
class ReleaseNoise:
    """The noise multiplier of each release.

    Gaussian releases compose exactly: together they cost what one release with
    ``1 / sigma**2 = sum(1 / noise**2)`` costs.
    """

    counts: float
    means: float
    directions: float
    covariances: float

    @classmethod
    def shared(cls, sigma: float, counts: float, means: float, directions: float, covariances: float) -> ReleaseNoise:
        """Of a budget that one release with noise `sigma` spends, so large a share for each."""
        return cls(*(sigma / math.sqrt(share) for share in (counts, means, directions, covariances)))


@dataclass(frozen=True, eq=False)
class ClassGaussians:
    """What was released: to draw from it is post-processing.

    Attributes:
        counts: how many records each class has.
        means: ``(classes, d)``.
        directions: ``(k, d)``, orthonormal.
        roots: ``(classes, k, k)``: a standard normal vector times a root has its class's covariance on the directions.
    """

    counts: Tensor
    means: Tensor
    directions: Tensor
    roots: Tensor

    def sample(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Rows and their classes, as often as the records have them."""
        labels = torch.multinomial(self.counts, size, replacement=True, generator=generator)
        draws = torch.randn(size, len(self.directions), generator=generator)
        rows = self.means[labels]
        for label, root in enumerate(self.roots):
            where = labels == label
            rows[where] += draws[where] @ root.mT @ self.directions
        return rows, labels


def release_gaussians(
    records: Split,
    classes: int,
    *,
    bound: float,
    spread: float,
    most: int,
    pooling: float,
    noise: ReleaseNoise,
    ledger: Ledger,
    randomness: Randomness,
) -> ClassGaussians:
    """Counts, means, directions and covariances of the classes, each with its noise.

    Args:
        records: ``(N, d)``, with their labels and, where a user is the unit, their users.
        classes: how many there are.
        bound: the norm to which a row is clipped for its class's mean.
        spread: about how far a row is from its class's mean; public.
        most: at most so many directions. Fewer are kept where the noise would hide the others.
        pooling: how much of each class's covariance is that of all classes together.
        noise: of each release.
        ledger: where the releases are recorded.
        randomness: where their noise comes from.

    Formal guarantees: the records are used in four releases, each in the ledger before its noise is drawn: counts, sums, DP-PCA,
    second moments by class; and nowhere else: their number is the sum of the released counts.
    """
    rows, labels = records.inputs, records.labels
    kept: dict[str, Any] = {"ledger": ledger, "randomness": randomness}
    shared = kept | {"shares": records.shares}
    counts = private_counts(labels, classes, noise_multiplier=noise.counts, **shared)
    sums = private_sums(rows, labels, classes, bound=bound, noise_multiplier=noise.means, **shared)
    means = (sums / counts[:, None]).float()
    residuals = rows - means[labels]
    seen = records.with_inputs(residuals)
    total = private_second_moment(seen, noise_multiplier=noise.directions, public_size=1, **kept)
    directions, found = _above_noise(total, noise.directions, most)
    variances = found / counts.sum().float() * spread**2
    # Directions of little variance would drown in noise that is the same for all: they are stretched before it is added.
    stretch = variances.clamp(min=1e-9) ** -0.25
    reach = 1.1 * float((variances * stretch**2).sum().sqrt())
    moments = private_second_moments(
        residuals @ directions.mT * stretch,
        labels,
        classes,
        bound=reach,
        noise_multiplier=noise.covariances,
        **shared,
    )
    pooled = moments.sum(0) / counts.sum()
    covariances = (1 - pooling) * moments / counts[:, None, None] + pooling * pooled
    values, vectors = torch.linalg.eigh(covariances)
    roots = (vectors * values.clamp(min=0).sqrt()[:, None, :]).float() / stretch[:, None]
    return ClassGaussians(counts, means, directions, roots)


def _above_noise(moment: Tensor, noise: float, most: int) -> tuple[Tensor, Tensor]:
    """The leading eigenvectors, as rows, whose eigenvalues stand out of those of the noise alone, and the eigenvalues.

    Symmetric noise of standard deviation s in d dimensions has eigenvalues up to 2 s sqrt(d), and lifts a larger
    eigenvalue v to v + s^2 d / v, which is undone. At least one is kept.
    """
    values, vectors = torch.linalg.eigh(moment)
    values, vectors = values.flip(0), vectors.flip(1)
    edge = 2 * noise * math.sqrt(len(moment))
    kept = max(1, min(most, int((values > edge).sum())))
    seen = values[:kept].clamp(min=edge)
    undone = (seen + (seen**2 - edge**2).clamp(min=0).sqrt()) / 2
    return vectors[:, :kept].mT.float().contiguous(), undone.float()
