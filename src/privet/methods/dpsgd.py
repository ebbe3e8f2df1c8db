"""DP-SGD: noise in the gradient (Abadi et al. 2016), as one call and as a method with its clippings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from privet.audit import Audit
from privet.clipping import AdaptiveClipping, AutomaticClipping, Clipping, FlatClipping, PerLayerClipping
from privet.data import Dataset, Progress, Split
from privet.errors import InputError
from privet.methods.method import VARIANT, Context, Method, Outcome, Power, Ran, Task, TrainedModel, option, register
from privet.methods.preparation import (
    Prepared,
    arguments,
    build_model,
    planned_releases,
    prepare,
    reserve_accuracy,
)
from privet.methods.recipe import Recipe, TrainingSettings, chosen
from privet.methods.statistics import releases_in
from privet.models.features import OnFeatures
from privet.noise import GaussianNoise
from privet.privacy import Budget, Event, Ledger
from privet.sampling import PoissonSampling
from privet.training import BudgetExhausted, Performance, Plan, Private, make_private
from privet.training.blocks import Box
from privet.training.checkpoint import Stateful
from privet.training.logs import OnStep as OnStep
from privet.training.logs import StepReport
from privet.training.plan import Calibration, check_steps

Loss = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Trained:
    """A privately trained model with what was done to the data."""

    model: nn.Module
    ledger: Ledger
    plan: Plan
    history: list[dict[str, Any]] = field(default_factory=list)
    """One entry for each epoch, or for every few: step, epsilon, the mean loss of its steps and, if there are test records, the
    accuracy on them. If the model is averaged, the last entry also has the accuracy of the last parameters. The loss is computed
    from training records without noise, so only people who may see them may see it."""
    steps: int = 0
    """The number of steps that were done; fewer than planned if the budget was used up earlier."""


def train(
    model: nn.Module,
    optimizer: Optimizer,
    records: Split,
    *,
    test: Split | None = None,
    loss: Loss = nn.functional.cross_entropy,
    augment: Callable[[Tensor], Tensor] | None = None,
    on_step: OnStep | None = None,
    ledger: Ledger | None = None,
    views: int = 1,
    measure_every: int = 1,
    **settings: Any,
) -> Trained:
    """Train a classifier privately.

    Args:
        model, optimizer, records, views, settings: as in `privet.make_private`. With ``average=0.95``, the model that is
            measured and returned is the averaged one; with ``folder=..., resume=True`` a killed run goes on.
        test: records on which the accuracy is measured after each epoch.
        loss: of the model's outputs and the labels; a mean or a sum over the records.
        augment: changes each input of a batch independently of the others; with `views`, each record comes that many times.
            on_step: gets a dictionary with step, steps, loss and epsilon after each step. The loss is computed from the records
                in
        the batch without noise: do not publish it. Epsilon is computed a few times a second and after the last step, so it may
            be a few steps old.
        ledger: where the steps are recorded.
        measure_every: epochs between two entries of the history. Computing their epsilon and accuracy takes time.
    """
    if measure_every < 1:
        raise InputError(f"measure_every is a number of epochs of at least 1, not {measure_every}.")
    history, ended = _History(measure_every), Box(False)
    stateful: dict[str, Stateful] = {"history": history, "ended": ended}
    private = make_private(model, optimizer, records, ledger=ledger, views=views, stateful=stateful, **settings)

    with closing(private):
        model.train()
        try:
            if not ended.value:
                _loop(private, history, model, optimizer, loss, augment, views, test, on_step)
        except BudgetExhausted:
            # Steps that were counted twice, or a noise multiplier that was given: what was trained until here is the model.
            if private.steps_done == 0:
                raise
            ended.value = True
        if history.last_step != private.steps_done:
            history.add(private, model, test)
        if ended.value and private.run_folder is not None:
            private.save()  # when the run goes on after its training, it does not train again
    if private.average is not None:
        if test is not None:
            history.entries[-1]["last_accuracy"] = accuracy(model, test)
        private.average.keep()
    return Trained(model, private.ledger, private.plan, history.entries, private.steps_done)


def _loop(
    private: Private,
    history: _History,
    model: nn.Module,
    optimizer: Optimizer,
    loss: Loss,
    augment: Callable[[Tensor], Tensor] | None,
    views: int,
    test: Split | None,
    on_step: OnStep | None,
) -> None:
    standing = StepReport(private)
    for inputs, labels in private.batches() if private.steps_done < private.plan.steps else ():
        before = private.steps_done
        if views > 1:
            inputs, labels = inputs.repeat_interleave(views, 0), labels.repeat_interleave(views, 0)
        if augment is not None:
            inputs = augment(inputs)
        optimizer.zero_grad()
        value = loss(model(inputs), labels)
        value.backward()
        optimizer.step()
        step = private.steps_done
        if step == before:
            continue
        history.losses.append(float(value.detach()))
        if on_step is not None:
            on_step({"loss": history.losses[-1], **standing(), **history.accuracy})
        if history.is_due(private):
            history.add(private, model, test)


class _History:
    """The history of the epochs, which checkpoints contain."""

    def __init__(self, every: int) -> None:
        self.every = every
        """Epochs from one entry to the next."""
        self.entries: list[dict[str, Any]] = []
        self.losses: list[float] = []
        """The mean loss of the steps since the last entry; steps without records have no loss."""

    @property
    def last_step(self) -> int:
        return int(self.entries[-1]["step"]) if self.entries else 0

    def is_due(self, private: Private) -> bool:
        steps = self.every * private.steps_per_epoch
        return private.steps_done // steps > self.last_step // steps

    @property
    def accuracy(self) -> dict[str, float]:
        """The accuracy of the last entry, if it was measured."""
        last = self.entries[-1] if self.entries else {}
        return {"accuracy": last["accuracy"]} if "accuracy" in last else {}

    def add(self, private: Private, model: nn.Module, test: Split | None) -> None:
        """Add an entry for the current state; if the parameters are averaged, the averaged model is measured."""
        step, epsilon = private.steps_done, private.spent().epsilon
        entry: dict[str, Any] = {"step": step, "epoch": step / private.steps_per_epoch, "epsilon": epsilon}
        if self.losses:
            entry["loss"] = fmean(self.losses)
        if test is not None:
            with private.average.applied() if private.average else nullcontext():
                entry["accuracy"] = accuracy(model, test)
        self.entries.append(entry)
        self.losses.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"entries": list(self.entries), "losses": list(self.losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.entries[:], self.losses[:] = state["entries"], state["losses"]


def accuracy(model: nn.Module, split: Split, batch_size: int = 2000) -> float:
    """The fraction of records that the model classifies correctly."""
    was_training = model.training
    model.eval()
    right = 0
    with torch.no_grad():
        for indices in torch.arange(len(split)).split(batch_size):
            inputs, labels = split.batch(indices)
            predicted: Tensor = model(inputs).argmax(1)
            right += int((predicted == labels).sum())
    model.train(was_training)
    return right / len(split)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error of a model with one output."""
    return nn.functional.mse_loss(outputs.squeeze(1), targets)


