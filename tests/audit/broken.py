"""Planted bugs: small private steps, each with one thing wrong, and the setting in which it bites.

In all of them the gradient of a record is the record itself unless a model is built, C is 1, and an attacker sees what is
returned. `mended` is the same step done right, where it can be.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privet import audit
from privet.attacks import outside
from privet.audit import Audit
from privet.audit.white_box import WIDTH, two_layers
from privet.clipping import (
    AdaptiveClipping,
    AutomaticClipping,
    Clipping,
    EllipticalClipping,
    FlatClipping,
    PerLayerClipping,
    Released,
)
from privet.clipping.clippings import COUNT
from privet.methods.dpgan import called_real
from privet.methods.frozen_noise_layer_gan import NoisyRows
from privet.methods.perturbation import ResidualPerturbation
from privet.models.gans import discriminator
from privet.noise import ProductLaplaceNoise
from privet.noise.gaussian import NoiseLayer
from privet.privacy import Budget, Event, Gaussian, Ledger, PoissonSampled, Relation
from privet.privacy.residual import Theorem1
from privet.randomness import Randomness
from privet.sampling import FixedSizeSampling

Step = Callable[[Any, torch.Generator], Any]


def clippings() -> dict[str, Clipping]:
    """Every clipping of the library, on the stand-in model."""
    generator = torch.Generator().manual_seed(0)
    diagonal = {name: torch.rand(shape, generator=generator) * 3 + 0.2 for name, shape in two_layers(WIDTH).items()}
    return {
        "flat": FlatClipping(1.0),
        "per-layer": PerLayerClipping(1.0),
        "automatic": AutomaticClipping(1.0),
        "adaptive": AdaptiveClipping(1.0),
        "elliptical": EllipticalClipping(diagonal),
    }


@dataclass(frozen=True)
class Bug:
    """One planted bug: what is claimed of it, and two data sets on which it shows."""

    mechanism: str
    name: str
    setting: str
    broken: Step
    data: Any
    neighbour: Any
    claimed: Event | float
    delta: float = 0.01
    mended: Step | None = None
    score: Callable[[Any], float] | None = None
    relation: Relation = Relation.ADD_REMOVE
    draws: int = 2000

    def audit(self, fn: Step | None = None, *, seed: int = 0) -> Audit:
        return audit.mechanism(
            fn or self.broken,
            self.data,
            self.neighbour,
            claimed=self.claimed,
            delta=self.delta,
            score=self.score,
            draws=self.draws,
            relation=self.relation,
            name=f"{self.mechanism}: {self.name}",
            setting=self.setting,
            seed=seed,
        )


def clipped(gradients: Tensor, bound: float = 1.0) -> Tensor:
    norms = gradients.flatten(1).norm(dim=1).clamp(min=1e-12)
    return gradients * (bound / norms).clamp(max=1).view(-1, *[1] * (gradients.ndim - 1))


def noise(like: Tensor, scale: float, generator: torch.Generator) -> Tensor:
    return scale * torch.randn(like.shape, generator=generator)


def right(records: Tensor, generator: torch.Generator) -> Tensor:
    """The step done right: clip each, add, noise of sigma = 1."""
    total = clipped(records).sum(0)
    return total + noise(total, 1.0, generator)


def no_clipping(records: Tensor, generator: torch.Generator) -> Tensor:
    total = records.sum(0)
    return total + noise(total, 1.0, generator)


def mean_clipped(records: Tensor, generator: torch.Generator, lot: int = 4) -> Tensor:
    mean = clipped(records.sum(0, keepdim=True) / lot)[0]
    return mean + noise(mean, 1.0 / lot, generator)


def noise_of_the_mean(records: Tensor, generator: torch.Generator, lot: int = 4) -> Tensor:
    total = clipped(records).sum(0)
    return total + noise(total, 1.0 / lot, generator)


def noise_reused(records: Tensor, generator: torch.Generator) -> Tensor:
    """Two steps; the canary's gradient turns round between them, as that of a fitted record does."""
    total = clipped(records).sum(0)
    drawn = noise(total, 1.0, generator)
    return torch.stack([total + drawn, -total + drawn])


