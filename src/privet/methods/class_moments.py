"""One-shot moments: class means, common directions and class covariances, released once; the rest is post-processing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privet.data import Dataset, Progress, Split, compute_features
from privet.errors import InputError
from privet.methods import dpsgd
from privet.methods.method import Context, Method, Task, register
from privet.methods.statistics import (
    private_counts,
    private_mean,
    private_second_moment,
    private_second_moments,
    private_sums,
)
from privet.methods.synthetic import OnStep, Order, Synthetic, SyntheticMethod, check_classes
from privet.methods.table_moments import TableMoments
from privet.models import scattering_linear
from privet.privacy import Budget, Gaussian, Ledger
from privet.randomness import Randomness, before_training
from privet.training import Performance

_SLANT_WEIGHT = 4.0
"""The weight of the slant relative to the pixels."""
_MANY = 20_000
"""A teacher is worth its budget if the number of records times epsilon is at least this."""


@register
@dataclass(frozen=True, kw_only=True)
class Moments(SyntheticMethod):
    """A Gaussian for each class on common directions. Images are deslanted first, and labeled by a private teacher.

    Formal guarantees: the records are used in the releases of `release_gaussians` and, with a teacher, in its mean and
    its DP-SGD steps; all are in the ledger, and the examples are computed from the releases alone.

    Attributes:
        components: the largest number of directions; fewer if noise would hide them.
        bound: the norm to which a record is clipped for its class's mean.
        spread: about how far a record is from its class's mean; public.
        pooling: how much of each class's covariance is that of all classes together.
        generator_share: the share of the budget for the Gaussians (in mu^2 of the Gaussian trade-off, where releases add up); the
            rest is for the teacher. 1 means no teacher: examples then keep the labels that they were drawn for.
        means_share: the share of the generator's part for the means; larger if there are fewer records. After the means and the
            counts (a hundredth), directions get one third of the rest and covariances two thirds.
        contrast: factor on the contrast of drawn images, around middle gray; 1 changes nothing.
        turn, scale, shear, shift: the largest random affine change of an image: degrees, shares, slant, pixels.
        temperature: the teacher's scores are divided by it before they become probabilities.
        teacher_steps, teacher_rate: steps and learning rate of the teacher's DP-SGD.
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

    limits: ClassVar[dict[str, str]] = SyntheticMethod.limits | {
        "components": "[1, inf)",
        "pooling": "[0, 1]",
        "generator_share": "(0, 1]",
        "means_share": "(0, 0.99)",
        "temperature": "(0, inf)",
        "teacher_steps": "[1, inf)",
        "teacher_rate": "(0, inf)",
    }
    noise_path = "moments"
    noise_is = "counts, means and second moments of the classes"
    proof = "proved"
    protects_users = True

    key: str = "moments"
    title: str = "One-shot class moments"

    def fitted(self, task: Task) -> Method:
        """For a table, the moments of tables; for other records, the settings of `fitting`."""
        if task.schema is not None:
            return self.carried_to(TableMoments())
        return replace(
            self.carried_to(self.fitting(task.dataset.shape, self.order(task))), key=self.key, title=self.title
        )

    @classmethod
    def fitting(cls, shape: tuple[int, ...], order: Order) -> Moments:
        """The settings for records of a shape at a budget: chosen on MNIST, carried over in proportion to the pixels.

        With few records the means get half of the budget, and drawn images are not changed: chosen on digits.
        """
        size = math.sqrt(math.prod(shape) / 784)
        few = order.records * order.epsilon < _MANY
        share = 0.5 if few else cls.means_share
        if len(shape) != 3:
            return cls(
                components=min(100, math.prod(shape)),
                bound=14 * size,
                spread=9 * size,
                generator_share=1.0,
                means_share=share,
            )
        fitted = cls(bound=10 * size, spread=6.3 * size, shift=2.0 * min(shape[1:]) / 28, means_share=share)
        if few:
            fitted = replace(fitted, contrast=1.0, turn=0.0, scale=0.0, shear=0.0, shift=0.0)
        if order.labels == "votes" or not teachable(shape, order):
            return replace(fitted, generator_share=1.0)
        near = min(_TEACHERS, key=lambda epsilon: abs(math.log(epsilon / order.epsilon)))
        share, steps, rate = _TEACHERS[near]
        return replace(fitted, generator_share=share, teacher_steps=steps, teacher_rate=rate)

    def synthesize(self, records: Split, order: Order, context: Context) -> Synthetic:
        check_records(records, order, self.components)
        randomness = before_training(order.seed)
        sigma = Budget(order.epsilon, order.delta, accountant="gdp").least(Gaussian)
        inputs = records.tensors[0]
        image = inputs.ndim == 4

        def release(ledger: Ledger) -> dict[str, Tensor]:
            found = release_gaussians(
                records.with_inputs(_described(inputs) if image else inputs.flatten(1)),
                order.classes,
                bound=self.bound,
                spread=self.spread,
                most=self.components,
                pooling=self.pooling,
                noise=MomentsNoise.shared(sigma, *(self.generator_share * part for part in self._parts())),
                ledger=ledger,
                randomness=randomness,
            )
            return dict(vars(found))

        gaussians = ClassGaussians(**context.releases.get("gaussians", release, randomness))
        teacher = learned = None
        if self.generator_share < 1:
            learning = ScatteringTeacher(self.teacher_steps, self.teacher_rate, mean_noise=20 * max(1.0, sigma))
            teacher, learned = learning.train(records, order, context, randomness)
        drawing = torch.Generator()
        _ = drawing.seed() if order.seed is None else drawing.manual_seed(order.seed)
        rows, drawn = gaussians.sample(order.size, drawing)
        made = self._retouched(rows, inputs.shape[1:], drawing) if image else rows.clamp(0, 1)
        soft = probabilities(teacher, made, self.temperature) if teacher is not None else None
        hard = drawn if soft is None else soft.argmax(1)
        found = Synthetic(made, hard, soft, context.ledger, self._told(gaussians))
        return found if learned is None else replace(found, plan=learned.plan, steps=learned.steps)

    def statistics(self) -> tuple[str, ...]:
        teacher = ("mean",) if self.generator_share < 1 else ()
        return ("counts", "sums", "second-moment", "second-moments", *teacher)

    def _parts(self) -> tuple[float, float, float, float]:
        """The shares of the generator's budget for counts, means, directions and covariances."""
        left = 0.99 - self.means_share
        return 0.01, self.means_share, left / 3, 2 * left / 3

    def _retouched(self, rows: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Turn drawn rows into images: restore the slant, raise the contrast, and apply a small random affine map to each."""
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
    """Whether a teacher is worth its budget: it has thousands of parameters, so it needs larger images and many records."""
    return scatters(shape) and order.records * order.epsilon >= _MANY


def check_records(records: Split, order: Order, components: int) -> None:
    """Raise for records that class moments cannot describe; this is decided from public facts only."""
    check_classes(order)
    number = order.number_of(records)
    if number <= components:
        raise InputError(
            f"There are fewer records than {components} components need: ask for fewer, "
            f"for example {max(1, number // 10)} (--set components=..., or components=...)."
        )


def _described(images: Tensor) -> Tensor:
    """Each image as its upright pixels and its slant."""
    straight, slants = upright(images)
    return torch.cat([straight.flatten(1), _SLANT_WEIGHT * slants[:, None]], 1)


@dataclass(frozen=True)
class MomentsNoise:
    """The noise multiplier of each release.

    Gaussian releases compose exactly: together they cost what one release with
    ``1 / sigma**2 = sum(1 / noise**2)`` costs.
    """

    counts: float
    means: float
    directions: float
    covariances: float

    @classmethod
    def shared(cls, sigma: float, counts: float, means: float, directions: float, covariances: float) -> MomentsNoise:
        """The noise of each release if together they cost as much as one release with noise `sigma`."""
        return cls(*(sigma / math.sqrt(share) for share in (counts, means, directions, covariances)))


@dataclass(frozen=True, eq=False)
class ClassGaussians:
    """The released moments. Drawing from them is post-processing.

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
        """Draw rows with their classes, in the released proportions of the classes."""
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
    noise: MomentsNoise,
    ledger: Ledger,
    randomness: Randomness,
) -> ClassGaussians:
    """Counts, means, directions and covariances of the classes, each with its noise.

    Args:
        records: ``(N, d)``, with their labels and, if the unit is a user, their users.
        classes: how many there are.
        bound: the norm to which a row is clipped for its class's mean.
        spread: about how far a row is from its class's mean; public.
        most: the largest number of directions. Fewer are kept if the noise would hide the others.
        pooling: how much of each class's covariance is that of all classes together.
        noise: of each release.
        ledger: where the releases are recorded.
        randomness: where their noise comes from.

    Formal guarantees: the records are used only in four releases, each in the ledger before its noise is drawn: counts, sums,
    DP-PCA and second moments by class. Their number is taken from the released counts.
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
    # The noise is the same in all directions and would hide those of little variance: they are stretched before it is added.
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
    """The leading eigenvectors, as rows, whose eigenvalues exceed those of the noise alone, and the eigenvalues.

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


