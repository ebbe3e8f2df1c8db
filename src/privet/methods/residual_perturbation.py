"""Residual perturbation as published: ordinary training of a perturbed network, with every epoch in the ledger.

`train` is the paper's training, an `Answering` network serves strategy II, and `train_by_dpsgd` is the sound practical form.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privet.audit import Audit, GaussianTradeOff, mechanism
from privet.data import Dataset, Progress, Split
from privet.errors import InputError
from privet.io.moved import moved_names
from privet.methods import dpsgd
from privet.methods.dpsgd import OnStep, RecipeMethod, Trained, accuracy
from privet.methods.method import Context, Method, Outcome, Power, Ran, Task, TrainedModel, option, register
from privet.methods.perturbation import AppliedPerturbation, ResidualPerturbation
from privet.methods.recipe import Recipe, kind_of
from privet.models import resnet
from privet.privacy import Event, Ledger, Relation
from privet.privacy.events import NOTHING
from privet.randomness import Randomness, Source
from privet.training import BudgetExhausted, RunFolder
from privet.training.blocks import Blocks, Box
from privet.training.checkpoint import Stateful
from privet.training.folder import opened
from privet.training.identity import data_fingerprint, plain

UNIT = "record (its label is public)"
REGULARIZER = ResidualPerturbation(0.5)
"""The paper's gamma for the network that it compares with DP-SGD is between 0.3 and 0.75."""


@dataclass(frozen=True)
class SgdSchedule:
    """How a network is trained: stochastic gradient descent with momentum, whose rate falls at milestones (He et al. 2016).

    Attributes:
        epochs: passes over the shuffled records.
        batch_size: records of a step; the last batch of an epoch may be smaller.
        learning_rate: at the beginning.
        milestones: after each of these epochs the rate is divided by `division`.
    """

    epochs: int = 164
    batch_size: int = 128
    learning_rate: float = 0.1
    milestones: tuple[int, ...] = (82, 123)
    division: float = 10.0
    momentum: float = 0.9
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise InputError("A training has at least one epoch, and a batch at least one record.")

    def for_members(self, members: int) -> SgdSchedule:
        """The schedule for an ensemble: a larger rate compensates for averaging, which divides each member's gradient."""
        return replace(self, learning_rate=self.learning_rate * members)

    def rate(self, epoch: int) -> float:
        """The learning rate of epoch 0, 1, 2, ..."""
        return self.learning_rate / self.division ** sum(epoch >= milestone for milestone in self.milestones)


@dataclass(frozen=True, eq=False)
class Perturbed:
    """A network that was trained under residual perturbation, with its ledger.

    The noise stays in the network until ``applied.remove()``, because its answers should have noise, too.
    """

    model: nn.Module
    applied: AppliedPerturbation
    ledger: Ledger
    steps: int
    history: list[dict[str, Any]] = field(default_factory=list)
    """One entry for each epoch: step, loss, epsilon, and the accuracy on the test records where there are any."""


def train(
    model: nn.Module,
    records: Split,
    perturbation: ResidualPerturbation,
    schedule: SgdSchedule | None = None,
    *,
    delta: float,
    test: Split | None = None,
    blocks: Sequence[str] | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    on_step: OnStep | None = None,
    ledger: Ledger | None = None,
    seed: int | None = None,
    folder: RunFolder | None = None,
) -> Perturbed:
    """Train a network with noise in its residual stream.

    Formal guarantees: each epoch is in the ledger before its first step, as `ResidualPerturbation.epoch` counts it; each
    record is seen once in an epoch, and under `pi` only as its clipped input plus fresh noise. Labels are taken as public, and
    so is the number of records: the ledger's neighbors replace one record's input.

    Args:
        model: any network with residual blocks; it may have batch norm, since noise on the input comes before it.
        records: the data.
        perturbation: the noise.
        schedule: how to train.
        delta: of the statement.
        test: records on which the accuracy is measured after the last epoch.
        blocks: names of the residual blocks, as in `ResidualPerturbation.apply`.
        on_step: called after each step, as `privet.methods.dpsgd.train` does; it may end the training with `BudgetExhausted`.
        ledger: where the epochs are recorded; it must be for replacing a record.
        seed: makes the order and the noise repeatable, for experiments; a model that is released has none.
        folder: where the run is saved after each epoch, instead of `ledger`. A killed run goes on from there. A release charges
            repeated epochs again, and ends as many epochs earlier.
    """
    records.require_records("Residual perturbation")
    schedule = schedule or SgdSchedule()
    run = opened(folder, ledger=ledger)
    ledger = ledger if ledger is not None else Ledger(relation=Relation.REPLACE_ONE, unit=UNIT)
    if (ledger if run is None else run.ledger).relation is not Relation.REPLACE_ONE:
        raise InputError("Residual perturbation hides which input a record has: its ledger is for replace-one.")
    trained = _trained(model, records, perturbation, schedule, run or ledger, blocks, loss, delta, seed, on_step)
    if test is not None:
        trained.history[-1]["accuracy"] = accuracy(model, test)
    model.eval()
    return trained


