"""The noise-layer GAN with a proof: the layers before the noise are frozen, and each record's row has its own noise.

A record is embedded by a transform that does not depend on unprotected records, joined with its label, clipped, and released
as a noisy row. The discriminator learns from these rows and from generated rows with the same noise; discriminator, generator
and synthetic data are post-processing of the rows. The price is high: noise on every row is sqrt(b) times worse than noise on
the sum over a batch of b.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privet.audit import Audit, ClopperPearson, SampledStep, mechanism
from privet.audit.bounds import TwoSampleBound
from privet.clipping.bounded import clipped_rows
from privet.data import Progress, Split
from privet.errors import InputError
from privet.methods.dpgan import balanced_labels, called_made, called_real, draw_labels, game_randomness, generate
from privet.methods.method import Context, Power, Ran, Task, register
from privet.methods.recipe import kind_of
from privet.methods.statistics import private_components, private_mean
from privet.methods.synthetic import OnStep, Order, Synthetic, SyntheticMethod
from privet.models.features import FixedProjection, random_convolutions, scattering_projection
from privet.models.gans import DenseGenerator, SpanGenerator, dense_discriminator
from privet.noise import GaussianNoise
from privet.privacy import (
    Budget,
    Event,
    FixedSizeSampled,
    Gaussian,
    Ledger,
    PaddedPoisson,
    Relation,
    steps_of,
)
from privet.privacy.events import NOTHING, tally
from privet.randomness import Randomness
from privet.sampling import FixedSizeSampling, PaddedPoissonSampling
from privet.sampling.samplers import EMPTY
from privet.training import Average, BudgetExhausted
from privet.training.blocks import Blocks
from privet.training.checkpoint import Stateful, digest
from privet.training.identity import plain

SCHEMES = {"padded": Relation.ADD_REMOVE, "fixed": Relation.REPLACE_ONE}
"""How rows are sampled, and for which relation that is accounted."""
_OVERFLOW_SHARE = 1e-3
"""The largest share of delta for the probability that a batch has more records than rows."""

_SECONDS = 10.0
"""The least time in seconds between two checkpoints of the game."""

RowSampling = FixedSizeSampling | PaddedPoissonSampling


@dataclass(frozen=True)
class NoisyRows:
    """`steps` batches of rows, each row clipped to norm `bound`, plus N(0, (noise_multiplier * bound)^2) on every coordinate.

    Formal guarantees: everything that is yielded costs `event`, under `relation`. With padded Poisson sampling, adding or
    removing a record changes one row by at most `bound`; the number of records in a batch stays hidden, because empty rows are
    noise like the others. With samples of fixed size, replacing a record changes one row by at most twice `bound`. Both need rows
    in random order. Plain Poisson sampling would show the number of rows, and would give no amplification.
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
            embeddings: ``(N, d)``, each computed from its record alone. The label must be part of it, even if labels are public:
                a label beside the row would reveal which records can be in it, and sampling would no longer amplify.
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
        """Rows of generated examples that look like those of records: clipped, empty as often, with the same noise.

        They need no protection, because the examples are generated. Gradients flow through it.
        """
        norms = embeddings.norm(dim=1, keepdim=True).clamp(min=1e-12)
        clipped = embeddings * (self.bound / norms).clamp(max=1.0)
        held = torch.rand(len(clipped), 1) < self.filled
        rows: Tensor = clipped * held + torch.randn_like(clipped) * (self.noise_multiplier * self.bound)
        return rows


# --- the audit of rows --------------------------------------------------------------------------------------------------

WIDTH, OTHERS, SAMPLES = 4, 3, 4
"""Coordinates of a row, records beside the canary, and, for each drawn batch, samples that count how often it is drawn."""
FEWER = 4
"""Batches that are drawn one by one are this many times fewer than sums."""


