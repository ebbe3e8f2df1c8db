"""How a line is measured: by a model's accuracy, students of synthetic data, quarters with a shadow attack, or a formula."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privet.attacks import AttackResult, quarters
from privet.data import Dataset, Progress, Split, compute_features, set_aside
from privet.errors import InputError
from privet.methods import Context, Method, Task, TrainedModel, method_for, method_named
from privet.methods.dpsgd import RecipeMethod, accuracy
from privet.methods.pate import Pate, label_all, usual_teachers
from privet.methods.perturbation import ResidualPerturbation
from privet.methods.residual_perturbation import train, train_by_dpsgd
from privet.methods.synthetic import Synthetic
from privet.methods.voting import Voting
from privet.models import resnet, scattering_linear
from privet.papers.results import Measurement, keep, read_kept
from privet.papers.table import NONE, Line, PaperTable, QuartersProtocol
from privet.privacy import (
    Budget,
    Gaussian,
    PoissonSampled,
    PublicRecords,
    Relation,
    Spent,
    accountant_named,
)
from privet.privacy.residual import Theorem1
from privet.randomness import Randomness
from privet.runs.students import train_student
from privet.training.logs import OnStep

_POINTS = 60
"""How many points of a curve are kept."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A line with one seed, and where to report progress."""

    table: PaperTable
    line: Line
    delta: float
    seed: int
    dataset: Dataset
    on_step: OnStep | None = None
    progress: Progress | None = None

    @property
    def task(self) -> Task:
        return Task(self.dataset, self.line.epsilon or 1.0, self.delta, seed=self.seed)

    def method(self) -> Method:
        """The registered method of the line with its settings; raises if it does not fit the table or the records."""
        asked, makes = self.table.students, method_named(self.line.method).makes
        if makes != ("model" if asked is None else "data"):
            raise InputError(f"The method {self.line.method} makes {makes}, which this table does not measure.")
        made = method_for(self.line.method, self.task, self.line.settings | ({"size": asked.size} if asked else {}))
        if made.spends_budget != (self.line.epsilon is not None):
            needs = "needs an epsilon" if made.spends_budget else "has no epsilon to set: it follows from its settings"
            raise InputError(f"The method {made.key} {needs}.")
        if why := made.why_not(self.task):
            raise InputError(f"The method {made.key} does not fit {self.dataset.name}: {why}.")
        return made

    @property
    def votes(self) -> bool:
        """Whether PATE's teachers label records for students."""
        return self.table.protocol == "students" and self.line.method == Pate().key

    def context(self, method: Method) -> Context:
        return Context.in_memory(method, self.task, on_step=self.on_step, progress=self.progress)

    def found(self, quantities: Mapping[str, float], spent: Spent | None, **more: Any) -> Measurement:
        """The measurement of this trial; `spent` is None for what nothing protects."""
        protected = spent is not None and spent.epsilon < math.inf
        return Measurement(
            self.table.name,
            self.line.key,
            self.line.epsilon,
            self.delta,
            dict(quantities),
            self.dataset.name,
            self.seed,
            spent=spent.epsilon if spent is not None else None,
            guarantee=str(spent.guarantee) if spent is not None and protected else "nothing is protected",
            statement=str(spent) if spent is not None else "",
            **more,
        )


def measure(trial: Trial, folder: Path, command: str = "") -> Measurement:
    """Measure a trial, or take from `folder` what was measured before with the same settings and records."""
    name = re.sub(r"[^a-z0-9.]+", "-", trial.line.label.lower()).strip("-")
    path, key = folder / f"{name}-seed-{trial.seed}.json", fingerprint(trial)
    if (kept := read_kept(path, key)) is not None:
        return replace(kept, command=command)
    started = time.process_time()
    made = MEASURES[trial.table.protocol](trial)
    made = replace(made, seconds=round(time.process_time() - started, 1), key=key, command=command)
    keep(path, made)
    return made