def noise_afresh(records: Tensor, generator: torch.Generator) -> Tensor:
    total = clipped(records).sum(0)
    return torch.stack([total + noise(total, 1.0, generator), -total + noise(total, 1.0, generator)])


LAYERS = 9


def per_layer_as_one(records: Tensor, generator: torch.Generator, scale: float = 1.0) -> Tensor:
    total = torch.cat([clipped(part).sum(0) for part in records.chunk(LAYERS, dim=1)])
    return total + noise(total, scale, generator)


def per_layer_together(records: Tensor, generator: torch.Generator) -> Tensor:
    return per_layer_as_one(records, generator, math.sqrt(LAYERS))


def divided_by_the_batch(records: Tensor, generator: torch.Generator) -> Tensor:
    return right(records, generator) / len(records)


BATCHES = 20


def shuffled_epoch(records: Tensor, generator: torch.Generator) -> Tensor:
    """One epoch in shuffled batches of two; every batch's noisy sum is seen."""
    order = torch.randperm(len(records), generator=generator)
    padded = torch.cat([clipped(records)[order, 0], torch.zeros(2 * BATCHES - len(records))])
    sums = padded.view(BATCHES, 2).sum(1)
    return sums + noise(sums, SHUFFLE_SIGMA, generator)


def poisson_epoch(records: Tensor, generator: torch.Generator) -> Tensor:
    chosen = torch.rand(BATCHES, len(records), generator=generator) < 1 / BATCHES
    sums = chosen.float() @ clipped(records)[:, 0]
    return sums + noise(sums, SHUFFLE_SIGMA, generator)


SHUFFLE_SIGMA = 0.5


def odd_batch(sums: Tensor) -> float:
    """Shuffled, every batch holds -2, except for the canary's (0) or, without it, the short last one (-1)."""
    with_it = torch.logsumexp(-((sums - 0) ** 2 - (sums + 2) ** 2) / (2 * SHUFFLE_SIGMA**2), 0) - math.log(len(sums))
    without = -((sums[-1] + 1) ** 2 - (sums[-1] + 2) ** 2) / (2 * SHUFFLE_SIGMA**2)
    return float(with_it - without)


def fake_in_an_empty_batch(records: Tensor, generator: torch.Generator) -> Tensor:
    batch = records[torch.rand(len(records), generator=generator) < 0.5]
    if len(batch) == 0:
        batch = -torch.ones(1, records.shape[1])
    return right(batch, generator)


def empty_batch(records: Tensor, generator: torch.Generator) -> Tensor:
    return right(records[torch.rand(len(records), generator=generator) < 0.5], generator)


def linear_with_bias(records: Tensor, generator: torch.Generator, *, with_bias: bool = False) -> Tensor:
    """The weight's gradient is the input and the bias's is 3: records of a loss that is three times the output."""
    weight, bias = 3 * records, 3 * torch.ones(len(records), 1)
    whole = torch.cat([weight, bias], dim=1)
    norms = (whole if with_bias else weight).norm(dim=1).clamp(min=1e-12)
    total = (whole / norms.clamp(min=1)[:, None]).sum(0)
    return total + noise(total, 1.0, generator)


def circular_convolution(records: Tensor, generator: torch.Generator, *, padded: bool = False) -> Tensor:
    """A 3x3 convolution with circular padding, whose output is summed: tap (i, j) sees the image shifted so."""
    around = F.pad(records, (1, 1, 1, 1), mode="circular")
    size = records.shape[-1]
    gradients = around.unfold(2, size, 1).unfold(3, size, 1).sum((-1, -2))
    zeros = F.pad(records, (1, 1, 1, 1)).unfold(2, size, 1).unfold(3, size, 1).sum((-1, -2))
    norms = (gradients if padded else zeros).flatten(1).norm(dim=1)
    total = (gradients / norms.clamp(min=1).view(-1, 1, 1, 1)).sum(0)
    return total + noise(total, 1.0, generator)