def audit_rows(
    plan: NoisyRows,
    *,
    delta: float = 1e-5,
    draws: int = 8000,
    confidence: float = 0.99,
    seed: int = 0,
    **settings: Any,
) -> Audit:
    """Audit one batch of noisy rows: the attacker sees all of them, and chose a record whose row is far above the bound.

    Formal guarantees: the claim is the event of one batch. For padded Poisson samples the draws count how often the record is
    drawn, and separately audit batches in which it takes part (`privet.audit.SampledStep`). For samples of a fixed size the
    record is replaced by the opposite one, and Clopper-Pearson counts.
    """
    one, sampling = replace(plan, steps=1), plan.sampling
    padded = isinstance(sampling, PaddedPoissonSampling)
    others = min(OTHERS, sampling.rows - 1)
    records = others + 1 if padded else sampling.records
    rows = torch.zeros(records, WIDTH)
    rows[:others, 1 : others + 1] = 0.4 * plan.bound * torch.eye(others)
    rows[-1] = torch.tensor([1e3 * plan.bound, *[0.0] * (WIDTH - 1)])
    bound: TwoSampleBound = ClopperPearson(delta, confidence)
    if isinstance(sampling, PaddedPoissonSampling):
        generator, samples = torch.Generator().manual_seed(seed), SAMPLES * draws
        times = sum(bool((sampling.draw(records, generator) == others).any()) for _ in range(samples))
        bound = SampledStep.drawn(times, samples, delta, confidence, gaussian=True)
        one = replace(one, sampling=replace(sampling, rate=1.0))
        neighbor = rows[:-1]
    else:
        neighbor = torch.cat([rows[:-1], -rows[-1:]])

    def release(embeddings: Tensor, generator: torch.Generator) -> Tensor:
        ledger = Ledger(relation=one.relation)
        (released,) = one.release(embeddings, ledger, Randomness(generator, generator, seed))
        return released

    def score(released: Tensor) -> float:
        """How much more likely some row is the canary's than empty, or than the opposite one's."""
        seen = released[:, 0].double() / plan.bound / plan.noise_multiplier**2
        return float(seen.logsumexp(0) - (0 if padded else (-seen).logsumexp(0)))

    return mechanism(
        release,
        rows,
        neighbor,
        claimed=sampling.event(Gaussian(plan.noise_multiplier)),
        delta=delta,
        score=score,
        draws=draws,
        bound=bound,
        relation=plan.relation,
        name="One batch of noisy rows",
        setting=f"{sampling.rows} rows, all seen; a record whose row is far above the bound",
        seed=seed,
        **settings,
    )


