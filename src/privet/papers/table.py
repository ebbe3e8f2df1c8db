"""The schema of a paper's table: its lines, how they are measured, and the published figures; and the list of papers.

A table is a YAML file in the folder `tables`, or a file of the user's own. A recipe can be run as a table too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from privet import data
from privet.data import Dataset, Progress
from privet.errors import InputError
from privet.io import MisfitError, build, from_yaml, read_text, user_path
from privet.io.registry import PREFIX, no_such
from privet.methods import DataSpec, method_named, recipe
from privet.methods.recipe import Origin, check_origins
from privet.methods.residual_perturbation import SgdSchedule

NONE = "none"
"""In place of a method: trained on the real data, without privacy."""
PROTOCOLS = ("accuracy", "students", "quarters", "reversal", "formulas")
_ONLY_CLAIMED = ("residual", "strong-published", "theorem-1")
"""Methods and formulas whose titles do not say that their epsilon is only claimed."""


@dataclass(frozen=True)
class Published:
    """The figures that a publication states for a line.

    Attributes:
        figures: by quantity; accuracies in percent.
        by: whose figures these are, if they are not the paper's own.
        epsilon: the budget they were published for; without it, that of the line.
        differs: why ours are different.
    """

    figures: dict[str, float]
    by: str = ""
    epsilon: float | None = None
    differs: str = ""


@dataclass(frozen=True)
class Line:
    """A line of a table; in a file, several that differ in epsilon only can be one.

    Attributes:
        method: a key of `privet.methods`; `none`; or, for formulas, the name of a formula.
        key: the line's name in files of results; without it, the method, or the title if methods do not tell lines apart.
        title: the line's name on the page; without it, the method's.
        settings: of the method, as `--set` takes them; for formulas, the arguments.
        epsilons: the budgets; without them, those of the table, and none for a line that spends no budget.
        seeds: run at most this many seeds; 0 for no limit.
        published: figures to compare ours with.
        number: the place among the lines of the table, from 1; 0 for a method that the table does not have.
    """

    method: str = NONE
    key: str = ""
    title: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    epsilons: tuple[float, ...] = ()
    seeds: int = 0
    published: tuple[Published, ...] = ()
    number: int = 0

    @property
    def epsilon(self) -> float | None:
        return self.epsilons[0] if self.epsilons else None

    @property
    def label(self) -> str:
        return self.key if self.epsilon is None else f"{self.key}, epsilon {self.epsilon:g}"

    @property
    def claimed(self) -> bool:
        """Whether the epsilon is only claimed."""
        return self.method in _ONLY_CLAIMED or "only claimed" in self.title

    def at(self, epsilon: float) -> Line:
        """The line at one budget, with the figures published for it, or for the nearest one within a tenth of it."""
        near = [each for each in self.published if abs((each.epsilon or epsilon) / epsilon - 1) <= 0.1]
        near.sort(key=lambda each: abs((each.epsilon or epsilon) - epsilon))
        return replace(self, epsilons=(epsilon,), published=tuple(near[:1]))


@dataclass(frozen=True)
class PaperData:
    """The records of a table.

    Attributes:
        source: as `privet.data.load` takes it; empty if the user must bring the records.
        records: for `quarters`, draw this many training records at random; 0 for all.
        shrink: for `quarters`, average images over squares of this many pixels a side.
        training_classes, test_classes: how many records of each class make up the two parts, if the data has no test part;
            with fewer records, in the same proportions.
    """

    source: str = ""
    records: int = 0
    shrink: int = 1
    training_classes: tuple[int, ...] = ()
    test_classes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.training_classes) != len(self.test_classes):
            raise MisfitError("'training_classes' and 'test_classes' need a number for each class")
        if self.source.startswith(PREFIX):  # a file never makes Privet import code
            raise MisfitError(f"'source' names code to import, {self.source}: give these records with --data")

    def load(self, source: str = "", progress: Progress | None = None) -> Dataset:
        """Training and test records; `source` replaces the table's own."""
        source = source or self.source
        if not self.training_classes:
            return DataSpec(source).load(progress)
        found = data.load(source, progress=progress)
        return found if "test" in found.splits else self._by_classes(found)

    def _by_classes(self, dataset: Dataset) -> Dataset:
        """Draw the stated number of records of each class; always the same ones for the same data."""
        sizes = list(zip(self.training_classes, self.test_classes, strict=True))
        if len(sizes) != len(dataset.classes):
            raise InputError(f"The table is for {len(sizes)} classes, and {dataset.name} has {len(dataset.classes)}.")
        generator, whole = torch.Generator().manual_seed(0), dataset["train"]
        owned = [(whole.labels == label).nonzero()[:, 0] for label in range(len(sizes))]
        scale = min(1.0, *(len(rows) / (a + b) for rows, (a, b) in zip(owned, sizes, strict=True)))
        chosen: dict[str, list[torch.Tensor]] = {"train": [], "test": []}
        for rows, (a, b) in zip(owned, sizes, strict=True):
            mixed, first = rows[torch.randperm(len(rows), generator=generator)], int(a * scale)
            chosen["train"].append(mixed[:first])
            chosen["test"].append(mixed[first : first + int(b * scale)])
        parts = {name: whole.select(torch.cat(rows)) for name, rows in chosen.items()}
        return Dataset(dataset.name, dataset.classes, parts)


