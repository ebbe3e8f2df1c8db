"""The noise-layer GAN with a proof: what is in front of the noise is frozen, and each record's row has noise of its own.

A record is embedded by a transform that no unprotected record has shaped, beside its label, clipped, and released as a row under
noise. The discriminator learns from these rows and from made ones under the same noise: it, the generator and the data that
comes out are post-processing of the rows. Noise on every row is sqrt(b) times worse than noise on the sum over a batch of b:
that is the price of the idea.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from privet.data import Split
from privet.errors import InputError
from privet.methods.adversarial import balanced_labels, game_randomness, generate
from privet.methods.dp_pca import private_components
from privet.methods.noise_layer_gan import PublishedNoiseLayerGan
from privet.methods.noisy_rows import SCHEMES, NoisyRows, calibrated_rows, row_sampling
from privet.methods.row_game import Layout, Maker, RowGame
from privet.methods.statistics import private_mean
from privet.methods.synthetic import OnStep, Order, Synthesizer, Synthetic
from privet.models.features import FixedProjection, random_convolutions, scattering_projection
from privet.models.gans import DenseGenerator, SpanGenerator
from privet.privacy import Budget, Gaussian, Ledger, Relation, steps_of
from privet.randomness import Randomness

FEATURES = ("components", "random", "scattering")
_EMBEDDED = 1000


@dataclass(frozen=True)
class FrozenNoiseLayerGan:
    """Rows of (embedding, label) under noise, and a GAN that learns from them alone.

    Formal guarantees: proved. Records are used by the releases before the rows (mean and directions, of "components" alone) and
    by the rows (`NoisyRows`), which the ledger holds before they are drawn. Labels are part of the row, and protected with it.

    Attributes:
        features: the embedding: "components" (DP-PCA, accounted), "random" (frozen random convolutions) or "scattering".
        dimension: coordinates of the embedding: the noise of a row has the norm sigma C sqrt(dimension), so keep it small.
        sampling: "padded" (Poisson, add or remove a record) or "fixed" (without replacement, replace a record).
        batch_size: records expected in a batch that is released.
        epochs: expected times that a record is in a batch. All rows stay in memory: 300 MB for 15 epochs of MNIST.
        label_share: of the squared norm of a row, where the label is in it.
        scale: the norm of a record about its mean to which embeddings are clipped, for "components".
        before_share: of the budget (of mu^2), for the mean and the directions of "components".
        rows, steps: how many of the released rows the GAN draws for a step, and its steps: they cost nothing.
        width, latent, learning_rate, averaging: of the GAN.
        module: an embedding of one's own, frozen and trained on public data, instead of `features`.
    """

    features: str = "components"
    dimension: int = 24
    sampling: str = "padded"
    batch_size: int = 32
    epochs: float = 15.0
    label_share: float = 0.5
    scale: float = 6.0
    before_share: float = 0.05
    rows: int = 2000
    steps: int = 2000
    width: int = 128
    latent: int = 32
    learning_rate: float = 1e-3
    averaging: float = 0.995
    module: nn.Module | None = field(default=None, compare=False)

    title = "Noise-layer GAN on frozen features"

    def __post_init__(self) -> None:
        if self.module is None and self.features not in FEATURES:
            raise InputError(f"The features in front of the noise are {', '.join(FEATURES)}, not {self.features!r}.")
        if self.sampling not in SCHEMES:
            raise InputError(f"Rows are sampled {' or '.join(SCHEMES)}, not {self.sampling!r}.")
        if not 0 < self.label_share < 1:
            raise InputError(f"label_share is a part of a row, between 0 and 1, and is {self.label_share}.")

    @classmethod
    def fitting(cls, shape: tuple[int, ...], order: Order, as_published: bool = False) -> Synthesizer:
        """The settings for records of a shape; as published, the source's own method."""
        if as_published:
            return PublishedNoiseLayerGan()
        size = math.prod(shape)
        return cls(dimension=min(cls.dimension, size), scale=0.6 * math.sqrt(size) / 2.8)

    @property
    def relation(self) -> Relation:
        return SCHEMES[self.sampling]

    def synthesize(self, records: Split, order: Order, ledger: Ledger, on_step: OnStep | None = None) -> Synthetic:
        records.require_records(self.title)
        randomness = Randomness.of(order.seed)
        shape = tuple(records[0][0].shape)
        number = self._number(records, order)  # refused before anything is spent
        with game_randomness(order.seed):
            embedding = self._embedding(records, order, ledger, randomness)
            plan = self.plan(number, order, ledger)
            layout = Layout(embedding, order.classes, self.label_share)
            released = _released(plan, _embedded(layout, records), ledger, randomness, on_step)
            maker = self._maker(embedding, shape, order.classes)
            game = RowGame(plan, layout, self.learning_rate, self.averaging, self.width, self.rows)
            frequencies = game.play(maker, released, self.steps, on_step)
            labels = balanced_labels(frequencies, order.size)
            inputs = generate(maker, labels, self.latent)
        settings = self._settings(plan)
        return Synthetic(inputs, labels, None, ledger, settings, place="embedding layer")

    def _number(self, records: Split, order: Order) -> int:
        """The number of records that the sampling is made for.

        Batches of one size are for replacing a record, and the number of records is public then; padded ones need an upper
        bound, since the padding is for all of them.
        """
        if self.relation is Relation.REPLACE_ONE:
            return len(records)
        bound = order.at_most or order.number_of(records)
        if len(records) > bound:
            raise InputError(
                "There are more records than was stated: padded sampling needs a public size that is not too small."
            )
        return bound

    def plan(self, records: int, order: Order, ledger: Ledger) -> NoisyRows:
        """The rows to release, with the noise that the budget allows after what the ledger holds."""
        steps = steps_of(records, self.batch_size, self.epochs)
        sampling = row_sampling(self.sampling, self.batch_size, records, steps, order.delta)
        budget = Budget(order.epsilon, order.delta, self.relation).after(ledger, fixed_beforehand=True)
        return calibrated_rows(sampling, steps, budget)

    def _maker(self, embedding: nn.Module, shape: tuple[int, ...], classes: int) -> Maker:
        size: dict[str, Any] = {"latent": self.latent, "width": self.width}
        if isinstance(embedding, FixedProjection):
            return SpanGenerator(embedding.mean, embedding.directions, embedding.scale, shape, classes, **size)
        return DenseGenerator(shape, classes, **size)

    def _embedding(self, records: Split, order: Order, ledger: Ledger, randomness: Randomness) -> nn.Module:
        """The frozen part: of "components", its mean and directions are released here."""
        shape = tuple(records[0][0].shape)
        if self.module is not None:
            return self.module
        if self.features != "components":
            if len(shape) != 3:
                raise InputError(f"Features {self.features!r} are for images: take 'components' for other records.")
            make = random_convolutions if self.features == "random" else scattering_projection
            return make(shape, self.dimension)
        whole = Budget(order.epsilon, order.delta, self.relation, "gdp").least(Gaussian)
        noise = whole / math.sqrt(self.before_share)
        settings: dict[str, Any] = {"ledger": ledger, "randomness": randomness}
        bound = math.sqrt(math.prod(shape)) / 2.8
        mean = private_mean(
            records, bound=bound, noise_multiplier=5 * noise, public_size=order.number_of(records), **settings
        )
        flat = Split(records.tensors[0].flatten(1) - mean.flatten(), records.labels)
        directions = private_components(flat, self.dimension, noise_multiplier=noise, **settings)
        return FixedProjection(mean, directions, self.scale)

    def _settings(self, plan: NoisyRows) -> dict[str, str]:
        what = "a module of your own" if self.module is not None else self.features
        padded = f", padded to {plan.sampling.rows} rows" if self.sampling == "padded" else ""
        return {
            "In front of the noise": f"{what}, {self.dimension} coordinates, frozen",
            "Labels": f"protected: in the row, with {self.label_share:g} of its squared norm",
            "Noise": f"N(0, ({plan.noise_multiplier:.4g} C)^2) on each coordinate of each row",
            "Rows": f"{plan.steps:,} batches of {self.batch_size} records expected{padded}; about {self.epochs:g} epochs",
            "GAN": f"dense, width {self.width}; {self.steps:,} steps of {self.rows:,} rows; Adam, {self.learning_rate:g}",
        }


def _embedded(layout: Layout, records: Split) -> Tensor:
    """The row of every record, each from its record alone."""
    with torch.no_grad():
        parts = [layout.rows(*records.batch(some)) for some in torch.arange(len(records)).split(_EMBEDDED)]
    return torch.cat(parts)


def _released(
    plan: NoisyRows, embeddings: Tensor, ledger: Ledger, randomness: Randomness, on_step: OnStep | None
) -> Tensor:
    """All rows of a plan in one tensor, into which they are written as they come."""
    rows = torch.empty(plan.steps, plan.sampling.rows, embeddings.shape[1])
    for step, batch in enumerate(plan.release(embeddings, ledger, randomness)):
        rows[step] = batch
        if on_step is not None:
            on_step({"what": "Releasing rows", "step": step + 1, "steps": plan.steps})
    return rows.flatten(0, 1)
