"""A comparison in the protocol of the residual-perturbation paper: the same network trained in several ways, each attacked.

The training records are put into quarters; a shadow and a target are trained in the same way on a quarter each; the attack learns
from the shadow's answers, and is asked about the target's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import torch
import yaml  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional as F

from privet.attacks.shadow import quarters
from privet.data import Dataset, Split
from privet.errors import InputError
from privet.io import MisfitError, build, write_whole
from privet.methods.dpsgd import accuracy
from privet.methods.perturbation import ResidualPerturbation
from privet.methods.residual_perturbation import Schedule, train, train_by_dpsgd
from privet.models import resnet
from privet.privacy import Spent
from privet.recipes.recipe import Origin, check_origins
from privet.report.record import AttackResult
from privet.training.standing import OnStep

FOLDER = "comparisons"


@dataclass(frozen=True)
class Figures:
    """What a publication states for a line of the table, in percent and as an area, and why ours differs, where it does."""

    accuracy: float
    auc: float | None = None
    differs: str = ""


@dataclass(frozen=True)
class Line:
    """One way of training: a line of the table.

    Attributes:
        gamma, strategy: of the noise in the residual stream; gamma 0 means none.
        members: of the ensemble.
        skips: whether the blocks have skip connections.
        dpsgd: by DP-SGD on the network with group norm, and then with gamma as a regulariser.
        published: figures to stand beside ours.
    """

    gamma: float = 0.0
    strategy: str = "I"
    members: int = 1
    skips: bool = True
    dpsgd: bool = False
    published: Figures | None = None

    def title(self, depth: int) -> str:
        network = f"{f'En{self.members} ' if self.gamma or self.members > 1 else ''}ResNet{depth}"
        parts = [network if self.skips else f"{network} without skips"]
        if self.gamma:
            parts.append(f"gamma {self.gamma:g}" + (" (II)" if self.strategy == "II" else ""))
        return ("DP-SGD, " if self.dpsgd else "") + ", ".join(parts)


@dataclass(frozen=True)
class PrivateSettings:
    """Of the lines that are trained by DP-SGD; what is not here is that of the schedule.

    Attributes:
        sampling_rate: the probability with which a record joins a lot.
        groups: of group norm.
    """

    noise_multiplier: float
    clip: float
    learning_rate: float
    sampling_rate: float
    groups: int = 8


@dataclass(frozen=True)
class Comparison:
    """One file of the folder of comparisons.

    Attributes:
        data: the data set, by name; empty where the user must bring it.
        records: how many training records are drawn at random for the quarters; 0 means all.
        shrink: images are averaged over squares of so many pixels a side.
        training_classes, test_classes: how many records of each class make up the two parts, where the data has no parts of
            its own; with fewer records, in the same proportions.
        depth: of the network.
        schedule: how to train.
        dpsgd: how to train by DP-SGD.
        lines: the table.
        delta: of the statements.
    """

    name: str
    title: str
    why: str
    data: str
    schedule: Schedule
    dpsgd: PrivateSettings
    lines: tuple[Line, ...]
    origins: dict[str, Origin]
    records: int = 0
    shrink: int = 1
    training_classes: tuple[int, ...] = ()
    test_classes: tuple[int, ...] = ()
    depth: int = 8
    delta: float = 1e-5
    differs: str = ""
    """In what the whole differs from the publication that it follows."""

    def __post_init__(self) -> None:
        also = (field.name for field in dataclasses.fields(self))
        check_origins(self.origins, {"depth", "schedule", "dpsgd", "lines"}, also=tuple(also))

    def divided(self, dataset: Dataset) -> Dataset:
        """Training and test records in the comparison's sizes: always the same for the same data."""
        if self.training_classes and "test" not in dataset.splits:
            return _by_classes(dataset, self.training_classes, self.test_classes)
        return dataset


@dataclass(frozen=True)
class Measured:
    """What came out for one line and one seed."""

    line: Line
    title: str
    seed: int
    records: int
    """Of a quarter."""
    training_accuracy: float
    test_accuracy: float
    attack: AttackResult
    statement: str
    seconds: float
    """Of the processor, for training both models."""
    key: str


def measure(
    comparison: Comparison, dataset: Dataset, line: Line, seed: int, folder: Path, on_step: OnStep | None = None
) -> Measured:
    """Train and attack one line, or take from `folder` what was measured before."""
    key = _key(comparison, dataset, line, seed)
    path = folder / f"{key[:16]}.json"
    if path.exists():
        try:
            return build(Measured, json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, MisfitError):
            pass  # torn or of another version: it is computed again
    made = _measure(comparison, dataset, line, seed, key, on_step)
    write_whole(path, (json.dumps(dataclasses.asdict(made)) + "\n").encode(), mode=0o644)
    return made