CLIPPINGS: Mapping[str, Callable[[float], Clipping]] = {
    "flat": FlatClipping,
    "automatic": AutomaticClipping,
    "adaptive": AdaptiveClipping,
    "per-layer": PerLayerClipping,
}
"""The clippings by name, each a function of the norm."""
EXAMPLE_RECORDS = 1000
"""The public size in a plan without data; it only scales the release."""
_NUMBERS_AT_ONCE = 2**22
_ENTRIES = 100
"""Target number of history entries; longer runs are thinned to it."""


@dataclass(frozen=True, kw_only=True)
class RecipeMethod(Method):
    """A method that trains a classifier by a recipe: releases before training, then private steps.

    A subclass says with which clipping and noise, in `trained`. TrainingSettings that are not given are those of the recipe.

    Formal guarantees: everything that looks at the training records is in the ledger: the releases that the recipe asks
    for, the noisy accuracy where test records are protected, and the steps. All of it is planned before the first release.
    """

    noise_path = ""
    protects_users = True
    limits: ClassVar[dict[str, str]] = {
        "sampling_rate": "(0, 1]",
        "clip": "(0, inf)",
        "learning_rate": "(0, inf)",
        "momentum": "[0, 1)",
        "epochs": "(0, inf)",
        "average": "[0, 1)",
    }
    states_noise = False
    """Whether this method uses the noise multiplier that a recipe states."""

    recipe: str = option("", "the recipe by name, or a .yaml file; without it, the one that fits the records")
    model: str = option("", "another model: a name of privet.models, or py:package.module:Net")
    accountant: str = option("pld", "whose theorem calibrates the noise")
    sampling_rate: float | None = option(None, "the probability that a record joins a step's batch")
    clip: float | None = option(None, "the norm to which each record's gradient is clipped")
    learning_rate: float | None = option(None, "the learning rate of SGD")
    momentum: float | None = option(None, "the momentum of SGD")
    epochs: float | None = option(None, "how long to train; in place of the recipe's epochs or steps")
    average: float | None = option(None, "decay of a moving average of the parameters; 0 for none")

    def trained(self, task: Task, part: nn.Module, settings: dict[str, Any]) -> Trained:
        """Train `part`; `settings` are the arguments of `train`, whose `optimizer` and `records` are in it."""
        raise NotImplementedError

    def chosen_recipe(self, dataset: Dataset) -> tuple[Recipe, str]:
        """The recipe for these records, and why it is this one."""
        return chosen(self.recipe, dataset, self.model)

    def at(self, recipe: Recipe, epsilon: float) -> TrainingSettings:
        """The recipe's settings for a budget, with those that were given in their place."""
        names = ("sampling_rate", "clip", "learning_rate", "momentum", "average")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.epochs is not None:
            given |= {"epochs": self.epochs, "steps": 0}
        return replace(recipe.at(epsilon), **given)

    def fit(self, task: Task, context: Context) -> Outcome:
        dataset = task.dataset
        recipe, settings, model = self._start(task)
        # Advanced composition would pay for one large release with four times the noise in every step.
        reserved = reserve_accuracy(task, context) if self.accountant == "pld" else None
        prepared = prepare(recipe, settings, dataset, model, context.releases, task.seed, context.progress)
        done = self.trained(task, prepared.part, self._arguments(task, context, settings, prepared))
        release = TrainedModel(
            model, prepared.part, prepared.train, prepared.test, recipe.model.name, arguments(recipe, dataset)
        )
        return Outcome(
            release,
            plan=done.plan,
            steps=done.steps,
            settings=_told(recipe, settings, done, prepared.train.unit),
            history=done.history,
            accuracy=reserved,
            accountant=self.accountant,
        )

    def _start(self, task: Task) -> tuple[Recipe, TrainingSettings, nn.Module]:
        """The recipe, its settings for the budget, and its model with fresh parameters."""
        recipe, _ = self.chosen_recipe(task.dataset)
        settings = self.at(recipe, task.epsilon)
        if round(settings.sampling_rate * task.dataset.size) < 1:
            raise InputError(f"{task.dataset.name} has too few training records for the recipe {recipe.name}.")
        check_steps(_batch_and_steps(settings, task.dataset.size)[1])
        model = build_model(recipe, task.dataset, task.seed)
        self._check_used(recipe, settings, model)
        return recipe, settings, model

    def release_audits(
        self, ran: Ran, power: Power, progress: Progress | None = None
    ) -> tuple[tuple[Audit, ...], Event]:
        """The second moments that a recipe releases. A mean looks like a noisy accuracy in the ledger, and is left out."""
        return releases_in(ran.ledger, ("second-moment", "second-moment"), **power.asked(ran.delta, progress))

    def _check_used(self, recipe: Recipe, settings: TrainingSettings, model: nn.Module) -> None:
        """Raise if the recipe states a setting that this method or this model does not use."""
        unused = {
            "noise_multiplier": (not self.states_noise, f"the method {self.key} calibrates its noise to the budget")
        }
        on_features = isinstance(model, OnFeatures)
        for name in ("mean_noise", "whitening_noise"):
            unused[name] = (not on_features, f"the model {recipe.model.name} has no features to standardize")
        unused["components_noise"] = (on_features, f"the model {recipe.model.name} has no projection")
        for name, (is_unused, why) in unused.items():
            if is_unused and getattr(settings, name):
                raise InputError(
                    f"The recipe {recipe.name} states {name}, which would not be used: {why}. Take it out of the recipe, or "
                    f"choose another method or model."
                )

    def _arguments(
        self, task: Task, context: Context, settings: TrainingSettings, prepared: Prepared
    ) -> dict[str, Any]:
        """The arguments of `train`, from the recipe's settings and the public number of records."""
        records = task.dataset.size
        batch, steps = _batch_and_steps(settings, records)
        optimizer = torch.optim.SGD(prepared.part.parameters(), lr=settings.learning_rate, momentum=settings.momentum)
        return {
            "optimizer": optimizer,
            "records": prepared.train,
            "test": None if context.protect_test or task.dataset.target is not None else prepared.test,
            **({"loss": squared_error} if task.dataset.target is not None else {}),
            "public_size": records,
            "on_step": context.on_step,
            "measure_every": max(1, round(steps * batch / records / _ENTRIES)),
            "batch_size": batch,
            "performance": Performance(physical_batch_size=_physical(prepared.train, batch)),
            "steps": steps,
            "epsilon": task.epsilon,
            # A paper states the noise, so the budget ends the training.
            "noise_multiplier": (self.states_noise and settings.noise_multiplier) or None,
            "delta": task.delta,
            "accountant": self.accountant,
            "max_grad_norm": settings.clip,
            "loss_reduction": "mean",
            "average": settings.average or None,
            "scheduler": _falling(optimizer, settings) if settings.decay_epochs else None,
            "seed": task.seed,
            # The settings plan everything, including what is recorded before the training.
            "fixed_beforehand": True,
            **context.where,
        }


