"""One kind of table for terminal, documentation and page: our figures beside the published ones, and why they differ.

`Reproduction` runs the lines of tables: a kept figure is not measured again, and when all tables are run, one failure does not
stop the others.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import ChoiceLoader, PackageLoader

from privet.data import Dataset, Progress
from privet.errors import PrivetError
from privet.io import write_whole
from privet.io.farm import Farm
from privet.papers.measure import PICTURE, Trial, computed, draw_figure, measure, measure_there
from privet.papers.results import Measurement, means, merge, read
from privet.papers.table import Line, Paper, PaperTable, load, papers
from privet.report.page import environment
from privet.training.folder import alone_in
from privet.training.logs import OnStep

FILE = "reproduced.html"
NOT_RUN, FAILED = "not run yet", "failed"
ABOVE = "as said above the table"
Failures = Mapping[tuple[str, str], str]
"""By table and label of the line: why there is no result."""

_NAMES = {
    "accuracy": "accuracy %",
    "last": "last parameters %",
    "training": "training records %",
    "auc": "AUC of the attack",
    "error": "error of the recovered picture",
    "epsilon": "epsilon",
}
_NOT_SHARES = ("auc", "error", "epsilon")


@dataclass(frozen=True)
class Beside:
    """Our figure beside the published one; accuracies in percent.

    Attributes:
        ours, std: the mean over seeds and its standard deviation; None where there is none.
        interval: a confidence interval for a single seed.
        published, by: the published figure, and whose it is if it is not the paper's.
        differs: the reason for a difference that the table states.
    """

    quantity: str
    ours: float | None = None
    std: float | None = None
    interval: tuple[float, float] | None = None
    published: float | None = None
    by: str = ""
    differs: str = ""

    @property
    def name(self) -> str:
        return _NAMES.get(self.quantity, f"student {self.quantity} %")

    @property
    def difference(self) -> float | None:
        return None if self.published is None or self.ours is None else self.ours - self.published

    @property
    def why(self) -> str:
        """Why our figure differs from the published one; empty if there is nothing to compare."""
        if self.difference is None or self.published is None:
            return ""
        if abs(self.difference) <= _unit(self.published) / 2 + 1e-9:
            return "equal, to the digits that are published"
        if self.std is not None and abs(self.difference) <= 2 * self.std:
            return "within two deviations over seeds"
        return self.differs or "no reason is known"

    def cells(self) -> tuple[str, str, str]:
        """Ours, the published figure and the difference, as text."""
        digits = 3 if self.quantity == "auc" else None if self.quantity in _NOT_SHARES else 2
        ours, published, difference = "", "", ""
        if self.ours is not None:
            ours = _number(self.ours, digits)
            ours += f" ± {_number(self.std, digits)}" if self.std is not None else ""
            ours += " ({} to {})".format(*(_number(end, digits) for end in self.interval)) if self.interval else ""
        if self.published is not None:
            published = f"{self.published:,.0f}" if self.published >= 1000 else f"{self.published:g}"
            published += f" ({self.by})" if self.by else ""
        if self.difference is not None:
            by = f"{self.difference:+.3g}" if digits is None else f"{round(self.difference, digits) + 0.0:+.{digits}f}"
            difference = by if abs(self.difference) < 1000 else f"{self.difference:+,.0f}"
        return ours, published, difference


@dataclass(frozen=True)
class TableRow:
    """A line as it stands in a table.

    Attributes:
        figures: one for each quantity.
        command: what makes the figures.
        state, reason: empty, or why there is no figure of ours.
        claimed: whether the epsilon is only claimed.
        statement: what the ledger says.
    """

    what: str
    epsilon: float | None
    figures: tuple[Beside, ...]
    seeds: int = 0
    seconds: float = 0.0
    command: str = ""
    state: str = ""
    reason: str = ""
    claimed: bool = False
    statement: str = ""

    @property
    def why(self) -> str:
        """Why our figures differ from the published ones, or why there are none."""
        if self.state:
            return f"{self.state}: {self.reason}" if self.reason else self.state
        reasons = {each.name.removesuffix(" %"): each.why for each in self.figures if each.why}
        if len(set(reasons.values())) <= 1:
            return next(iter(reasons.values()), "")
        return "; ".join(f"{name}: {why}" for name, why in reasons.items())

    @property
    def label(self) -> str:
        return self.what if self.epsilon is None else f"{self.what}, epsilon {self.epsilon:g}"

    def log(self, seed: int) -> str:
        """The result of one run in a line."""
        figures = ", ".join(f"{each.name} {each.cells()[0]}" for each in self.figures if each.ours is not None)
        return f"{self.label}, seed {seed}: {figures}, {self.seconds:.0f} s of CPU"


@dataclass(frozen=True)
class Section:
    """A table with its rows, and with files of pictures, each with a caption."""

    table: PaperTable
    delta: float
    rows: tuple[TableRow, ...]
    pictures: tuple[tuple[str, str], ...] = ()

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """The heads of the columns and the text of each cell; empty columns are left out."""
        marks = [" (claimed, not proved)" if row.claimed and "claimed" not in row.what else "" for row in self.rows]
        columns = [("what", [row.what + mark for row, mark in zip(self.rows, marks, strict=True)])]
        columns += [
            (f"epsilon at delta {self.delta:g}", [f"{row.epsilon:g}" if row.epsilon else "" for row in self.rows])
        ]
        for place, figure in enumerate(self.rows[0].figures):
            texts = zip(*(row.figures[place].cells() for row in self.rows), strict=True)
            columns += zip((figure.name, "published", "difference"), map(list, texts), strict=True)
        columns += [("seeds", [str(row.seeds or "") for row in self.rows])]
        columns += [("CPU seconds", [f"{row.seconds:.0f}" if row.seconds else "" for row in self.rows])]
        columns += [("why they differ", [row.why for row in self.rows])]
        filled = [column for column in columns if any(column[1])]
        return [head for head, _ in filled], [list(row) for row in zip(*(cells for _, cells in filled), strict=True)]

    @property
    def commands(self) -> list[str]:
        return list(dict.fromkeys(row.command for row in self.rows if row.command))

    def markdown(self) -> str:
        """The table alone."""
        heads, rows = self.cells()
        lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
        return "\n".join([lines[0], f"|{'---|' * len(heads)}", *lines[1:]])


@dataclass(frozen=True)
class Chapter:
    """A paper with its tables."""

    paper: Paper
    sections: tuple[Section, ...]


def section(
    table: PaperTable,
    found: Sequence[Measurement],
    failures: Failures | None = None,
    lines: Sequence[Line] | None = None,
    pictures: tuple[tuple[str, str], ...] = (),
) -> Section:
    """A table with its results; a line without a result says which command makes it."""
    by = {(one.line, one.epsilon): one for one in means(found) if one.table == table.name}
    delta = next((one.delta for one in by.values()), table.delta)
    rows = []
    for line in table.cases if lines is None else lines:
        one, reason = by.get((line.key, line.epsilon)), (failures or {}).get((table.name, line.label), "")
        runs = table.protocol not in ("reversal", "formulas")
        rows.append(
            TableRow(
                line.title,
                line.epsilon,
                tuple(_beside(table, line, quantity, one) for quantity in table.quantities),
                one.seeds if one and runs else 0,
                one.seconds if one else 0.0,
                (one.command if one else "") or table.command(line),
                # An older result stands even if a newer run failed.
                "" if one else FAILED if reason else NOT_RUN,
                "" if one else reason,
                line.claimed,
                one.statement if one else "",
            )
        )
    return Section(table, delta, tuple(rows), pictures)


def _beside(table: PaperTable, line: Line, quantity: str, found: Measurement | None) -> Beside:
    scale = 1.0 if quantity in _NOT_SHARES else 100.0
    ours, std, interval = None, None, None
    if found is not None:
        ours, std = (scale * each[quantity] if quantity in each else None for each in (found.quantities, found.spread))
        if quantity == "auc" and found.attack is not None and found.seeds == 1:
            interval = (found.attack.low, found.attack.high)
    published = line.published[0] if line.published else None
    if published is None or quantity not in published.figures:
        return Beside(quantity, ours, std, interval)
    other = published.epsilon not in (None, line.epsilon)
    by = f"{published.by}, at epsilon {published.epsilon:g}" if other else published.by
    differs = published.differs or (ABOVE if table.differs else "")
    return Beside(quantity, ours, std, interval, published.figures[quantity], by, differs)


def gather(folder: Path, failures: Failures | None = None) -> tuple[Chapter, ...]:
    """The page's content from a folder of results; nothing is computed but formulas."""
    return tuple(Chapter(paper, tuple(_sections(paper, folder, failures))) for paper in papers())


