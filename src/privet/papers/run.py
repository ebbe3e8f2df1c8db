"""Run the lines of tables: what is kept is not measured again, and with all tables one failure stops nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from privet.data import Dataset, Progress
from privet.errors import PrivetError
from privet.papers.figures import draw_figure
from privet.papers.measure import Trial, measure
from privet.papers.page import Failures, section
from privet.papers.results import Measurement, merge
from privet.papers.table import Line, PaperTable, load, papers
from privet.training.logs import OnStep


@dataclass(frozen=True)
class Reproduction:
    """Where measurements are kept, and how progress is shown.

    Attributes:
        out: a folder for the single runs.
        delta: of the statements; None for that of each table.
        seeds: how many; None for those of each table.
        say: called with a sentence before each line of many tables, and after each run.
    """

    out: Path
    delta: float | None = None
    seeds: int | None = None
    on_step: OnStep | None = None
    progress: Progress | None = None
    say: Callable[[str], None] = lambda sentence: None

    def run(self, table: PaperTable, lines: Sequence[Line], dataset: Dataset, command: str = "") -> list[Measurement]:
        """Measure lines of a table with seeds 0, 1, ..."""
        delta = table.delta if self.delta is None or table.quarters is not None else self.delta
        seeds, found = self.seeds or table.seeds, []
        for line in lines:
            for seed in range(min(seeds, line.seeds or seeds)):
                trial = Trial(table, line, delta, seed, dataset, self.on_step, self.progress)
                found.append(measure(trial, self.out, command or table.command(line, seeds)))
                self.say(section(table, found[-1:], lines=[line]).rows[0].log(seed))
        return found

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