@register
@dataclass(frozen=True, kw_only=True)
class DPSGD(RecipeMethod):
    """DP-SGD by a recipe, with any of the clippings.

    Attributes:
        clipping: flat, automatic, adaptive or per-layer; from Python also a function from a norm to a `Clipping`.
    """

    noise_path = "gradient"
    source = "Abadi et al. 2016"
    noise_is = "the clipped gradient"
    proof = "(epsilon, delta) for Poisson sampling with joint clipping: proved"
    states_noise = True
    predicts_numbers = True

    key: str = "dpsgd"
    title: str = "DP-SGD (Abadi et al. 2016)"
    clipping: str | Callable[[float], Clipping] = field(default="flat", metadata=VARIANT)

    def clipped_to(self, norm: float) -> Clipping:
        """The clipping with a norm."""
        if not isinstance(self.clipping, str):
            return self.clipping(norm)
        if self.clipping not in CLIPPINGS:
            raise InputError(f"There is no clipping {self.clipping!r}: there are {', '.join(CLIPPINGS)}.")
        return CLIPPINGS[self.clipping](norm)

    def trained(self, task: Task, part: nn.Module, settings: dict[str, Any]) -> Trained:
        return train(part, clipping=self.clipped_to(settings.pop("max_grad_norm")), **settings)

    def planned(self, task: Task) -> Event | None:
        if type(self).trained is not DPSGD.trained:
            return None  # a subclass may train differently
        recipe, settings, _ = self._start(task)
        if settings.noise_multiplier:
            raise InputError(
                f"The recipe {recipe.name} states its noise, so the number of steps is not known in advance: choose a recipe "
                f"whose noise is calibrated to the budget."
            )
        records, ledger = task.dataset.size, Ledger(relation=self.relation, unit=self.unit(task))
        if self.accountant == "pld":
            reserve_accuracy(task, Context(ledger, protect_test=task.protects_test))
        ledger.record(planned_releases(settings))
        batch, steps = _batch_and_steps(settings, records)
        sampling = PoissonSampling(batch / records)
        budget = Budget(task.epsilon, task.delta, self.relation, self.accountant)
        _, noise = Calibration(sampling, GaussianNoise, budget, ledger).solve(steps, None, {})
        assert isinstance(noise, float)
        return ledger.event + Plan(sampling, self.clipped_to(settings.clip), GaussianNoise(noise), steps, records).event

    def example(self, noise: float, rate: float, steps: int, delta: float) -> Ran:
        plan = Plan(PoissonSampling(rate), self.clipped_to(1.0), GaussianNoise(noise), steps, EXAMPLE_RECORDS)
        return Ran(Ledger(), delta, plan, of="method")