def fingerprint(trial: Trial) -> str:
    """A hash of everything that the measurement depends on but the seed."""
    table, line = trial.table, trial.line
    told: dict[str, Any] = {
        "protocol": table.protocol,
        "method": line.method,
        "epsilon": line.epsilon,
        "delta": trial.delta,
        "data": trial.dataset.fingerprint,
    }
    if table.quarters is not None:
        how = asdict(table.quarters)
        if line.method != "residual-dpsgd":
            how.pop("dpsgd")
        told |= {"quarters": how, "settings": line.settings, "records": table.data.records, "shrink": table.data.shrink}
    elif line.method != NONE and not trial.votes:
        method = trial.method()
        told["settings"] = {name: value for name, value in asdict(method).items() if name not in _NAMES}
        if isinstance(method, RecipeMethod):
            recipe, _ = method.chosen_recipe(trial.dataset)
            told["recipe"] = [asdict(method.at(recipe, trial.task.epsilon)), asdict(recipe.model)]
    if table.students is not None:
        told["students"] = asdict(table.students)
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


_NAMES = ("key", "title", "by_default", "recipe")
"""Fields of a method that change no figure; what is in the recipe counts, not its name."""

# --- the accuracy of a model ------------------------------------------------------------------------------------------


def _accuracy(trial: Trial) -> Measurement:
    method = trial.method()
    context = trial.context(method)
    outcome = method.fit(trial.task, context)
    assert isinstance(outcome.release, TrainedModel)
    measured = [each for each in outcome.history if "accuracy" in each]
    if measured:
        quantities = {"accuracy": measured[-1]["accuracy"]}
    else:
        quantities = {"accuracy": accuracy(outcome.release.part, outcome.release.test)}
    if measured and "last_accuracy" in measured[-1]:
        quantities["last"] = measured[-1]["last_accuracy"]
    points = [(each["epoch"], each["epsilon"], each["accuracy"]) for each in measured]
    thinned = [*points[: -1 : max(1, -(-len(points) // _POINTS))], *points[-1:]]
    return trial.found(
        quantities,
        context.ledger.spent(trial.delta),
        steps=outcome.steps,
        curve=tuple(tuple(round(value, 5) for value in point) for point in thinned),
    )


# --- students of synthetic data ---------------------------------------------------------------------------------------


def _students(trial: Trial) -> Measurement:
    asked, dataset = trial.table.students, trial.dataset
    assert asked is not None
    (inputs, targets), test, spent = dataset.train.tensors, dataset.test, None
    if trial.votes:
        inputs, targets, test, spent = _voted(trial)
    elif trial.line.method != NONE:
        method = trial.method()
        context = trial.context(method)
        made = method.fit(trial.task, context).release
        assert isinstance(made, Synthetic)
        inputs, targets, spent = made.inputs, made.targets, context.ledger.spent(trial.delta)
    # As many steps on real records as on synthetic examples.
    epochs = max(1, round(asked.epochs * asked.size / len(inputs)))
    classes = len(dataset.classes)
    accuracies = {}
    for name in asked.names:
        student = train_student(name, inputs, targets, classes, epochs=epochs, seed=trial.seed, on_step=trial.on_step)
        accuracies[name] = student.accuracy(test)
    return trial.found(accuracies, spent)


def _voted(trial: Trial) -> tuple[Tensor, Tensor, Split, Spent]:
    """Half of the test records, taken as public, with labels by the votes of PATE's teachers; and the other half.

    Formal guarantees: those of `privet.methods.pate.label_all`. Students see the public records and the labels alone.
    """
    if trial.line.settings:
        raise InputError("PATE has the usual settings in a table of students: leave out its settings.")
    dataset, epsilon = trial.dataset, trial.task.epsilon
    ledger = trial.context(Pate()).ledger
    count, classes = len(dataset.test) // 2, len(dataset.classes)
    channels, height, width = dataset.shape
    model = scattering_linear(channels, height, width, classes)
    seen = set_aside(compute_features(dataset, model.features, model.key, progress=trial.progress), count)
    divided = set_aside(dataset, count)
    ledger.record(PublicRecords(count, f"{count:,} of the test records of {dataset.name}"))
    _, labels = label_all(
        seen.train,
        seen["public"].tensors[0],
        classes,
        budget=Budget(epsilon, trial.delta, ledger.relation),
        ledger=ledger,
        randomness=Randomness.of(trial.seed),
        voting=Voting(usual_teachers(len(dataset.train), epsilon)),
        on_step=trial.on_step,
    )
    return divided["public"].tensors[0], labels, divided.test, ledger.spent(trial.delta)


# --- quarters with a shadow attack ------------------------------------------------------------------------------------


def _quarters(trial: Trial) -> Measurement:
    """The protocol of the residual-perturbation paper: a shadow and a target are trained alike on a quarter of the records each;
    the attack learns from the shadow's answers and is tested on the target's."""
    table, dataset, protocol = trial.table, trial.dataset, trial.table.quarters
    assert protocol is not None
    dataset.train.require_records("A table of residual networks")
    generator = torch.Generator().manual_seed(trial.seed)
    drawn = torch.randperm(len(dataset.train), generator=generator)[: table.data.records or len(dataset.train)]
    inputs, labels = dataset.train.batch(drawn)
    inputs, test = (_shrunk(images, table.data.shrink) for images in (inputs, dataset.test.tensors[0]))
    statements: list[Spent] = []

    def fit(records: tuple[Tensor, Tensor], generator: torch.Generator) -> nn.Module:
        own = int(torch.randint(2**31, (), generator=generator))
        model, spent = _trained(trial, protocol, Split(*records), own)
        statements.append(spent)
        return model

    found = quarters(fit, inputs, labels, generator)
    target = found.target
    assert isinstance(target, nn.Module)
    attack = AttackResult.of("Shadow model, trained like the target", found.roc)
    quantities = {
        "accuracy": accuracy(target, Split(test, dataset.test.labels)),
        "auc": attack.auc,
        "training": accuracy(target, Split(inputs[found.target_in], labels[found.target_in])),
    }
    return trial.found(quantities, statements[-1], attack=attack)


def _trained(trial: Trial, protocol: QuartersProtocol, records: Split, seed: int) -> tuple[nn.Module, Spent]:
    line, private, settings = trial.line, protocol.dpsgd, trial.line.settings
    by_dpsgd, members = line.method == "residual-dpsgd", settings.get("ensemble", 1)
    schedule = protocol.schedule.for_members(members)
    channels, classes = records[0][0].shape[0], len(trial.dataset.classes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        groups = private.groups if by_dpsgd else 0
        model = resnet(channels, classes, protocol.depth, members, settings.get("skips", True), groups)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    perturbation = ResidualPerturbation(settings.get("gamma", 0.0), settings.get("strategy", "I"))
    title, told = line.title, trial.on_step
    on_step: OnStep | None = None if told is None else lambda step: told({"what": title, **step})
    if not by_dpsgd:
        done = train(model, records, perturbation, schedule, delta=trial.delta, seed=seed, on_step=on_step)
        return model, done.ledger.spent(trial.delta)
    batch = max(1, round(private.sampling_rate * len(records)))
    optimizer = torch.optim.SGD(model.parameters(), lr=private.learning_rate, momentum=schedule.momentum)
    milestones = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: schedule.rate(step * batch // len(records)) / schedule.learning_rate
    )
    trained = train_by_dpsgd(
        model,
        optimizer,
        records,
        perturbation=perturbation,
        batch_size=batch,
        epochs=schedule.epochs,
        noise_multiplier=private.noise_multiplier,
        max_grad_norm=private.clip,
        loss_reduction="mean",
        delta=trial.delta,
        scheduler=milestones,
        seed=seed,
        on_step=on_step,
    )
    model.eval()
    return model, trained.ledger.spent(trial.delta)


def _shrunk(images: Tensor, side: int) -> Tensor:
    if images.ndim != 4:
        raise InputError("A residual network is for images, and these records are not.")
    return F.avg_pool2d(images, side) if side > 1 else images


MEASURES: Mapping[str, Callable[[Trial], Measurement]] = {
    "accuracy": _accuracy,
    "students": _students,
    "quarters": _quarters,
}

# --- numbers that need no training ------------------------------------------------------------------------------------


def _steps(accountant: str) -> Callable[..., float]:
    """The epsilon of steps of DP-SGD by an accountant."""

    def epsilon(rate: float, noise_multiplier: float, steps: int, delta: float) -> float:
        event = PoissonSampled(rate, Gaussian(noise_multiplier)) * steps
        return accountant_named(accountant).spent(event, delta, Relation.ADD_REMOVE).epsilon

    return epsilon


def _theorem1(gamma: float, **of: Any) -> float:
    return Theorem1(**of).epsilon_by_stream(gamma)


FORMULAS: Mapping[str, Callable[..., float]] = {
    "moments": _steps("moments"),
    "strong-published": _steps("strong-published"),
    "theorem-1": _theorem1,
}


def computed(table: PaperTable) -> list[Measurement]:
    """The lines of a table of formulas."""
    found = [(line, FORMULAS[line.method](**line.settings)) for line in table.cases]
    return [Measurement(table.name, line.key, None, table.delta, {"epsilon": epsilon}) for line, epsilon in found]