def _trained(
    model: nn.Module,
    records: Split,
    perturbation: ResidualPerturbation,
    schedule: SgdSchedule,
    where: RunFolder | Ledger,
    blocks: Sequence[str] | None,
    loss: Callable[[Tensor, Tensor], Tensor],
    delta: float,
    seed: int | None,
    on_step: OnStep | None,
) -> Perturbed:
    randomness = Randomness.of(seed)
    applied = perturbation.apply(model, blocks=blocks, source=randomness.noise)
    event = applied.epoch
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=schedule.learning_rate,
        momentum=schedule.momentum,
        weight_decay=schedule.weight_decay,
    )
    per_epoch = math.ceil(len(records) / schedule.batch_size)
    steps, history = schedule.epochs * per_epoch, Box[list[dict[str, Any]]]([])
    parts: dict[str, Stateful] = {"model": model, "optimizer": optimizer, "history": history}
    kept = Blocks(where, parts, randomness, planned=event * schedule.epochs)
    kept.begin(
        {
            "perturbation": plain(perturbation),
            "schedule": plain(schedule),
            "seed": seed,
            "data": data_fingerprint(records),
        }
    )
    model.train()

    def epoch(number: int) -> None:
        """One pass over the records, which is already in the ledger."""
        epsilon = kept.ledger.spent(delta).epsilon
        standing = {"epsilon": epsilon, "delta": delta, "guarantee": str(event.guarantee)}
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(number)
        before = history.value[-1]["step"] if history.value else 0
        history.value.append({"epsilon": epsilon})
        total, seen = 0.0, 0
        batches = _permutation(len(records), randomness.sampling).split(schedule.batch_size)
        for done, chosen in enumerate(batches, before + 1):
            inputs, labels = records.batch(chosen)
            optimizer.zero_grad()
            value = loss(model(_as_the_weights(inputs, model)), labels)
            value.backward()
            optimizer.step()
            seen, total = seen + len(chosen), total + float(value.detach()) * len(chosen)
            history.value[-1] |= {"step": done, "loss": total / seen}
            if on_step is not None:
                on_step({"step": done, "steps": steps, "loss": float(value.detach()), **standing})

    try:
        while kept.step < schedule.epochs and kept.allows({(name := f"epoch {kept.step + 1}"): event}):
            kept.announce(name, event)
            epoch(kept.step)
            kept.conclude(name, event)
            kept.save(kept.step + 1)
    except BudgetExhausted:
        if not history.value:
            raise
        # The whole epoch is in the ledger, so the model may stay as it is now.
        kept.save(kept.step + 1, ended=True)
    return Perturbed(model, applied, kept.ledger, history.value[-1]["step"], history.value)


def train_by_dpsgd(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    records: Split,
    *,
    perturbation: ResidualPerturbation = REGULARIZER,
    blocks: Sequence[str] | None = None,
    **settings: Any,
) -> dpsgd.Trained:
    """DP-SGD on a network without batch norm, with the noise in its stream as a regularizer, in training alone.

    Formal guarantees: those of DP-SGD. A record's noise in the stream depends on no other record, so its gradient is clipped as
    usual; the noise adds nothing to the proof. `settings` are those of `privet.methods.dpsgd.train`.
    """
    with perturbation.apply(model, blocks=blocks, at_test=False):
        return dpsgd.train(model, optimizer, records, **settings)