WORKERS = 4


def shares(records: Tensor, generator: torch.Generator, *, averaged: bool = True) -> Tensor:
    """Each worker clips its records and draws its share of the noise."""
    total = clipped(records).sum(0)
    drawn = torch.stack([noise(total, 1 / math.sqrt(WORKERS), generator) for _ in range(WORKERS)])
    return total + (drawn.mean(0) if averaged else drawn.sum(0))


def adaptive_norm(records: Tensor, generator: torch.Generator, *, count_noise: bool = False) -> Tensor:
    """One step with a norm that follows the median: the gradient and the new norm are seen."""
    clipping = AdaptiveClipping(1.0)
    norms = records.norm(dim=1)
    total = clipped(records).sum(0)
    count = torch.where(norms <= 1, 0.5, -0.5).sum()
    if count_noise:  # shares of the budget: 1 % to the count, whose sensitivity is one half
        total = total + noise(total, 1 / math.sqrt(0.99), generator)
        count = count + noise(count, 5.0, generator)
    else:
        total = total + noise(total, 1.0, generator)
    moved = clipping.update(1.0, Released({COUNT: count}, 100))
    return torch.cat([total, torch.tensor([math.log(moved)])])


def orthogonal(x: Tensor) -> Callable[[Tensor], float]:
    """How much of a layer's gradient lies outside the span of x: nothing, if x alone was trained on."""
    unit = x.flatten() / x.norm()

    def score(gradient: Tensor) -> float:
        outside = gradient - (gradient @ unit)[:, None] * unit
        return -float(outside.norm() / gradient.norm())

    return score


torch.manual_seed(0)
PIXELS = 12
JUDGE = discriminator(nn.Identity(), size=(8, 8), classes=2, width=2).eval()  # one image has no batch statistics
ROW_JUDGE = nn.Sequential(nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, 1))
CLAIMED = 3.45
CLAIMED_SIGMA = Budget(CLAIMED, 1e-5, accountant="moments").least(Gaussian)
PROVED_SIGMA = Budget(CLAIMED, 1e-5, Relation.REPLACE_ONE).least(Gaussian)
GAMMA = 5.0


class Block(nn.Module):
    """x + F(x) with two dense layers: a residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.residual = nn.Sequential(nn.Linear(PIXELS, 6), nn.Tanh(), nn.Linear(6, PIXELS))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.residual(x)


RESIDUAL = nn.Sequential(Block(), nn.Linear(PIXELS, 3))
ONE_PASS = Theorem1(steps=1, batch_size=1, records=1, blocks=1, delta=1e-5, bound=1.0, radius=1.0)


def noise_layer_gan(records: Tensor, generator: torch.Generator) -> Tensor:
    """The gradient of the published discriminator's first kernels on one real image, at its claimed noise for one step."""
    JUDGE.noise = NoiseLayer(1.0, CLAIMED_SIGMA, generator)
    loss = called_real(JUDGE(records, torch.zeros(len(records), dtype=torch.int64)))
    return torch.autograd.grad(loss, JUDGE.before[0].weight)[0][:, 0].flatten(1)


def noisy_rows(records: Tensor, generator: torch.Generator) -> Tensor:
    """The gradient of a discriminator's first layer on the image's row: its mean patch, clipped, under noise."""
    embeddings = F.unfold(records, 4, stride=2, padding=1).mean(2)
    plan = NoisyRows(FixedSizeSampling(1, 1), PROVED_SIGMA, 1)
    streams = Randomness(generator, generator, 0)
    (rows,) = plan.release(embeddings, Ledger(relation=Relation.REPLACE_ONE), streams)
    return torch.autograd.grad(called_real(ROW_JUDGE(rows).squeeze(1)), ROW_JUDGE[0].weight)[0]