def _sections(paper: Paper, folder: Path, failures: Failures | None) -> Iterator[Section]:
    for table in map(load, paper.tables):
        found = computed(table) if table.protocol == "formulas" else read(folder / f"{table.name}.json")
        shown = table.protocol == "reversal" and (folder / PICTURE).exists()
        words = ((PICTURE, "A picture, its features, and the picture recovered from them"),) if shown else ()
        yield section(table, found, failures, pictures=words)


def markdown(chapters: Sequence[Chapter]) -> str:
    """The page for a terminal and for the documentation."""
    lines: list[str] = []
    for chapter in chapters:
        lines += [f"## {chapter.paper.by}: {chapter.paper.title}", ""]
        for each in chapter.sections:
            lines += [f"### {each.table.title} (`{each.table.name}`)", ""]
            lines += ["Not the paper's own table: another way on the same records.", ""] if each.table.beside else []
            lines += [each.table.differs, ""] if each.table.differs else []
            lines += [each.markdown(), "", "```sh", *each.commands, "```", ""]
        if chapter.paper.absent:
            lines += ["### Not run here", "", "| what | published | why not |", "|---|---|---|"]
            lines += [*(f"| {one.what} | {one.published} | {one.why} |" for one in chapter.paper.absent), ""]
    return "\n".join(lines).rstrip() + "\n"


