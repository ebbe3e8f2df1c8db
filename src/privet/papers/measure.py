"""Measure the lines of a paper's tables: by accuracy, by students of synthetic data, by a shadow attack, or by a formula.

Also draws a table's figures: a picture recovered from its features, and ROC curves.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from privet.attacks import AttackResult, convolved, draw_reversal, quarters, reverse
from privet.attacks.pictures import picture
from privet.data import Dataset, Progress, Split, compute_features, set_aside
from privet.errors import InputError
from privet.io.registry import load_plugin
from privet.methods import Context, Method, Task, TrainedModel, method_for, method_named
from privet.methods.dpsgd import RecipeMethod, accuracy
from privet.methods.pate import Pate, label_all, usual_teachers
from privet.methods.perturbation import ResidualPerturbation
from privet.methods.residual_perturbation import UNIT, train, train_by_dpsgd
from privet.methods.synthetic import Synthetic
from privet.methods.voting import Voting
from privet.models import resnet, scattering_linear
from privet.papers.results import Measurement, keep, read_kept
from privet.papers.table import NONE, Line, PaperTable, QuartersProtocol
from privet.privacy import (
    Budget,
    Gaussian,
    Ledger,
    PoissonSampled,
    PublicRecords,
    Relation,
    Spent,
    accountant_named,
)
from privet.privacy.residual import Theorem1
from privet.randomness import Randomness
from privet.runs.preview import Cost, cost_of
from privet.runs.students import train_student
from privet.training.folder import RunFolder
from privet.training.logs import OnStep
from privet.training.releases import Kept

_POINTS = 60
"""How many points of a curve are kept."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A line with one seed, where to report progress, and where its training is saved until it is measured.

    A trial that was stopped goes on from `folder`: a seeded training to the same bits.
    """

    table: PaperTable
    line: Line
    delta: float
    seed: int
    dataset: Dataset
    on_step: OnStep | None = None
    progress: Progress | None = None
    folder: Path | None = None

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

    @contextmanager
    def context(self, method: Method) -> Iterator[Context]:
        with self.saved("run", method.relation, method.unit(self.task)) as folder:
            ledger = (
                folder.ledger if folder is not None else Ledger(relation=method.relation, unit=method.unit(self.task))
            )
            context = Context(ledger, folder, self.on_step, self.progress)
            context.begin(method, self.task)
            yield context

    @contextmanager
    def saved(self, name: str, relation: Relation, unit: str = "record") -> Iterator[RunFolder | None]:
        """Where a training of this trial is saved; None without a folder."""
        if self.folder is None:
            yield None
            return
        with closing(RunFolder(self.folder / name, resume=True, relation=relation, unit=unit)) as folder:
            yield folder

    def found(self, quantities: Mapping[str, float], spent: Spent | None, **more: Any) -> Measurement:
        """The measurement of this trial; `spent` is None for a release without protection."""
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
    """Measure a trial, or read its result from `folder` if it was measured before with the same settings and records."""
    path, key = measured_file(trial, folder), fingerprint(trial)
    if (kept := read_kept(path, key)) is not None:
        remove_saved(folder, path.stem)  # it may have been killed before it had cleaned up
        return replace(kept, command=command)
    place = folder / f".{path.stem}-{key[:16]}"
    started = time.process_time()
    made = MEASURES[trial.table.protocol](replace(trial, folder=place))
    made = replace(made, seconds=round(time.process_time() - started, 1), key=key, command=command)
    keep(path, made)
    remove_saved(folder, path.stem)
    return made


def measure_there(
    of: tuple[PaperTable, Line, float, int], source: str, plugins: Sequence[str], folder: Path, command: str
) -> Measurement:
    """Measure a trial of a table, a line, a delta and a seed in a worker of a farm, which loads plug-ins and records itself."""
    for plugin in plugins:
        load_plugin(plugin)
    return measure(Trial(*of, of[0].data.load(source)), folder, command)


def measured_file(trial: Trial, folder: Path) -> Path:
    """Where the figures of a trial are kept."""
    name = re.sub(r"[^a-z0-9.]+", "-", trial.line.label.lower()).strip("-")
    return folder / f"{name}-seed-{trial.seed}.json"


def try_out(trial: Trial, progress: Progress) -> None:
    """Measure a trial on made-up records, for a dry run: nothing is kept."""

    def on_step(step: dict[str, Any]) -> None:
        progress(str(step.get("what", "Training")), int(step["step"]), step["steps"])

    MEASURES[trial.table.protocol](replace(trial, on_step=on_step, progress=progress))


def cost_of_trial(trial: Trial) -> Cost:
    """What a trial costs, as far as that is known before it runs."""
    if trial.table.quarters is None and trial.line.method != NONE and not trial.votes:
        return cost_of(trial.method(), trial.task, trial.line.label)
    stated = f"epsilon = {trial.line.epsilon:g}" if trial.line.epsilon is not None else "what its settings give"
    said = f"{stated} at delta = {trial.delta:g}; the ledger of the run says which, and what is proved of it"
    return Cost(trial.line.label, said, {"epsilon": trial.line.epsilon, "delta": trial.delta})


def remove_saved(folder: Path, name: str) -> None:
    """Delete what a trial had saved when it was stopped, also with other settings: it is measured now."""
    for place in folder.glob(f".{name}-{'[0-9a-f]' * 16}"):
        shutil.rmtree(place, ignore_errors=True)


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
"""Fields of a method that do not change the results; the content of a recipe counts, not its name."""

# --- the accuracy of a model ------------------------------------------------------------------------------------------


def _accuracy(trial: Trial) -> Measurement:
    method = trial.method()
    with trial.context(method) as context:
        outcome = method.fit(trial.task, context)
        spent = context.ledger.spent(trial.delta)
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
        spent,
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
        with trial.context(method) as context:
            made = method.fit(trial.task, context).release
            spent = context.ledger.spent(trial.delta)
        assert isinstance(made, Synthetic)
        inputs, targets = made.inputs, made.targets
    # As many steps on real records as on synthetic examples.
    epochs = max(1, round(asked.epochs * asked.size / len(inputs)))
    classes, accuracies, kept = len(dataset.classes), {}, Kept(trial.folder)

    def learned(name: str) -> float:
        student = train_student(name, inputs, targets, classes, epochs=epochs, seed=trial.seed, on_step=trial.on_step)
        return student.accuracy(test)

    for number, name in enumerate(asked.names):
        accuracies[name] = kept.keep(f"student-{number}", partial(learned, name))
    return trial.found(accuracies, spent)


def _voted(trial: Trial) -> tuple[Tensor, Tensor, Split, Spent]:
    """Half of the test records, taken as public, with labels by the votes of PATE's teachers; and the other half.

    Formal guarantees: those of `privet.methods.pate.label_all`. Students see the public records and the labels alone.
    """
    if trial.line.settings:
        raise InputError("PATE has the usual settings in a table of students: leave out its settings.")
    dataset, epsilon = trial.dataset, trial.task.epsilon
    count, classes = len(dataset.test) // 2, len(dataset.classes)
    channels, height, width = dataset.shape
    model = scattering_linear(channels, height, width, classes)
    seen = set_aside(compute_features(dataset, model.features, model.key, progress=trial.progress), count)
    divided = set_aside(dataset, count)
    public = PublicRecords(count, f"{count:,} of the test records of {dataset.name}")
    with trial.context(Pate()) as context:
        ledger = context.ledger
        if all(event != public for event, _ in ledger):  # a trial that goes on has recorded it
            ledger.record(public)
        _, labels = label_all(
            seen.train,
            seen["public"].tensors[0],
            classes,
            budget=Budget(epsilon, trial.delta, ledger.relation),
            context=context,
            randomness=Randomness.of(trial.seed),
            voting=Voting(usual_teachers(len(dataset.train), epsilon)),
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
        model, spent = _trained(trial, protocol, Split(*records), own, f"model-{len(statements) + 1}")
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


def _trained(trial: Trial, protocol: QuartersProtocol, records: Split, seed: int, name: str) -> tuple[nn.Module, Spent]:
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
        with trial.saved(name, Relation.REPLACE_ONE, UNIT) as folder:
            done = train(
                model, records, perturbation, schedule, delta=trial.delta, seed=seed, on_step=on_step, folder=folder
            )
            return model, done.ledger.spent(trial.delta)
    batch = max(1, round(private.sampling_rate * len(records)))
    optimizer = torch.optim.SGD(model.parameters(), lr=private.learning_rate, momentum=schedule.momentum)
    milestones = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: schedule.rate(step * batch // len(records)) / schedule.learning_rate
    )
    with trial.saved(name, Relation.ADD_REMOVE) as folder:
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
            folder=folder,
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


PICTURE = "reversal.jpg"
CURVES = "roc.svg"


def draw_figure(table: PaperTable, folder: Path, image: Path | None = None) -> tuple[Path, list[Measurement]]:
    """Recover a picture from its features, without noise and with it; gives the figure's file and the error of each line."""
    original, field, generator = picture(image), convolved(), torch.Generator().manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for line in table.cases:
        gamma, multiplicative = float(line.settings.get("gamma", 0)), line.settings.get("strategy") == "II"
        recovered = reverse(original, field, gamma=gamma, multiplicative=multiplicative, generator=generator)
        found[line.key] = recovered
    made = [Measurement(table.name, name, None, table.delta, {"error": each.rmse}) for name, each in found.items()]
    return draw_reversal(folder / PICTURE, found), made


def draw_rocs(path: Path, table: PaperTable, found: Sequence[Measurement]) -> Path:
    """One curve for each measurement of a table, and the diagonal of an attack that guesses."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    axes = figure.add_subplot()
    colors, lines = colormaps["viridis"], {line.key: line for line in table.cases}
    for number, one in enumerate(found):
        attack, line = one.attack, lines[one.line]
        assert attack is not None
        axes.plot(
            attack.false_positive_rate,
            attack.true_positive_rate,
            color=colors(number / max(1, len(found) - 1)),
            linestyle="--" if line.method == "residual-dpsgd" else "-" if line.settings.get("skips", True) else ":",
            label=f"{line.title}: {attack.auc:.3f}",
        )
    axes.plot([0, 1], [0, 1], color="#a0a0a0", linewidth=1, label="guessing: 0.5")
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("true positive rate")
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    axes.grid(visible=True, alpha=0.2)
    axes.legend(title="area under the curve", loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize=8, frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path