_AT_ONCE = 2**22
"""Number of values that fit into the processor's cache."""


@dataclass(frozen=True)
class ScatteringTeacher:
    """Scattering coefficients are fixed before any record is seen; their private mean is subtracted; the head is trained.

    Attributes:
        steps, learning_rate: of DP-SGD with batches of a tenth of the records, momentum 0.9, clipping at 0.1 and a moving
            average of the parameters with a decay of 0.9.
        mean_noise: the noise multiplier of the release of the features' mean.
    """

    steps: int
    learning_rate: float
    mean_noise: float

    def train(
        self, records: Split, order: Order, context: Context, randomness: Randomness
    ) -> tuple[nn.Module, dpsgd.Trained]:
        """A classifier of images, trained with the rest of the order's budget, and its training."""
        number = order.number_of(records)
        lot = round(0.1 * number)
        if lot < 1:
            raise InputError("There are too few records for a teacher: make the data without one.")
        channels, height, width = records[0][0].shape
        model = scattering_linear(channels, height, width, order.classes)
        dataset = Dataset(order.source, tuple(map(str, range(order.classes))), {"train": records})
        features = compute_features(dataset, model.features, model.key, progress=_progress(context.on_step)).train
        mean = context.releases.get(
            "teacher-mean",
            lambda ledger: private_mean(
                features,
                bound=math.sqrt(features[0][0].numel()),
                noise_multiplier=self.mean_noise,
                public_size=number,
                ledger=ledger,
                randomness=randomness,
            ),
            randomness,
        )
        model.standardise.mean.copy_(mean.view_as(model.standardise.mean))
        rows = torch.empty(len(features), mean.numel())
        for where in torch.arange(len(features)).split(2000):
            rows[where[0] : where[-1] + 1] = model.standardise(features.batch(where)[0])
        fits = max(1, _AT_ONCE // mean.numel())
        learned = dpsgd.train(
            model.head,
            torch.optim.SGD(model.head.parameters(), lr=self.learning_rate, momentum=0.9),
            features.with_inputs(rows),
            batch_size=lot,
            public_size=number,
            performance=Performance(physical_batch_size=fits if fits < lot else None),
            steps=self.steps,
            epsilon=order.epsilon,
            delta=order.delta,
            max_grad_norm=0.1,
            loss_reduction="mean",
            average=0.9,
            seed=order.seed,
            on_step=context.on_step,
            **context.where,
        )
        return model.eval(), learned


def scatters(shape: tuple[int, ...]) -> bool:
    """Whether records of this shape are images that have scattering coefficients."""
    return len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) >= 8