def write_reproduction(chapters: Sequence[Chapter], results: Path, out: Path) -> Path:
    """Write `reproduced.html` into `out`, whole or not at all; `results` holds the pictures."""
    made = environment()
    made.loader = ChoiceLoader([PackageLoader("privet.papers"), PackageLoader("privet.report")])
    sections = [each for chapter in chapters for each in chapter.sections]
    rows = [row for each in sections for row in each.rows]
    pictures = {name: (results / name).read_bytes() for each in sections for name, _ in each.pictures}
    text = made.get_template("reproduced.html.j2").render(
        chapters=chapters,
        compared=[figure for row in rows for figure in row.figures if figure.difference is not None],
        done=[row for row in rows if not row.state],
        rows=rows,
        pictures={name: f"data:image/jpeg;base64,{base64.b64encode(held).decode()}" for name, held in pictures.items()},
    )
    out.mkdir(parents=True, exist_ok=True)
    return write_whole(out / FILE, text.encode(), mode=0o644)


def _number(value: float, digits: int | None) -> str:
    if digits is not None:
        return f"{value:.{digits}f}"
    return f"{value:.4g}" if value < 1000 else f"{value:,.0f}"


def _unit(published: float) -> float:
    """One in the last digit that is printed; of a round number from 1,000 on, in its second digit."""
    text = f"{published:g}"
    if "." in text:
        return 10.0 ** -len(text.split(".")[1])
    return 10.0 ** (math.floor(math.log10(published)) - 1) if published >= 1000 else 1.0