@dataclass(frozen=True)
class StudentsProtocol:
    """Students (`privet.runs.students`) learn `size` synthetic examples in some epochs, and are tested on real records."""

    names: tuple[str, ...]
    size: int
    epochs: int


@dataclass(frozen=True)
class QuartersDPSGD:
    """The lines of a `quarters` table that DP-SGD trains, with group norm; what is not here is in the schedule."""

    noise_multiplier: float
    clip: float
    learning_rate: float
    sampling_rate: float
    groups: int = 8


@dataclass(frozen=True)
class QuartersProtocol:
    """A target and a shadow, residual networks of this depth, are trained alike on a quarter of the records each."""

    depth: int
    schedule: SgdSchedule
    dpsgd: QuartersDPSGD

    def title(self, line: Line) -> str:
        """The network of a line in words; raises if the line states what this protocol does not use."""
        settings: dict[str, Any] = {"gamma": 0, "ensemble": 1, "skips": True, "strategy": "I"} | line.settings
        if line.method not in (NONE, "residual", "residual-dpsgd") or line.epsilons or len(settings) > 4:
            raise MisfitError(
                "'lines' of the protocol 'quarters' have the method residual, residual-dpsgd or none, no epsilon, and the "
                "settings gamma, strategy, ensemble and skips"
            )
        gamma, members = settings["gamma"], settings["ensemble"]
        network = f"{f'En{members} ' if gamma or members > 1 else ''}ResNet{self.depth}"
        parts = [network if settings["skips"] else f"{network} without skips"]
        if gamma:
            parts.append(f"gamma {gamma:g}" + (" (II)" if settings["strategy"] == "II" else ""))
        return ("DP-SGD, " if line.method == "residual-dpsgd" else "") + ", ".join(parts)


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper.

    Attributes:
        name: as `privet reproduce` takes it.
        title: what the table shows.
        protocol: how a line is measured. `accuracy`: a model of the method on the test records. `students`: classifiers that
            learn the method's synthetic data. `quarters`: a network and a shadow model that attacks it. `reversal`: the
            figure of features turned back into a picture. `formulas`: numbers that need no training.
        lines: the lines as they are written; `cases` has one for each budget.
        why: what to know about the table.
        differs: in what the whole table differs from the paper.
        beside: the table is not the paper's: it shows another way on the same records.
        seeds: how many seeds are run.
        delta: of the statements.
        settings, epsilons: those of every line that does not state its own.
        students, quarters: the settings of the protocol.
        origins: where the settings came from, if no recipe says it.
    """

    name: str
    title: str
    protocol: str
    lines: tuple[Line, ...]
    data: PaperData = field(default_factory=PaperData)
    why: str = ""
    differs: str = ""
    beside: bool = False
    seeds: int = 3
    delta: float = 1e-5
    settings: dict[str, Any] = field(default_factory=dict)
    epsilons: tuple[float, ...] = ()
    students: StudentsProtocol | None = None
    quarters: QuartersProtocol | None = None
    origins: dict[str, Origin] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise MisfitError(f"'protocol' is {self.protocol!r} and should be one of {', '.join(PROTOCOLS)}")
        for name in ("students", "quarters"):
            if (self.protocol == name) != (getattr(self, name) is not None):
                raise MisfitError(f"'{name}' belongs to the protocol '{name}', and there it is needed")
        if self.protocol != "quarters" and self.data != PaperData(self.data.source):
            raise MisfitError("'data' has parts that only the protocol 'quarters' uses")
        if self.protocol == "accuracy" and any(line.method == NONE for line in self.lines):
            raise MisfitError("'lines' of the protocol 'accuracy' need a method")
        if not self.cases or len({line.label for line in self.cases}) < len(self.cases):
            raise MisfitError("'lines' needs at least one line, and each its own 'key'")
        if any(str(line.settings.get("model", "")).startswith(PREFIX) for line in self.cases):
            raise MisfitError(
                "'settings' names code to import as 'model': register it in a plug-in, and load that by --plugin"
            )
        stated = {line.method for line in self.lines} - {NONE} if self.students is not None else set[str]()
        if self.quarters is not None:
            stated = {"lines", *(each.name for each in dataclasses.fields(self.quarters))}
        also = [each.name for each in (*dataclasses.fields(self), *dataclasses.fields(self.data))]
        check_origins(self.origins, stated, [*also, *(line.key for line in self.cases)])

    @cached_property
    def cases(self) -> tuple[Line, ...]:
        """The lines, one for each budget, with everything that they leave to the table or the method."""
        numbered = (replace(line, number=number) for number, line in enumerate(self.lines, 1))
        return tuple(each for line in numbered for each in self._resolved(line))

    def _resolved(self, line: Line, epsilons: Sequence[float] = ()) -> list[Line]:
        if not (title := line.title):
            plain = (
                "Trained on the real data, without privacy" if line.method == NONE else method_named(line.method).title
            )
            title = self.quarters.title(line) if self.quarters is not None else plain
        key = line.key or (line.method if self.protocol in ("accuracy", "students") else title)
        line = replace(line, key=key, title=title, settings=self.settings | line.settings)
        budgets = epsilons or line.epsilons or (self.epsilons if line.method != NONE else ())
        return [line.at(epsilon) for epsilon in budgets] or [line]

    @property
    def quantities(self) -> tuple[str, ...]:
        """What is measured, in the order of the columns."""
        if self.students is not None:
            return self.students.names
        by = {"quarters": ("accuracy", "auc", "training"), "reversal": ("error",), "formulas": ("epsilon",)}
        return by.get(self.protocol, ("accuracy", "last"))

    def some(
        self, numbers: Sequence[int] = (), epsilons: Sequence[float] = (), methods: Sequence[str] = ()
    ) -> list[Line]:
        """The cases with these numbers, budgets and methods; for `accuracy`, also those that the table does not have."""
        for number in numbers:
            if not 1 <= number <= len(self.lines):
                raise InputError(f"{self.name} has the lines 1 to {len(self.lines)}, and not {number}.")
        found = list(self.cases)
        if self.protocol == "accuracy":
            keys = list(dict.fromkeys(method_named(key).key for key in methods))
            lines = [line for line in self.lines if not keys or line.method in keys]
            lines += [Line(key) for key in keys if key not in {line.method for line in lines}]
            found = [each for line in lines for each in self._resolved(line, epsilons)]
        for epsilon in epsilons:
            if epsilon not in {line.epsilon for line in found}:
                raise InputError(f"{self.name} has no line at epsilon {epsilon:g}: give its number with --line.")
        chosen = [line for line in found if not numbers or line.number in numbers]
        return [line for line in chosen if not epsilons or line.epsilon in epsilons]

    def command(self, line: Line, seeds: int | None = None) -> str:
        """The command that measures a line."""
        words = f"privet reproduce {self.name}" + (f" --seeds {seeds}" if seeds else "")
        if self.protocol in ("students", "quarters"):
            return f"{words} --line {line.number}"
        words += f" --epsilon {line.epsilon:g}" if line.epsilon is not None else ""
        return words + (f" --method {line.method}" if self.protocol == "accuracy" and len(self.lines) > 1 else "")


@dataclass(frozen=True)
class Absent:
    """What cannot be run here, with the paper's figure and the reason."""

    what: str
    published: str
    why: str