def outside_patches(image: Tensor) -> Callable[[Tensor], float]:
    """How much of a gradient lies outside the span of an image's patches: nothing, if that image alone was trained on."""
    patches = F.unfold(image, 4, stride=2, padding=1)[0].T
    return lambda gradient: -float(outside(patches, gradient).max())


def residual_perturbation(records: Tensor, generator: torch.Generator, *, pi: float = 0.0) -> Tensor:
    """The gradient of the first block's first layer, by the method itself, strategy I."""
    how = ResidualPerturbation(GAMMA, pi=pi, radius=1.0 if pi else None, bound=1.0)
    with how.apply(RESIDUAL, blocks=["0"], source=generator):
        loss = F.cross_entropy(RESIDUAL(records), torch.zeros(len(records), dtype=torch.int64))
    return torch.autograd.grad(loss, RESIDUAL[0].residual[0].weight)[0]


def residual_perturbation_with_input_noise(records: Tensor, generator: torch.Generator) -> Tensor:
    return residual_perturbation(records, generator, pi=ONE_PASS.pi(ONE_PASS.epsilon_by_stream(GAMMA)))


def optimised_noise(records: Tensor, generator: torch.Generator, *, weights: Tensor | None = None) -> Tensor:
    """Product Laplace noise with rates by the weights of coordinates, here the private gradient itself; epsilon 1."""
    total = clipped(records).sum(0)
    w = (total.abs() if weights is None else weights).clamp(min=1e-6)
    return total + ProductLaplaceNoise.solve(w, epsilon=1.0).sample(generator)


def optimised_noise_public(records: Tensor, generator: torch.Generator) -> Tensor:
    return optimised_noise(records, generator, weights=torch.ones(records.shape[1]))


def one(*values: float) -> Tensor:
    return torch.tensor([values])


NOTHING = torch.zeros(0, 1)
FEW = one(0.3, -0.2)
CANARY = one(30.0, 0.0)
WITH = torch.cat([FEW, CANARY])
PLAIN, PATTERN = torch.full((1, 1, 8, 8), 0.7), torch.linspace(-1, 1, 64).sin().view(1, 1, 8, 8).mT * torch.eye(8)
IMAGE, OTHER = torch.linspace(-1, 1, PIXELS)[None], torch.linspace(-1, 1, PIXELS)[None].roll(5, 1)