@dataclass(frozen=True)
class Reproduction:
    """Where measurements are kept, and how progress is shown.

    Attributes:
        out: a folder for the single runs.
        delta: of the statements; None for that of each table.
        seeds: how many; None for those of each table.
        say: called with a sentence before each line of many tables, and after each run.
        farm: where the runs are computed, several at once; None for this process, one after the other.
        source, plugins: what a worker of the farm loads: the records in place of the table's, and files of plug-ins.
    """

    out: Path
    delta: float | None = None
    seeds: int | None = None
    on_step: OnStep | None = None
    progress: Progress | None = None
    say: Callable[[str], None] = lambda sentence: None
    farm: Farm | None = None
    source: str = ""
    plugins: tuple[str, ...] = ()

    def run(self, table: PaperTable, lines: Sequence[Line], dataset: Dataset, command: str = "") -> list[Measurement]:
        """Measure lines of a table with seeds 0, 1, ...; another process on the same folder is refused."""
        found, seeds = [], self.seeds or table.seeds
        self.out.mkdir(parents=True, exist_ok=True)
        try:
            with alone_in(self.out):
                trials = self.trials(table, lines, dataset)
                commands = [command or table.command(trial.line, seeds) for trial in trials]
                if self.farm is not None:
                    return self._farmed(self.farm, trials, commands)
                for trial, told in zip(trials, commands, strict=True):
                    found.append(measure(trial, self.out, told))
                    self._say_measured(trial, found[-1])
        finally:
            with suppress(OSError):  # nothing was measured, if it is empty
                self.out.rmdir()
        return found

    def _say_measured(self, trial: Trial, found: Measurement) -> None:
        self.say(section(trial.table, [found], lines=[trial.line]).rows[0].log(trial.seed))

    def _farmed(self, farm: Farm, trials: Sequence[Trial], commands: Sequence[str]) -> list[Measurement]:
        """Measure the trials in a farm; the error of one is raised when the others have ended, and their figures are kept."""
        items = [
            ((trial.table, trial.line, trial.delta, trial.seed), self.source, self.plugins, self.out, told)
            for trial, told in zip(trials, commands, strict=True)
        ]
        found: dict[int, Measurement] = {}
        failed: Exception | None = None
        for number, made in farm.each(measure_there, items):
            if isinstance(made, Exception):
                failed = failed or made
                continue
            found[number] = made
            self._say_measured(trials[number], made)
            if self.progress is not None:
                self.progress("Runs", len(found), len(trials))
        if failed is not None:
            raise failed
        return [found[number] for number in range(len(trials))]

    def trials(self, table: PaperTable, lines: Sequence[Line], dataset: Dataset) -> list[Trial]:
        """Every line with every seed."""
        delta = table.delta if self.delta is None or table.quarters is not None else self.delta
        seeds = self.seeds or table.seeds
        return [
            Trial(table, line, delta, seed, dataset, self.on_step, self.progress)
            for line in lines
            for seed in range(min(seeds, line.seeds or seeds))
        ]

    def run_all(self, results: Path) -> Failures:
        """Run every table of every paper, and merge the figures into a folder."""
        results.mkdir(parents=True, exist_ok=True)
        tables = [load(name) for paper in papers() for name in paper.tables]
        work = [
            (table, [line])
            for table in tables
            if table.protocol not in ("reversal", "formulas")
            for line in table.cases
        ]
        work += [(table, list(table.cases)) for table in tables if table.protocol == "reversal"]
        failures: dict[tuple[str, str], str] = {}
        for number, (table, lines) in enumerate(work, 1):
            self.say(f"{number}/{len(work)} {table.name}: {lines[0].label}")
            try:
                merge(results / f"{table.name}.json", self._measured(table, lines, results))
            except Exception as error:  # whatever it is, the other lines go on, and the page says it at this one
                said = str(error) if isinstance(error, PrivetError) else f"{type(error).__name__}: {error}"
                failures |= {(table.name, line.label): " ".join(said.split()) for line in lines}
                self.say(f"{table.name}: {lines[0].label} failed: {failures[table.name, lines[0].label]}")
        return failures

    def _measured(self, table: PaperTable, lines: Sequence[Line], results: Path) -> list[Measurement]:
        if table.protocol == "reversal":
            return draw_figure(table, results)[1]
        return replace(self, out=self.out / table.name).run(table, lines, table.data.load(progress=self.progress))