@dataclass(frozen=True)
class Paper:
    """A publication, with the names of its tables."""

    title: str
    by: str
    tables: tuple[str, ...] = ()
    absent: tuple[Absent, ...] = ()


@dataclass(frozen=True)
class _Papers:
    papers: tuple[Paper, ...]


_FOLDER = resources.files("privet.papers")


@cache
def papers() -> tuple[Paper, ...]:
    """All papers, in the order of the page."""
    return build(_Papers, from_yaml(_FOLDER.joinpath("papers.yaml").read_text(encoding="utf-8"))).papers


@cache
def names() -> tuple[str, ...]:
    """What can be run by its name: the tables, and the recipes without a table."""
    files = (Path(file.name) for file in _FOLDER.joinpath("tables").iterdir())
    tables = sorted(file.stem for file in files if file.suffix == ".yaml")
    return (*tables, *(name for name in recipe.names() if name not in tables))


def load(name: str) -> PaperTable:
    """A table by its name or from a .yaml file; a recipe becomes a table of DP-SGD at its budgets."""
    path, own = user_path(name), _FOLDER.joinpath("tables", f"{name}.yaml")
    if name not in names() and path.suffix not in (".yaml", ".yml"):
        raise InputError(f"{no_such('table', name, names())}; or give the path of a .yaml file.")
    try:
        if name in recipe.names() and not own.is_file():
            return _of_recipe(name)
        plain = from_yaml(own.read_text(encoding="utf-8") if name in names() else read_text(path))
        if isinstance(plain, dict) and "budgets" in plain:
            return _of_recipe(name)
        found = build(PaperTable, plain)
        if found.why or "recipe" not in found.settings:
            return found
        return replace(found, why=recipe.load(str(found.settings["recipe"])).why)
    except MisfitError as error:
        raise InputError(f"The table {name} does not fit: {error}.") from None


def _of_recipe(name: str) -> PaperTable:
    found = recipe.load(name)
    return PaperTable(
        found.name,
        found.title,
        "accuracy",
        (Line("dpsgd"),),
        PaperData(found.data),
        found.why,
        settings={"recipe": name},
        epsilons=found.epsilons,
    )
