"""One-shot moments: class means, common directions and class covariances, released once; all else is post-processing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from privet.data import Split
from privet.errors import InputError
from privet.methods.class_statistics import private_counts, private_second_moments, private_sums
from privet.methods.dp_pca import private_components
from privet.methods.synthetic import OnStep, Order, Synthetic
from privet.privacy import Budget, Gaussian, Ledger, Relation
from privet.randomness import Randomness


@dataclass(frozen=True)
class Moments:
    """A Gaussian for each class on common principal directions (DP-PCA of what is left after the class means).

    Attributes:
        components: how many directions.
        bound: the norm to which a record is clipped for its class's mean.
        residual_bound: the norm to which what is left of it is clipped, on the directions, for the covariances.
        counts_share, means_share, directions_share, covariances_share: of the budget (of mu^2 of the Gaussian
            trade-off, in which releases add up).
    """

    components: int = 30
    bound: float = 10.0
    residual_bound: float = 6.0
    counts_share: float = 0.02
    means_share: float = 0.18
    directions_share: float = 0.3
    covariances_share: float = 0.5

    title = "One-shot class moments"
    relation = Relation.ADD_REMOVE

    @classmethod
    def fitting(cls, shape: tuple[int, ...], order: Order, as_published: bool = False) -> Moments:
        """The settings for records of a shape."""
        if as_published:
            raise InputError("--as-published belongs to noise-layer-gan: moments has no published form.")
        size = math.prod(shape)
        bound = math.sqrt(size) / 2.8
        return cls(components=min(30, size), bound=bound, residual_bound=0.6 * bound)

    def synthesize(self, records: Split, order: Order, ledger: Ledger, on_step: OnStep | None = None) -> Synthetic:
        randomness = Randomness.of(order.seed)
        x, y = records.tensors
        x = x.flatten(1)
        sigma = Budget(order.epsilon, order.delta, accountant="gdp").least(Gaussian)
        classes = order.classes

        def noise(share: float) -> float:
            return sigma / math.sqrt(share)

        counts = private_counts(
            y, classes, noise_multiplier=noise(self.counts_share), ledger=ledger, randomness=randomness
        )
        means = (
            private_sums(
                x,
                y,
                classes,
                bound=self.bound,
                noise_multiplier=noise(self.means_share),
                ledger=ledger,
                randomness=randomness,
            )
            / counts[:, None]
        )
        means = means.clamp(0, 1).float()
        residuals = x - means[y]
        directions = private_components(
            Split(residuals, y),
            self.components,
            noise_multiplier=noise(self.directions_share),
            ledger=ledger,
            randomness=randomness,
        )
        moments = (
            private_second_moments(
                residuals @ directions.mT,
                y,
                classes,
                bound=self.residual_bound,
                noise_multiplier=noise(self.covariances_share),
                ledger=ledger,
                randomness=randomness,
            )
            / counts[:, None, None]
        )
        generator = torch.Generator().manual_seed(torch.seed() if order.seed is None else order.seed)
        labels = torch.multinomial(counts, order.size, replacement=True, generator=generator)
        inputs = _sample(means, directions, moments, labels, generator)
        return Synthetic(
            inputs.reshape(-1, *records[0][0].shape),
            labels,
            None,
            ledger,
            {"Directions": f"{self.components} common to all classes"},
        )


def _sample(means: Tensor, directions: Tensor, moments: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    values, vectors = torch.linalg.eigh(moments)
    roots = (vectors * values.clamp(min=0).sqrt()[:, None, :]).float()
    draws = torch.randn(len(labels), directions.shape[0], generator=generator)
    inputs = means[labels].clone()
    for label in range(len(means)):
        where = labels == label
        inputs[where] += draws[where] @ roots[label].mT @ directions
    return inputs.clamp_(0, 1)
