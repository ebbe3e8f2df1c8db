"""Rows with noise: each record of a batch is released by itself, as a short vector under noise of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from privet.clipping.rows import clipped_rows
from privet.errors import InputError
from privet.noise import GaussianNoise
from privet.privacy import Budget, Event, Gaussian, Ledger, Relation
from privet.randomness import Randomness
from privet.sampling import FixedSizeSampling, PaddedPoissonSampling
from privet.sampling.samplers import EMPTY

SCHEMES = {"padded": Relation.ADD_REMOVE, "fixed": Relation.REPLACE_ONE}
"""How rows are sampled, and for which relation that is accounted."""
_OVERFLOW_SHARE = 1e-3
"""At most this part of delta is the probability that a batch has more records than rows."""

RowSampling = FixedSizeSampling | PaddedPoissonSampling


@dataclass(frozen=True)
class NoisyRows:
    """`steps` batches of rows, each row clipped to norm `bound`, plus N(0, (noise_multiplier * bound)^2) on every coordinate.

    Formal guarantees: everything that is yielded costs `event`, under `relation`. With padded Poisson sampling, adding or
    removing a record changes one row, from nothing to at most `bound`; the number of records in a batch is not seen, since
    empty rows look like noise, as all do. With samples of fixed size, replacing a record changes one row by at most twice
    `bound`. Rows come in random order, which both ask for. Plain Poisson sampling would show how many rows there are, and earns
    no amplification.
    """

    sampling: RowSampling
    noise_multiplier: float
    steps: int
    bound: float = 1.0

    @property
    def relation(self) -> Relation:
        return SCHEMES["fixed" if isinstance(self.sampling, FixedSizeSampling) else "padded"]

    @property
    def event(self) -> Event:
        return self.sampling.event(Gaussian(self.noise_multiplier)) * self.steps

    @property
    def filled(self) -> float:
        """The expected part of the rows that hold a record; public."""
        if isinstance(self.sampling, FixedSizeSampling):
            return 1.0
        return self.sampling.rate * self.sampling.records / self.sampling.rows

    def release(self, embeddings: Tensor, ledger: Ledger, randomness: Randomness) -> Iterator[Tensor]:
        """The batches, each of ``(rows, d)``; the whole of `event` is in the ledger before the first is drawn.

        Args:
            embeddings: ``(N, d)``, each computed from its record alone. A label belongs into it, also where labels are public:
                beside the row it would tell who can be in it, which takes away the amplification by sampling.
            ledger: with the relation of the sampling.
            randomness: of sampling, order and noise.
        """
        if ledger.relation is not self.relation:
            raise InputError(f"Such rows are accounted for {self.relation.value}; the ledger is for {ledger.relation}.")
        ledger.require_unit("record")
        ledger.record(self.event)
        noise = GaussianNoise(self.noise_multiplier)
        for _ in range(self.steps):
            drawn = self.sampling.draw(len(embeddings), randomness.sampling)
            places = (drawn != EMPTY).nonzero().flatten()
            bounded = clipped_rows(embeddings[drawn[places]], places, self.sampling.rows, self.bound)
            yield noise.add(bounded, randomness.noise)["rows"].to(embeddings.dtype)

    def imitate(self, embeddings: Tensor) -> Tensor:
        """Rows of made examples as those of records look: clipped, left empty as often, with the same noise.

        Not private and in need of none: what is given was made. Gradients go through it.
        """
        norms = embeddings.norm(dim=1, keepdim=True).clamp(min=1e-12)
        clipped = embeddings * (self.bound / norms).clamp(max=1.0)
        held = torch.rand(len(clipped), 1) < self.filled
        rows: Tensor = clipped * held + torch.randn_like(clipped) * (self.noise_multiplier * self.bound)
        return rows


def row_sampling(scheme: str, size: int, records: int, steps: int, delta: float) -> RowSampling:
    """The scheme by its name: "padded" (Poisson, add/remove) or "fixed" (without replacement, replace one)."""
    if scheme not in SCHEMES:
        raise InputError(f"Rows are sampled {' or '.join(SCHEMES)}, not {scheme!r}.")
    if scheme == "fixed":
        return FixedSizeSampling(size, records)
    return PaddedPoissonSampling.for_steps(size, records, steps, _OVERFLOW_SHARE * delta)


def calibrated_rows(sampling: RowSampling, steps: int, budget: Budget) -> NoisyRows:
    """The rows with the least noise that the budget allows after what it has spent."""
    guess = 0.6 if isinstance(sampling, PaddedPoissonSampling) else 1.2
    least = budget.least(lambda sigma: sampling.event(Gaussian(sigma)) * steps, guess, "noise multiplier")
    return NoisyRows(sampling, least, steps)
