"""DPGAN: a GAN whose discriminator is trained by DP-SGD; the generator sees the records only through the discriminator.

After Xie et al. 2018 and "Private GANs, Revisited" (Bie, Kamath and Zhang 2023): several steps of the discriminator for each
step of the generator, and large batches, so that a discriminator trained under noise stays ahead of the generator.

The parts that all GANs of the library share come first: the losses of the game, the labels and the artificial examples.
"""

from __future__ import annotations

import copy
import math
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privet.audit import ClopperPearson, Seen
from privet.audit.bounds import TwoSampleBound
from privet.audit.result import Claimable
from privet.audit.stations import COUNTED_DELTA, add_stations
from privet.clipping import FlatClipping
from privet.data import Split
from privet.gradients import Engine
from privet.methods.method import Context, register
from privet.methods.statistics import private_counts
from privet.methods.synthetic import Order, Synthetic, SyntheticMethod
from privet.models.gans import DenseGenerator, Generator, private_discriminator
from privet.privacy import Budget, Gaussian, Ledger
from privet.randomness import before_training
from privet.training import Average, BudgetExhausted, Private, make_private
from privet.training.blocks import Box

_CHUNK = 500


def called_real(logits: Tensor) -> Tensor:
    """The loss of logits for the target "real": cross-entropy of the sigmoid."""
    return F.softplus(-logits).mean()


def called_made(logits: Tensor) -> Tensor:
    """The loss of logits for the target "made"."""
    return F.softplus(logits).mean()


@contextmanager
def game_randomness(seed: int | None) -> Iterator[None]:
    """Seed torch's own generator, which draws initial weights, latent noise and labels of artificial examples.

    None of these draws protects anything; with a seed the game can be repeated.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(secrets.randbits(63) if seed is None else seed)
        yield


def draw_labels(frequencies: Tensor, count: int) -> Tensor:
    """Random labels of artificial examples with these frequencies."""
    return torch.multinomial(frequencies, count, replacement=True)


def balanced_labels(frequencies: Tensor, count: int) -> Tensor:
    """`count` labels in proportion to the frequencies, at least one of each class, in random order."""
    shares = frequencies / frequencies.sum() * (count - len(frequencies))
    counts = 1 + shares.floor().long()
    most = (shares - shares.floor()).argsort(descending=True)
    counts[most[: count - int(counts.sum())]] += 1
    return torch.arange(len(frequencies)).repeat_interleave(counts)[torch.randperm(count)]


@torch.no_grad()
def generate(generator: nn.Module, labels: Tensor, latent: int) -> Tensor:
    """An example for each label, in [0, 1]; the generator's are in [-1, 1]."""
    generator.eval()
    parts = [generator(torch.randn(len(some), latent), some) for some in labels.split(_CHUNK)]
    generator.train()
    return torch.cat(parts).add_(1).div_(2).clamp_(0, 1)