def probabilities(teacher: nn.Module, inputs: Tensor, temperature: float) -> Tensor:
    """The softened class probabilities of the teacher for artificial inputs."""
    with torch.no_grad():
        scores = torch.cat([teacher(some) for some in inputs.split(128)])
    return (scores / temperature).softmax(1)


def _progress(on_step: OnStep | None) -> Progress | None:
    if on_step is None:
        return None
    return lambda what, done, total: on_step({"what": what, "step": done, "steps": total})


STEEPEST = 1.0


def slant(images: Tensor) -> Tensor:
    """How far the columns shift from one row to the next, by the second moments of the brightness; within one column.

    ``(N, C, H, W)`` with values of at least 0 becomes N numbers; an empty image has none.
    """
    light = images.sum(1)
    rows, columns = (torch.linspace(1 / n - 1, 1 - 1 / n, n) for n in light.shape[1:])
    mass = light.sum((1, 2)).clamp(min=1e-6)
    by_row, by_column = light.sum(2) / mass[:, None], light.sum(1) / mass[:, None]
    middle = by_row @ rows
    spread = by_row @ rows.square() - middle**2
    together = torch.einsum("nhw,h,w->n", light, rows, columns) / mass - middle * (by_column @ columns)
    return (together / spread.clamp(min=1e-3)).clamp(-STEEPEST, STEEPEST)


def upright(images: Tensor) -> tuple[Tensor, Tensor]:
    """The images without their slant, and the slants."""
    slants = slant(images)
    return sheared(images, slants), slants


def sheared(images: Tensor, slants: Tensor) -> Tensor:
    """Shift every row of each image by its height times the slant; the opposite slant undoes it."""
    maps = torch.zeros(len(images), 2, 3)
    maps[:, 0, 0] = maps[:, 1, 1] = 1.0
    maps[:, 0, 1] = slants
    return mapped(images, maps)


def mapped(images: Tensor, maps: Tensor) -> Tensor:
    """Each image seen through its affine map ``(N, 2, 3)``, in coordinates from -1 to 1, black outside."""
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)