for _clipping in ("automatic", "adaptive", "per-layer"):
    register(
        replace(
            DPSGD(),
            key=f"dpsgd-{_clipping}",
            title=f"DP-SGD, {_clipping} clipping",
            clipping=_clipping,
            by_default=False,
        )
    )
register(
    replace(
        DPSGD(),
        key="dpsgd-advanced",
        title="DP-SGD calibrated by advanced composition",
        accountant="strong",
        by_default=False,
    )
)


def _batch_and_steps(settings: TrainingSettings, records: int) -> tuple[int, int]:
    """The expected batch and the number of steps, from the public number of records."""
    batch = round(settings.sampling_rate * records)
    return batch, settings.steps or max(1, round(settings.epochs * records / batch))


def _physical(records: Split, batch: int) -> int | None:
    """Number of records that fit into the processor's cache; for wide records this halves the time of a step."""
    fits = max(1, _NUMBERS_AT_ONCE // records[0][0].numel())
    return fits if fits < batch else None


def _falling(optimizer: Optimizer, settings: TrainingSettings) -> torch.optim.lr_scheduler.LRScheduler:
    """The learning rate falls linearly over the first `decay_epochs`, and then stays constant."""
    end = settings.learning_rate_end / settings.learning_rate
    steps = settings.decay_epochs / settings.sampling_rate
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 + (end - 1) * min(step / steps, 1.0))