@register
@dataclass(frozen=True, kw_only=True)
class Dpgan(SyntheticMethod):
    """DP-SGD on a discriminator of (record, label); everything else is post-processing of its noisy gradients.

    Formal guarantees: proved. Records are used by a noisy count of the classes and by the
    discriminator's steps, each in the ledger before its noise is drawn. The label is part of the record.

    Attributes:
        lot: expected number of records in a step of the discriminator, at most a fifth of all.
        steps: steps of the discriminator.
        turns: steps of the discriminator for each step of the generator.
        clip: the norm to which each record's gradient is clipped.
        discriminator_rate, generator_rate: learning rates of Adam.
        made: number of examples that the generator makes for a step.
        width, latent: width of the networks, and number of latent coordinates.
        convolutional: use convolutional networks, for images; dense ones train much faster.
        averaging: decay of the moving average of the generator's parameters.
        counts_share: the share of the budget (of mu^2) for the count of the classes.
    """

    lot: int = 2000
    steps: int = 2000
    turns: int = 3
    clip: float = 1.0
    discriminator_rate: float = 1e-3
    generator_rate: float = 1e-3
    made: int = 500
    width: int = 16
    latent: int = 32
    convolutional: bool = False
    averaging: float = 0.99
    counts_share: float = 0.005

    limits: ClassVar[dict[str, str]] = SyntheticMethod.limits | {
        **dict.fromkeys(("lot", "steps", "turns", "made", "width", "latent"), "[1, inf)"),
        "averaging": "[0, 1)",
        "counts_share": "(0, 1)",
    }
    noise_path = "critic"
    source = "Xie et al. 2018"
    noise_is = "the discriminator's gradients"
    proof = "proved"
    protects_users = True

    key: str = "dpgan"
    title: str = "DPGAN"
    by_default: bool = False

    def synthesize(self, records: Split, order: Order, context: Context) -> Synthetic:
        shape = tuple(records[0][0].shape)
        frequencies = self._frequencies(records, order, context)
        with game_randomness(order.seed):
            judge = private_discriminator(shape, order.classes, self.width, convolutional=self.convolutional)
            maker = self.generator(shape, order.classes)
            done = self.train(judge, maker, records, order, frequencies, context)
            labels = balanced_labels(frequencies, order.size)
            inputs = generate(maker, labels, self.latent)
        lot = self._lot(order.number_of(records))
        settings = {
            "Discriminator": f"{done.steps_done:,} steps of DP-SGD in lots of {lot:,}, gradients clipped to {self.clip:g}",
            "Noise": f"{done.plan.noise.describe()}, on the sum of a lot",
            "Generator": f"a step for every {self.turns} of the discriminator; its parameters averaged",
            "Learning rates": f"Adam, {self.discriminator_rate:g} and {self.generator_rate:g}",
            "Labels": "part of the record; frequencies from a noisy count",
        }
        return Synthetic(
            inputs, labels, None, context.ledger, settings, place="critic", plan=done.plan, steps=done.steps_done
        )

    def generator(self, shape: tuple[int, ...], classes: int) -> Generator | DenseGenerator:
        """Dense layers, or transposed convolutions for images."""
        if self.convolutional:
            size = (shape[1], shape[2])
            return Generator(channels=shape[0], size=size, classes=classes, latent=self.latent, width=self.width)
        return DenseGenerator(shape, classes, latent=self.latent, width=16 * self.width)

    def train(
        self,
        judge: nn.Module,
        maker: Generator | DenseGenerator,
        records: Split,
        order: Order,
        frequencies: Tensor,
        context: Context,
    ) -> Private:
        """Train both; returns the discriminator's private training. `on_step` may end it with `BudgetExhausted`.

        A checkpoint holds both networks: a step of the generator is done before the discriminator's step is saved.
        """
        learn_judge = torch.optim.Adam(judge.parameters(), lr=self.discriminator_rate, betas=(0.5, 0.999))
        learn_maker = torch.optim.Adam(maker.parameters(), lr=self.generator_rate, betas=(0.5, 0.999))
        average, ended = Average(maker, self.averaging), Box(False)
        private = make_private(
            judge,
            learn_judge,
            records,
            batch_size=self._lot(order.number_of(records)),
            public_size=order.number_of(records),
            steps=self.steps,
            epsilon=order.epsilon,
            delta=order.delta,
            max_grad_norm=self.clip,
            seed=order.seed,
            fixed_beforehand=True,
            stateful={
                "generator": maker,
                "optimizer of the generator": learn_maker,
                "generated average": average,
                "ended": ended,
            },
            **context.where,
        )

        def made() -> tuple[Tensor, Tensor]:
            labels = draw_labels(frequencies, self.made)
            return maker(torch.randn(self.made, self.latent), labels), labels

        losses: list[float] = []
        with closing(private), _Twin(judge, self.clip) as twin:

            def judge_made() -> None:
                with torch.no_grad():
                    for parameter, gradient in zip(judge.parameters(), twin.gradients(*made()), strict=True):
                        parameter.grad = gradient.to(parameter.dtype)

            def after_step(standing: dict[str, Any]) -> None:
                """Runs once in every step, even if no record was drawn: the number of calls must not depend on the records."""
                if private.steps_done % self.turns == 0:
                    with private.paused():
                        learn_maker.zero_grad()
                        called_real(judge(*made())).backward()
                        learn_maker.step()
                        average.update()
                if context.on_step is not None:
                    context.on_step({"what": "Training the GAN", "loss": losses[-1] if losses else None, **standing})

            private.public(judge_made)
            private.continue_streams()
            try:
                over = ended.value or private.steps_done == private.plan.steps
                for inputs, labels in () if over else private.batches(on_step=after_step):
                    learn_judge.zero_grad()
                    loss = called_real(judge(inputs * 2 - 1, labels))
                    loss.backward()
                    learn_judge.step()
                    losses[:] = [float(loss.detach())]
            except BudgetExhausted:
                # The generator stays as it is now.
                if private.steps_done == 0:
                    raise
                ended.value = True
                if context.folder is not None:
                    private.save()
        average.keep()
        return private

    def statistics(self) -> tuple[str, ...]:
        return ("counts",)

    def _lot(self, records: int) -> int:
        """At most a fifth of the records: beyond that, sampling amplifies little."""
        return max(1, min(self.lot, records // 5))

    def _frequencies(self, records: Split, order: Order, context: Context) -> Tensor:
        noise = Budget(order.epsilon, order.delta, accountant="gdp").least(Gaussian) / math.sqrt(self.counts_share)
        randomness = before_training(order.seed)
        counts = context.releases.get(
            "counts",
            lambda ledger: private_counts(
                records.labels,
                order.classes,
                noise_multiplier=noise,
                ledger=ledger,
                randomness=randomness,
                shares=records.shares,
            ),
            randomness,
        )
        return counts.float()


class _Twin:
    """A copy of the discriminator for made examples: their gradients are clipped like those of records.

    Otherwise the side that is not clipped would dominate.
    """

    def __init__(self, judge: nn.Module, clip: float) -> None:
        self._judge, self._twin, self._clipping = judge, copy.deepcopy(judge), FlatClipping(clip)
        self._engine = Engine(self._twin)

    def __enter__(self) -> _Twin:
        self._engine.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.__exit__(None, None, None)

    def gradients(self, examples: Tensor, labels: Tensor) -> list[Tensor]:
        """The mean of the clipped gradients, in the order of the parameters."""
        self._twin.load_state_dict(self._judge.state_dict())
        with torch.enable_grad():
            called_made(self._twin(examples, labels)).backward()
        bounded = self._clipping.clip(self._engine.gradients())
        self._twin.zero_grad()
        return [(bounded.tensors[name] / len(labels)).to(p.dtype) for name, p in self._twin.named_parameters()]


@dataclass(frozen=True)
class ClassCounts:
    """A DPGAN of one step: its labels follow the noisy count of the classes, and the record changes one of them.

    A GAN takes the size of the data as public, so the record is always there, with one of two labels. Replacing it counts as two
    changes of one record, and the claim is the budget for two.
    """

    name: str = "class counts of a GAN"
    looks_for: str = "counts of the classes without noise"
    epsilon: float = 0.5
    effort: float = 0.25

    def claimed(self) -> Claimable:
        return 2 * self.epsilon  # and a delta of (1 + e^epsilon) times that of one record, which is below COUNTED_DELTA

    def bound(self, confidence: float) -> TwoSampleBound:
        return ClopperPearson(COUNTED_DELTA, confidence)

    def run(self, present: bool, seed: int, noise: float | None = None) -> Seen:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.tensor([0, 1]).repeat(10)
        labels[0] = int(present)
        records = Split(torch.rand(20, 2, generator=generator), labels)
        order = Order(2, 400, self.epsilon, COUNTED_DELTA / 4, seed=seed, records=20)
        method = Dpgan(lot=4, steps=1, turns=1, made=4, width=1, latent=2, counts_share=0.5)
        try:
            made = method.synthesize(records, order, Context(Ledger()))
        except Exception as error:  # the station also looks at whether it raises
            return Seen.of_error(error)
        return Seen({}, {"labels of the second class": float(made.labels.sum())})


add_stations(ClassCounts())