BUGS = (
    Bug(
        "DP-SGD",
        "no clipping",
        "two records, one of gradient 30 C",
        no_clipping,
        WITH,
        FEW,
        Gaussian(1.0),
        mended=right,
    ),
    Bug(
        "DP-SGD",
        "the batch's mean is clipped, not each example",
        "two records, lots of 4, one of gradient 30 C",
        mean_clipped,
        WITH,
        FEW,
        Gaussian(1.0),
        mended=right,
    ),
    Bug(
        "DP-SGD",
        "noise scaled to the mean but added to the sum",
        "two records, lots of 4",
        noise_of_the_mean,
        WITH,
        FEW,
        Gaussian(1.0),
        mended=right,
    ),
    Bug(
        "DP-SGD",
        "noise drawn once and reused",
        "two steps, both seen; the canary's gradient turns round",
        noise_reused,
        WITH,
        FEW,
        Gaussian(1.0) * 2,
        mended=noise_afresh,
    ),
    Bug(
        "DP-SGD",
        "per-layer clipping accounted as one",
        f"{LAYERS} layers, each clipped to C and noised with sigma C",
        per_layer_as_one,
        torch.full((1, LAYERS), 30.0),
        torch.zeros(0, LAYERS),
        Gaussian(1.0),
        mended=per_layer_together,
    ),
    Bug(
        "DP-SGD",
        "division by the realised batch size",
        "four records of gradient C, and a fifth of -C",
        divided_by_the_batch,
        torch.cat([torch.ones(4, 1), -torch.ones(1, 1)]),
        torch.ones(4, 1),
        Gaussian(1.0),
        mended=right,
        draws=4000,
    ),
    Bug(
        "DP-SGD",
        "shuffled batches accounted as Poisson",
        f"{2 * BATCHES} records in batches of two, one epoch, every step seen, sigma {SHUFFLE_SIGMA}",
        shuffled_epoch,
        torch.cat([-torch.ones(2 * BATCHES - 1, 1), torch.ones(1, 1)]),
        -torch.ones(2 * BATCHES - 1, 1),
        PoissonSampled(1 / BATCHES, Gaussian(SHUFFLE_SIGMA)) * BATCHES,
        mended=poisson_epoch,
        score=odd_batch,
        draws=4000,
    ),
    Bug(
        "DP-SGD",
        "a fake example in an empty batch",
        "no record and one record, sampling rate 1/2; the fake's gradient is -C",
        fake_in_an_empty_batch,
        one(1.0),
        NOTHING,
        PoissonSampled(0.5, Gaussian(1.0)),
        mended=empty_batch,
        draws=4000,
    ),
    Bug(
        "DP-SGD",
        "ghost norm without the bias",
        "a linear layer, one record whose input is zero",
        linear_with_bias,
        one(0.0, 0.0),
        torch.zeros(0, 2),
        Gaussian(1.0),
        mended=lambda records, generator: linear_with_bias(records, generator, with_bias=True),
    ),
    Bug(
        "DP-SGD",
        "norm of a circular convolution taken as if padded with zeros",
        "a 3x3 convolution on one 2x2 image",
        circular_convolution,
        torch.ones(1, 1, 2, 2),
        torch.zeros(0, 1, 2, 2),
        Gaussian(1.0),
        mended=lambda records, generator: circular_convolution(records, generator, padded=True),
        draws=4000,
    ),
    Bug(
        "DP-SGD",
        "the workers' shares of noise averaged instead of added",
        f"{WORKERS} workers, two records",
        shares,
        WITH,
        FEW,
        Gaussian(1.0),
        mended=lambda records, generator: shares(records, generator, averaged=False),
    ),
    Bug(
        "DP-SGD",
        "adaptive clipping without noise on its count",
        "two records; the new clipping norm is seen",
        adaptive_norm,
        WITH,
        FEW,
        Gaussian(1.0),
        mended=lambda records, generator: adaptive_norm(records, generator, count_noise=True),
    ),
    Bug(
        "Noise-layer GAN",
        "noise after the third layer, as published",
        "a batch of one image; the gradient of the first kernels is seen",
        noise_layer_gan,
        PLAIN,
        PATTERN,
        CLAIMED,
        delta=1e-5,
        mended=noisy_rows,
        score=outside_patches(PLAIN),
        relation=Relation.REPLACE_ONE,
        draws=600,
    ),
    Bug(
        "Residual perturbation",
        "no noise at the input (pi = 0)",
        "a batch of one image; the first block's gradient is seen",
        residual_perturbation,
        IMAGE,
        OTHER,
        ONE_PASS.epsilon_by_stream(GAMMA),
        delta=1e-5,
        mended=residual_perturbation_with_input_noise,
        score=orthogonal(IMAGE),
        relation=Relation.REPLACE_ONE,
        draws=1000,
    ),
    Bug(
        "Optimised additive noise",
        "w from the private data",
        "20 coordinates, one record of one coordinate and one of the others",
        optimised_noise,
        torch.stack([torch.eye(20)[0], (1 - torch.eye(20)[0]) / math.sqrt(19)]),
        torch.eye(20)[:1],
        1.0,
        delta=0.0,
        mended=optimised_noise_public,
    ),
)