def _told(recipe: Recipe, settings: TrainingSettings, done: Trained, unit: str) -> dict[str, str]:
    """The settings as the page shows them."""
    plan = done.plan
    passes = done.steps * plan.sampling.rate
    momentum = f", momentum {settings.momentum:g}" if settings.momentum else ""
    falls = f", falling to {settings.learning_rate_end:g}" if settings.decay_epochs else ""
    described = getattr(plan.clipping, "describe", None)
    shown = {
        "Recipe": f"{recipe.name}: {recipe.title}",
        "Steps": f"{done.steps:,}, about {passes:.3g} passes over the data",
        "Batch": f"{plan.expected_batch_size:,.0f} {unit}s expected, each drawn with probability {plan.sampling.rate:.4g}",
        "Clipping": described()
        if described is not None
        else f"each {unit}'s gradient to a norm of at most C = {settings.clip:g}",
        "Noise": f"{plan.noise.describe()} on the sum of a batch",
        "Optimizer": f"SGD, learning rate {settings.learning_rate:g}{falls}{momentum}",
    }
    if settings.average:
        shown["Parameters"] = f"moving average, decay {settings.average:g}"
    released = {"mean": settings.mean_noise, "second moments": settings.whitening_noise}
    released |= {"principal components": settings.components_noise}
    before = [f"{what} with noise {noise:g}" for what, noise in released.items() if noise]
    if before:
        shown["Released before training"] = ", ".join(before)
    return shown
