"""One-shot moments: class means, common directions and class covariances, released once; all else is post-processing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from privet.data import Split
from privet.errors import InputError
from privet.methods.class_gaussians import ClassGaussians, ReleaseNoise, release_gaussians
from privet.methods.scattering_teacher import ScatteringTeacher, probabilities, scatters
from privet.methods.slant import mapped, sheared, upright
from privet.methods.synthetic import OnStep, Order, Synthetic, check_classes
from privet.privacy import Budget, Gaussian, Ledger, Relation
from privet.randomness import before_training

_SLANT_WEIGHT = 4.0
"""What a slant counts beside pixels."""
_MANY = 20_000
"""From so many records times epsilon on there are many: a teacher pays, and means are known well with little of the budget."""


@dataclass(frozen=True)
class Moments:
    """A Gaussian for each class on common directions; for images of upright ones, labelled by a private teacher.

    Formal guarantees: the records are used in the releases of `release_gaussians` and, with a teacher, in its mean and
    its DP-SGD steps; all are in the ledger, and the examples are computed from the releases alone.

    Attributes:
        components: at most so many directions; fewer where noise would hide them.
        bound: the norm to which a record is clipped for its class's mean.
        spread: about how far a record is from its class's mean; public.
        pooling: how much of each class's covariance is that of all classes together.
        generator_share: of the budget (of mu^2 of the Gaussian trade-off, in which releases add up) for the Gaussians; the
            rest is the teacher's. 1 means no teacher: examples then have the labels that they were drawn for.
        means_share: of the generator's part, for the means; the more the fewer records there are. What it and the counts (a
            hundredth) leave is divided between directions and covariances, one to two.
        contrast: of the images that are drawn, about their middle grey; 1 leaves them.
        turn, scale, shear, shift: the most that a random affine map does to an image: degrees, shares, slant, pixels.
        temperature: by which the teacher's scores are divided before they become probabilities.
        teacher_steps, teacher_rate: of the teacher's DP-SGD.
    """

    components: int = 100
    bound: float = 10.0
    spread: float = 6.3
    pooling: float = 0.25
    generator_share: float = 0.5
    means_share: float = 0.09
    contrast: float = 2.2
    turn: float = 15.0
    scale: float = 0.15
    shear: float = 0.2
    shift: float = 2.0
    temperature: float = 2.0
    teacher_steps: int = 100
    teacher_rate: float = 10.0

    title = "One-shot class moments"
    relation = Relation.ADD_REMOVE

    @classmethod
    def fitting(cls, shape: tuple[int, ...], order: Order) -> Moments:
        """The settings for records of a shape at a budget: chosen on MNIST, carried over in proportion to the pixels.

        Of few records the means take half of the budget, and images are left as they are drawn: chosen on digits.
        """
        size = math.sqrt(math.prod(shape) / 784)
        few = order.records * order.epsilon < _MANY
        share = 0.5 if few else cls.means_share
        if len(shape) != 3:
            return cls(min(100, math.prod(shape)), 14 * size, 9 * size, generator_share=1.0, means_share=share)
        fitted = cls(bound=10 * size, spread=6.3 * size, shift=2.0 * min(shape[1:]) / 28, means_share=share)
        if few:
            fitted = replace(fitted, contrast=1.0, turn=0.0, scale=0.0, shear=0.0, shift=0.0)
        if order.labels == "votes" or not teachable(shape, order):
            return replace(fitted, generator_share=1.0)
        near = min(_TEACHERS, key=lambda epsilon: abs(math.log(epsilon / order.epsilon)))
        share, steps, rate = _TEACHERS[near]
        return replace(fitted, generator_share=share, teacher_steps=steps, teacher_rate=rate)

    def synthesize(self, records: Split, order: Order, ledger: Ledger, on_step: OnStep | None = None) -> Synthetic:
        check_records(records, order, self.components)
        randomness = before_training(order.seed)
        sigma = Budget(order.epsilon, order.delta, accountant="gdp").least(Gaussian)
        inputs = records.tensors[0]
        image = inputs.ndim == 4
        gaussians = release_gaussians(
            records.with_inputs(_described(inputs) if image else inputs.flatten(1)),
            order.classes,
            bound=self.bound,
            spread=self.spread,
            most=self.components,
            pooling=self.pooling,
            noise=ReleaseNoise.shared(sigma, *(self.generator_share * part for part in self._parts())),
            ledger=ledger,
            randomness=randomness,
        )
        teacher = None
        if self.generator_share < 1:
            learning = ScatteringTeacher(self.teacher_steps, self.teacher_rate, mean_noise=20 * max(1.0, sigma))
            teacher = learning.train(records, order, ledger, randomness, on_step)
        drawing = torch.Generator()
        _ = drawing.seed() if order.seed is None else drawing.manual_seed(order.seed)
        rows, drawn = gaussians.sample(order.size, drawing)
        made = self._retouched(rows, inputs.shape[1:], drawing) if image else rows.clamp(0, 1)
        soft = probabilities(teacher, made, self.temperature) if teacher is not None else None
        hard = drawn if soft is None else soft.argmax(1)
        return Synthetic(made, hard, soft, ledger, self._told(gaussians))

    def _parts(self) -> tuple[float, float, float, float]:
        """Of the generator's budget: for counts, means, directions and covariances."""
        left = 0.99 - self.means_share
        return 0.01, self.means_share, left / 3, 2 * left / 3

    def _retouched(self, rows: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Images out of what was drawn: slanted again, with more contrast, each through a small affine map of its own."""
        images = sheared(rows[:, :-1].reshape(-1, *shape), -rows[:, -1] / _SLANT_WEIGHT)
        images = ((images - 0.5) * self.contrast + 0.5).clamp(0, 1)

        def uniform(most: float) -> Tensor:
            return most * (2 * torch.rand(len(images), generator=generator) - 1)

        angle, scale = uniform(math.radians(self.turn)), 1 + uniform(self.scale)
        maps = torch.zeros(len(images), 2, 3)
        maps[:, 0, 0] = maps[:, 1, 1] = scale * angle.cos()
        maps[:, 0, 1], maps[:, 1, 0] = uniform(self.shear) - scale * angle.sin(), scale * angle.sin()
        maps[:, 0, 2], maps[:, 1, 2] = uniform(2 * self.shift / shape[2]), uniform(2 * self.shift / shape[1])
        return mapped(images, maps).clamp(0, 1)

    def _told(self, gaussians: ClassGaussians) -> dict[str, str]:
        told = {"Generator": f"a Gaussian for each class on {len(gaussians.directions)} common directions"}
        if self.generator_share < 1:
            told["Generator"] += f", with {100 * self.generator_share:g} % of the budget"
            told["Labels of the examples"] = (
                f"by a private teacher (scattering features, a linear head, {self.teacher_steps} steps of DP-SGD)"
            )
        return told


_TEACHERS = {1.0: (0.5, 100, 10.0), 3.45: (0.5, 250, 16.0), 8.0: (0.5, 400, 25.0)}
"""For a budget: the generator's share of it, the teacher's steps and its learning rate."""


def teachable(shape: tuple[int, ...], order: Order) -> bool:
    """Whether a teacher pays: its thousands of parameters need images of some size, and many of them for their noise."""
    return scatters(shape) and order.records * order.epsilon >= _MANY


def check_records(records: Split, order: Order, components: int) -> None:
    """What cannot be described by class moments is refused by name, by public facts alone."""
    check_classes(order)
    number = order.number_of(records)
    if number <= components:
        raise InputError(
            f"There are fewer records than {components} components need: ask for fewer, "
            f"as in --set components={max(1, number // 10)}."
        )


def _described(images: Tensor) -> Tensor:
    """Each image as its upright pixels and its slant."""
    straight, slants = upright(images)
    return torch.cat([straight.flatten(1), _SLANT_WEIGHT * slants[:, None]], 1)