def rows_in(ledger: Ledger, *, draws: int, **settings: Any) -> tuple[tuple[Audit, ...], Event]:
    """The audit of the batches of noisy rows in a ledger, and the events that it covers; nothing without rows."""
    for event, count in tally(ledger.event):
        sampling: RowSampling
        if isinstance(event, PaddedPoisson):
            sampling = PaddedPoissonSampling(event.rate, event.examples, event.rows)
        elif isinstance(event, FixedSizeSampled):
            sampling = FixedSizeSampling(event.size, event.examples)
        else:
            continue
        if isinstance(event.event, Gaussian):
            plan = NoisyRows(sampling, event.event.noise_multiplier, count)
            audit = audit_rows(plan, draws=max(40, draws // FEWER), **settings)
            said = "the sampling, the clipping and the noise of the rows, as the ledger states them"
            return (replace(audit, audited=said, not_audited="the embedding in front of the rows"),), event * count
    return (), NOTHING


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


Maker = DenseGenerator | SpanGenerator


@dataclass(frozen=True, eq=False)
class Layout:
    """The content of a row: an embedding and a label, which has `share` of the squared norm.

    Formal guarantees: a row has a norm of at most 1, whatever the record.
    """

    embedding: nn.Module
    classes: int
    share: float

    def rows(self, x: Tensor, labels: Tensor) -> Tensor:
        """The row of each record or made example, without noise."""
        short, bound = self.embedding(x).flatten(1), math.sqrt(1 - self.share)
        short = short * (bound / short.norm(dim=1, keepdim=True).clamp(min=bound))
        label = math.sqrt(self.share) * F.one_hot(labels, self.classes).to(short.dtype)
        return torch.cat([short, label], dim=1)


@dataclass(frozen=True, eq=False)
class RowGame:
    """The game between a generator and a discriminator of rows.

    Formal guarantees: post-processing of the rows that it is given.
    """

    plan: NoisyRows
    layout: Layout
    learning_rate: float
    averaging: float
    width: int
    rows: int

    def play(self, maker: Maker, released: Tensor, steps: int, context: Context, randomness: Randomness) -> Tensor:
        """Train `maker` on rows drawn from all released ones; returns the frequencies of the classes.

        A row may be used repeatedly, because it was paid for once. `on_step` may end the game with `BudgetExhausted`. In a
        folder, the game is saved from time to time; with a seed, a resumed game continues exactly.
        """
        judge, frequencies = dense_discriminator(released.shape[1], self.width), self.frequencies(released)
        optimizers = [
            torch.optim.Adam(each.parameters(), lr=self.learning_rate, betas=(0.5, 0.99)) for each in (judge, maker)
        ]
        average = Average(maker, self.averaging)
        parts: dict[str, Stateful] = {"judge": judge, "maker": maker, "average": average}
        parts |= {f"learner {place}": each for place, each in enumerate(optimizers)}
        kept = Blocks(context.folder or context.ledger, parts, randomness, seconds=_SECONDS)
        kept.begin({"plan": plain(self.plan), "steps": steps, "rows": digest({"": released}), "seed": randomness.seed})
        step = kept.step
        try:
            for step in range(kept.step + 1, steps + 1) if not kept.ended else ():
                rows = released[torch.randint(len(released), (self.rows,))]
                labels = draw_labels(frequencies, self.rows)
                examples = (maker(torch.randn(self.rows, maker.latent), labels) + 1) / 2
                made = self.plan.imitate(self.layout.rows(examples, labels))
                optimizers[0].zero_grad()
                loss = called_real(judge(rows)) + called_made(judge(made.detach()))
                loss.backward()
                optimizers[0].step()
                optimizers[1].zero_grad()
                called_real(judge(made)).backward()
                optimizers[1].step()
                average.update()
                if context.on_step is not None:
                    seen = {"step": step, "steps": steps, "loss": float(loss.detach())}
                    context.on_step({"what": "Training the GAN", **seen})
                kept.save(step)
        except BudgetExhausted:
            pass  # the generator stays as it is now
        kept.save(step, ended=True)
        average.keep()
        return frequencies

    def frequencies(self, released: Tensor) -> Tensor:
        """The frequencies of the classes, from the label columns of the rows, whose noise has mean 0; each is above 0."""
        classes = self.layout.classes
        found = released[:, -classes:].mean(0) / (self.plan.filled * math.sqrt(self.layout.share))
        return found.clamp(min=0.01 / classes)


FEATURES = ("components", "random", "scattering")
_EMBEDDED = 1000


@register
@dataclass(frozen=True, kw_only=True)
class FrozenNoiseLayerGan(SyntheticMethod):
    """Rows of (embedding, label) under noise, and a GAN that learns from them alone.

    Formal guarantees: proved. Records are used by the releases before the rows (mean and directions, of "components" alone) and
    by the rows (`NoisyRows`), which the ledger holds before they are drawn. Labels are part of the row, and protected with it.

    Attributes:
        features: the embedding: "components" (DP-PCA, accounted), "random" (frozen random convolutions) or "scattering".
        dimension: coordinates of the embedding; keep it small, because the noise of a row has the norm sigma C sqrt(dimension).
        sampling: "padded" (Poisson, add or remove a record) or "fixed" (without replacement, replace a record).
        batch_size: expected number of records in a released batch.
        epochs: expected number of batches that a record is in. All rows stay in memory: 300 MB for 15 epochs of MNIST.
        label_share: the label's share of the squared norm of a row.
        scale: for "components", the norm around the mean to which records are clipped.
        before_share: the share of the budget (of mu^2) for the mean and the directions of "components".
        rows, steps: number of released rows that the GAN draws for a step, and its steps; both cost nothing.
        width, latent, learning_rate, averaging: settings of the GAN.
        module: a frozen embedding of your own, trained on public data, instead of `features`.
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

    limits: ClassVar[dict[str, str]] = SyntheticMethod.limits | {
        **dict.fromkeys(("dimension", "batch_size", "rows", "steps", "width", "latent"), "[1, inf)"),
        "epochs": "(0, inf)",
        "scale": "(0, inf)",
        "label_share": "(0, 1)",
        "before_share": "(0, 1)",
        "averaging": "[0, 1)",
    }
    noise_path = "embedding layer"
    source = "after Triastcyn and Faltings 2018"
    noise_is = "an embedding in front of the discriminator, frozen"
    proof = "with frozen layers before the noise: proved"

    key: str = "noise-layer-gan"
    title: str = "Noise-layer GAN on frozen features"
    by_default: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.module is None and self.features not in FEATURES:
            raise InputError(f"The features in front of the noise are {', '.join(FEATURES)}, not {self.features!r}.")
        if self.sampling not in SCHEMES:
            raise InputError(f"Rows are sampled {' or '.join(SCHEMES)}, not {self.sampling!r}.")

    def why_not(self, task: Task) -> str:
        return super().why_not(task) or ("" if kind_of(task.dataset.shape) == "images" else "it is for images")

    def fitted(self, task: Task) -> FrozenNoiseLayerGan:
        size = math.prod(task.dataset.shape)
        return replace(self, dimension=min(self.dimension, size), scale=0.6 * math.sqrt(size) / 2.8)

    @property
    def relation(self) -> Relation:
        return SCHEMES[self.sampling]

    def statistics(self) -> tuple[str, ...]:
        return ("mean", "second-moment") if self.module is None and self.features == "components" else ()

    def release_audits(
        self, ran: Ran, power: Power, progress: Progress | None = None
    ) -> tuple[tuple[Audit, ...], Event]:
        rows, covered = rows_in(ran.ledger, **power.asked(ran.delta, progress))
        found, others = super().release_audits(ran, power, progress)
        return (*rows, *found), covered + others

    def synthesize(self, records: Split, order: Order, context: Context) -> Synthetic:
        records.require_records(self.title)
        randomness = Randomness.of(order.seed)
        shape = tuple(records[0][0].shape)
        number = self._number(records, order)  # refused before anything is spent
        with game_randomness(order.seed):
            embedding = self._embedding(records, order, context, randomness)
            layout = Layout(embedding, order.classes, self.label_share)

            def release(ledger: Ledger) -> dict[str, Any]:
                plan = self.plan(number, order, ledger)
                rows = _released(plan, _embedded(layout, records), ledger, randomness, context.on_step)
                return {"noise": plan.noise_multiplier, "rows": rows}

            found = context.releases.get("rows", release, randomness)
            plan = NoisyRows(self._sampling(number, order), found["noise"], self._batches(number))
            maker = self._maker(embedding, shape, order.classes)
            game = RowGame(plan, layout, self.learning_rate, self.averaging, self.width, self.rows)
            frequencies = game.play(maker, found["rows"], self.steps, context, randomness)
            labels = balanced_labels(frequencies, order.size)
            inputs = generate(maker, labels, self.latent)
        settings = self._settings(plan)
        return Synthetic(inputs, labels, None, context.ledger, settings, place="embedding layer")

    def _number(self, records: Split, order: Order) -> int:
        """The number of records for which the sampling is made.

        Batches of fixed size are for replacing a record, where the number of records is public. Padded batches need an upper
        bound on the number of records.
        """
        if self.relation is Relation.REPLACE_ONE:
            return len(records)
        bound = order.at_most or order.number_of(records)
        if len(records) > bound:
            raise InputError(
                "There are more records than stated: padded sampling needs a public size that is not too small."
            )
        return bound

    def plan(self, records: int, order: Order, ledger: Ledger) -> NoisyRows:
        """The rows to release, with the noise that the budget allows after what the ledger holds."""
        budget = Budget(order.epsilon, order.delta, self.relation).after(ledger, fixed_beforehand=True)
        return calibrated_rows(self._sampling(records, order), self._batches(records), budget)

    def _batches(self, records: int) -> int:
        return steps_of(records, self.batch_size, self.epochs)

    def _sampling(self, records: int, order: Order) -> RowSampling:
        return row_sampling(self.sampling, self.batch_size, records, self._batches(records), order.delta)

    def _maker(self, embedding: nn.Module, shape: tuple[int, ...], classes: int) -> Maker:
        size: dict[str, Any] = {"latent": self.latent, "width": self.width}
        if isinstance(embedding, FixedProjection):
            return SpanGenerator(embedding.mean, embedding.directions, embedding.scale, shape, classes, **size)
        return DenseGenerator(shape, classes, **size)

    def _embedding(self, records: Split, order: Order, context: Context, randomness: Randomness) -> nn.Module:
        """The frozen part. For "components", its mean and directions are released here."""
        shape = tuple(records[0][0].shape)
        if self.module is not None:
            return self.module
        if self.features != "components":
            if len(shape) != 3:
                raise InputError(f"Features {self.features!r} are for images: take 'components' for other records.")
            made = (random_convolutions if self.features == "random" else scattering_projection)(shape, self.dimension)
            made.load_state_dict(context.releases.keep("embedding", lambda: dict(made.state_dict())))
            return made
        whole = Budget(order.epsilon, order.delta, self.relation, "gdp").least(Gaussian)
        noise = whole / math.sqrt(self.before_share)
        bound = math.sqrt(math.prod(shape)) / 2.8

        def release(ledger: Ledger) -> tuple[Tensor, Tensor]:
            settings: dict[str, Any] = {"ledger": ledger, "randomness": randomness}
            mean = private_mean(
                records, bound=bound, noise_multiplier=5 * noise, public_size=order.number_of(records), **settings
            )
            flat = Split(records.tensors[0].flatten(1) - mean.flatten(), records.labels)
            return mean, private_components(flat, self.dimension, noise_multiplier=noise, **settings)

        mean, directions = context.releases.get("components", release, randomness)
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