def _measure(
    comparison: Comparison, dataset: Dataset, line: Line, seed: int, key: str, on_step: OnStep | None
) -> Measured:
    dataset.train.require_records("A comparison of residual networks")
    generator = torch.Generator().manual_seed(seed)
    inputs, labels = _drawn(comparison, dataset.train, generator)
    test = Split(_shrunk(dataset.test.tensors[0], comparison.shrink), dataset.test.labels)
    statements: list[Spent] = []
    title = line.title(comparison.depth)

    def fit(records: tuple[Tensor, Tensor], generator: torch.Generator) -> nn.Module:
        own = int(torch.randint(2**31, (), generator=generator))
        told = None if on_step is None else lambda step: on_step({"what": title, **step})
        model, spent = _trained(comparison, line, Split(*records), len(dataset.classes), own, told)
        statements.append(spent)
        return model

    started = time.process_time()
    found = quarters(fit, inputs, labels, generator)
    seconds = time.process_time() - started
    target = found.target
    assert isinstance(target, nn.Module)
    return Measured(
        line=line,
        title=title,
        seed=seed,
        records=len(found.target_in),
        training_accuracy=accuracy(target, Split(inputs[found.target_in], labels[found.target_in])),
        test_accuracy=accuracy(target, test),
        attack=AttackResult.of("Shadow model, trained like the target", found.roc),
        statement=str(statements[-1]),
        seconds=round(seconds, 1),
        key=key,
    )


def _trained(
    comparison: Comparison, line: Line, records: Split, classes: int, seed: int, on_step: OnStep | None
) -> tuple[nn.Module, Spent]:
    schedule, private = comparison.schedule.for_members(line.members), comparison.dpsgd
    groups = private.groups if line.dpsgd else 0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = resnet(records[0][0].shape[0], classes, comparison.depth, line.members, line.skips, groups)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    perturbation = ResidualPerturbation(line.gamma, line.strategy)
    if not line.dpsgd:
        done = train(model, records, perturbation, schedule, delta=comparison.delta, seed=seed, on_step=on_step)
        return model, done.ledger.spent(comparison.delta)
    lot = max(1, round(private.sampling_rate * len(records)))
    optimizer = torch.optim.SGD(model.parameters(), lr=private.learning_rate, momentum=schedule.momentum)
    milestones = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: schedule.rate(step * lot // len(records)) / schedule.learning_rate
    )
    trained = train_by_dpsgd(
        model,
        optimizer,
        records,
        perturbation=perturbation,
        batch_size=lot,
        epochs=schedule.epochs,
        noise_multiplier=private.noise_multiplier,
        max_grad_norm=private.clip,
        loss_reduction="mean",
        delta=comparison.delta,
        scheduler=milestones,
        seed=seed,
        on_step=on_step,
    )
    model.eval()
    return model, trained.ledger.spent(comparison.delta)


def _drawn(comparison: Comparison, records: Split, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    count = min(comparison.records or len(records), len(records))
    inputs, labels = records.batch(torch.randperm(len(records), generator=generator)[:count])
    return _shrunk(inputs, comparison.shrink), labels


def _shrunk(images: Tensor, side: int) -> Tensor:
    if images.ndim != 4:
        raise InputError("A residual network is for images, and these records are not.")
    return F.avg_pool2d(images, side) if side > 1 else images


def _by_classes(dataset: Dataset, training: tuple[int, ...], test: tuple[int, ...]) -> Dataset:
    """So many records of each class for training, so many for testing; the rest is left out."""
    if len(training) != len(dataset.classes) or len(test) != len(dataset.classes):
        raise InputError(
            f"The comparison is for {len(training)} classes, and {dataset.name} has {len(dataset.classes)}."
        )
    generator = torch.Generator().manual_seed(0)
    whole = dataset["train"]
    chosen: tuple[list[Tensor], list[Tensor]] = ([], [])
    owned = [int((whole.labels == label).sum()) for label in range(len(training))]
    scale = min(1.0, *(have / (a + b) for have, a, b in zip(owned, training, test, strict=True)))
    for label, (a, b) in enumerate(zip(training, test, strict=True)):
        rows = (whole.labels == label).nonzero()[:, 0]
        rows = rows[torch.randperm(len(rows), generator=generator)]
        first, second = int(a * scale), int(b * scale)
        chosen[0].append(rows[:first])
        chosen[1].append(rows[first : first + second])
    parts = {name: whole.select(torch.cat(rows)) for name, rows in zip(("train", "test"), chosen, strict=True)}
    return Dataset(dataset.name, dataset.classes, parts)


def _key(comparison: Comparison, dataset: Dataset, line: Line, seed: int) -> str:
    told = dataclasses.asdict(comparison)
    for name in ("title", "why", "differs", "origins", "lines", *(() if line.dpsgd else ("dpsgd",))):
        told.pop(name)
    told |= {"line": dataclasses.asdict(dataclasses.replace(line, published=None)), "seed": seed}
    told["data"] = dataset.fingerprint
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


@cache
def names() -> tuple[str, ...]:
    """The comparisons that come with Privet."""
    files = resources.files("privet.recipes").joinpath(FOLDER).iterdir()
    return tuple(sorted(Path(file.name).stem for file in files if file.name.endswith(".yaml")))


def load(name: str) -> Comparison:
    """A comparison by its name, or from a file of one's own."""
    if name in names():
        text = resources.files("privet.recipes").joinpath(FOLDER, f"{name}.yaml").read_text(encoding="utf-8")
    else:
        try:
            text = Path(name).read_text(encoding="utf-8")
        except OSError as error:
            raise InputError(f"{name}: the comparison cannot be read ({error.strerror}).") from None
    try:
        return build(Comparison, yaml.safe_load(text))
    except (yaml.YAMLError, MisfitError) as error:
        raise InputError(f"The comparison {name} does not fit: {' '.join(str(error).split())}.") from None


def is_comparison(name: str) -> bool:
    """Whether a name, or a file, is a comparison and not a recipe."""
    if name in names():
        return True
    try:
        return Path(name).suffix in (".yaml", ".yml") and "\nlines:" in Path(name).read_text(encoding="utf-8")
    except OSError:
        return False