@dataclass(frozen=True, eq=False)
class Answering:
    """A network of strategy II that answers queries; its weights stay secret, and every answer is recorded before it is returned.

    Formal guarantees: those of Theorem 2, under its assumptions, which every event names. An ensemble pays for the blocks and the
    last layers of all its members, even if they are joined into one network, which answers few rows faster::

        network = ensemble.joined()
        serving = Answering(network, perturbation.apply(network))
    """

    model: nn.Module
    applied: AppliedPerturbation
    ledger: Ledger = field(default_factory=lambda: Ledger(relation=Relation.REPLACE_ONE))

    def __post_init__(self) -> None:
        self.query  # noqa: B018  (refused here, not at the first question)

    @property
    def query(self) -> Event:
        """The event of one answer."""
        return self.applied.query

    def predict(self, inputs: Tensor) -> Tensor:
        """The class scores of each row, with fresh noise."""
        if not (self.applied.at_test and self.applied.is_in(self.model)):
            raise InputError("The network would answer without noise: apply the perturbation to it.")
        self.ledger.record(self.query, len(inputs))
        self.model.eval()
        with torch.no_grad():
            answers: Tensor = self.model(inputs)
        return answers


def _permutation(count: int, source: Source) -> Tensor:
    if isinstance(source, torch.Generator):
        return torch.randperm(count, generator=source)
    return source.integers(count).argsort()


def _as_the_weights(inputs: Tensor, model: nn.Module) -> Tensor:
    """Images in the memory format of the first convolution."""
    first = next((p for p in model.parameters() if p.ndim == 4), None)
    if inputs.ndim == 4 and first is not None and first.is_contiguous(memory_format=torch.channels_last):
        return inputs.contiguous(memory_format=torch.channels_last)
    return inputs


FEWER = 4
"""Factor by which the number of draws is reduced if inputs get their noise one by one."""


def audit_input_noise(perturbation: ResidualPerturbation, *, delta: float = 1e-5, **settings: Any) -> Audit:
    """Audit the noisy input of one record under strategy I with pi; the record is replaced by the opposite one.

    `settings` are those of `privet.audit.mechanism`: draws, confidence, seed and progress.

    Formal guarantees: the claim is the event of one epoch, for replacing a record's input, and the bound is that of a Gaussian
    trade-off, which is what that event claims.
    """
    network = resnet(channels=1, classes=2, depth=8)
    far = 1e3 * (perturbation.radius or 1.0)
    images = torch.zeros(2, 1, 1, 8, 8)
    images[0, 0, 0, 0, 0], images[1, 0, 0, 0, 0] = far, -far

    def epoch(image: Tensor, generator: torch.Generator) -> Tensor:
        with perturbation.apply(network, source=generator) as applied:
            return applied.seen(network, image)

    return mechanism(
        epoch,
        images[0],
        images[1],
        claimed=perturbation.epoch(1),
        delta=delta,
        score=lambda seen: float(seen[0, 0, 0, 0]),
        bound=GaussianTradeOff,
        relation=Relation.REPLACE_ONE,
        name="Residual perturbation, the noise on an input",
        setting="one record, whose input is far above the radius, replaced by the opposite one; the input with its noise is seen",
        **settings,
    )


PATCHES = (3, 50, 50)
PATCH_SCHEDULE = SgdSchedule(100, 128, 0.1, (20, 40, 60, 80), 4.0)
"""The paper's, for its patches of breast tissue."""
RADIUS = 30.0
"""The default norm to which inputs are clipped: that of the paper."""
SHORT_SCHEDULE = SgdSchedule(20, 32, 0.05, (10, 15), 10.0)
"""The schedule of He et al. 2016, shortened to about an hour on one core."""


def _needs_images(task: Task) -> str:
    return "" if kind_of(task.dataset.shape) == "images" else "it is for images"


@register
@dataclass(frozen=True, kw_only=True)
class Residual(Method):
    """Residual perturbation as published: ordinary training of a ResNet with noise in every residual mapping.

    Its noise is set by `gamma` and `pi`, and its epsilon follows from them. With `pi` it is proved for public labels; without
    `pi` it is only claimed.

    Attributes:
        gamma: the noise in every residual block, in training and at test.
        strategy: I adds the noise, II adds it in proportion to the stream.
        pi: the noise on the input, on which the proof rests (strategy I).
        radius: with pi, the norm to which inputs are clipped; 30 by default.
        ensemble: number of networks that are averaged.
        epochs: passes over the records; 0 for the number in the schedule.
        shrink: images are averaged over squares of this many pixels a side.
        depth: layers of the network.
    """

    noise_path = "residual mapping"
    source = "Wang et al. 2020"
    noise_is = "the residual stream"
    proof = "via noise on the input, with public labels, or by DP-SGD: proved; via the stream's noise alone: claimed, refuted"
    spends_budget = False
    limits: ClassVar[dict[str, str]] = {
        "radius": "(0, inf)",
        "ensemble": "[1, inf)",
        "shrink": "[1, inf)",
        "depth": "[1, inf)",
    }

    key: str = "residual"
    title: str = "Residual perturbation, as published"
    by_default: bool = False
    gamma: float = 0.5
    strategy: str = "I"
    pi: float = 0.0
    radius: float | None = None
    ensemble: int = 1
    epochs: int = 0
    shrink: int = 1
    depth: int = 8

    @property
    def relation(self) -> Relation:
        return Relation.REPLACE_ONE

    def unit(self, task: Task) -> str:
        return UNIT

    def why_not(self, task: Task) -> str:
        return super().why_not(task) or _needs_images(task)

    @property
    def perturbation(self) -> ResidualPerturbation:
        """The noise."""
        if self.strategy == "II" and self.pi:
            raise InputError("pi is the noise on the input of strategy I: leave it out, or choose strategy I.")
        if not (self.gamma or self.pi):
            raise InputError("Without gamma and pi there is no noise: give one of them.")
        if self.radius is not None and not self.pi:
            raise InputError("radius bounds inputs that get noise by pi: give pi too, or leave radius out.")
        radius = RADIUS if self.radius is None else self.radius
        return ResidualPerturbation(self.gamma, self.strategy, pi=self.pi, radius=radius if self.pi else None)

    def schedule(self, task: Task) -> SgdSchedule:
        """The paper's schedule for patches of 50x50, a shorter one for everything else."""
        found = PATCH_SCHEDULE if task.dataset.shape == PATCHES else SHORT_SCHEDULE
        if self.epochs:
            milestones = (math.ceil(each * self.epochs / found.epochs) for each in found.milestones)
            kept = tuple(each for each in milestones if each < self.epochs)
            found = replace(found, epochs=self.epochs, milestones=kept)
        return found.for_members(self.ensemble)

    def network(self, task: Task) -> tuple[nn.Module, dict[str, Any]]:
        """A fresh network, and its arguments."""
        arguments: dict[str, Any] = {
            "channels": task.dataset.shape[0],
            "classes": len(task.dataset.classes),
            "depth": self.depth,
            "members": self.ensemble,
            **({"shrink": self.shrink} if self.shrink > 1 else {}),
        }
        with torch.random.fork_rng(devices=[]):
            if task.seed is not None:
                torch.manual_seed(task.seed)
            model = resnet(**arguments)
        return model.to(memory_format=torch.channels_last), arguments  # type: ignore[call-overload]

    def release_audits(
        self, ran: Ran, power: Power, progress: Progress | None = None
    ) -> tuple[tuple[Audit, ...], Event]:
        """Audits of the noise on the input, on which the proof rests; empty without it."""
        if not self.pi or self.strategy != "I":
            return (), NOTHING
        asked = power.asked(ran.delta, progress)
        audit = audit_input_noise(self.perturbation, **{**asked, "draws": max(40, power.draws // FEWER)})
        said = "the clipping of an input and the noise on it, in one epoch"
        left = "the run's model; how often an epoch sees a record"
        return (replace(audit, audited=said, not_audited=left),), self.perturbation.epoch(1)

    def fit(self, task: Task, context: Context) -> Outcome:
        perturbation, schedule = self.perturbation, self.schedule(task)
        model, arguments = self.network(task)
        done = train(
            model,
            task.dataset.train,
            perturbation,
            schedule,
            delta=task.delta,
            seed=task.seed,
            on_step=context.on_step,
            **context.where,
        )
        release = TrainedModel(
            model, model, task.dataset.train, task.dataset.test, "resnet", arguments, perturbation=perturbation
        )
        history = [{"epoch": number, **entry} for number, entry in enumerate(done.history, 1)]
        return Outcome(
            release,
            steps=done.steps,
            settings=self._told(schedule, perturbation, len(done.history)) | {"Steps": f"{done.steps:,}"},
            history=[entry for entry in history if math.isfinite(entry["epsilon"])],
            noise_path="inputs and residual mapping" if self.pi else "",
        )

    def planned(self, task: Task) -> Event | None:
        model, _ = self.network(task)
        return self.perturbation.apply(model).epoch * self.schedule(task).epochs

    def expected_seconds(self, task: Task) -> float:
        """Measured on a few steps with artificial records; no record of the task is used."""
        if len(task.dataset.shape) != 3:
            return 0.0  # refused anyway
        schedule, probes = self.schedule(task), 2
        model, _ = self.network(task)
        with torch.random.fork_rng(devices=[]):
            made_up = torch.rand(schedule.batch_size, *task.dataset.shape)
        made_up = made_up.contiguous(memory_format=torch.channels_last)
        for warm in range(1 + probes):
            if warm == 1:
                began = time.monotonic()
            model(made_up).square().mean().backward()
        step = (time.monotonic() - began) / probes
        # Each record is used once in an epoch, and once more in the attack, which costs a third without its backward pass.
        trained, tested = len(task.dataset.train), len(task.dataset.test)
        return step * (trained * schedule.epochs + (trained + tested) / 3) / schedule.batch_size

    def _told(self, schedule: SgdSchedule, perturbation: ResidualPerturbation, epochs: int) -> dict[str, str]:
        noise = f"strategy {self.strategy}, gamma {self.gamma:g} in every residual block, at test too"
        if perturbation.radius is not None:
            noise += f"; pi {self.pi:g} on inputs of norm at most {perturbation.radius:g}"
        averaged = f", on images averaged over squares of {self.shrink}x{self.shrink} pixels" if self.shrink > 1 else ""
        falls = f", divided by {schedule.division:g} after epochs {', '.join(map(str, schedule.milestones))}"
        rate = f"learning rate {schedule.learning_rate:g}{falls if schedule.milestones else ''}"
        planned = "" if epochs == schedule.epochs else f" of {schedule.epochs}"
        ensemble = f"an ensemble of {self.ensemble} " if self.ensemble > 1 else ""
        return {
            "Network": f"{ensemble}ResNet{self.depth} with batch norm{averaged}",
            "Noise": noise,
            "Epochs": f"{epochs}{planned}, in shuffled batches of {schedule.batch_size}",
            "Optimizer": f"SGD, {rate}, momentum {schedule.momentum:g}",
        }


@register
@dataclass(frozen=True, kw_only=True)
class ResidualDPSGD(RecipeMethod):
    """DP-SGD on a ResNet without batch norm, with noise in its residual mappings as a regularizer, in training alone.

    Attributes:
        gamma: the noise in every residual block.
        strategy: I adds the noise, II adds it in proportion to the stream.
        ensemble: number of networks that are averaged.
    """

    noise_path = "gradient"
    source = "Wang et al. 2020"
    noise_is = "the clipped gradient; the residual stream as a regularizer"
    proof = "that of DP-SGD: proved"

    key: str = "residual-dpsgd"
    title: str = "DP-SGD, residual perturbation as a regularizer"
    by_default: bool = False
    recipe: str = option("resnet-dpsgd", "the recipe by name, or a .yaml file")
    gamma: float = 0.5
    strategy: str = "I"
    ensemble: int = 1

    def why_not(self, task: Task) -> str:
        return super().why_not(task) or _needs_images(task)

    def chosen_recipe(self, dataset: Dataset) -> tuple[Recipe, str]:
        found, why = super().chosen_recipe(dataset)
        return (found if self.model else found.with_arguments(members=self.ensemble)), why

    def trained(self, task: Task, part: nn.Module, settings: dict[str, Any]) -> Trained:
        perturbation = ResidualPerturbation(self.gamma, self.strategy)
        return train_by_dpsgd(part, perturbation=perturbation, **settings)


if not TYPE_CHECKING:
    __getattr__ = moved_names(__name__)
