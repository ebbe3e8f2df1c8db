"""Run every part, line by line: what is kept is not computed again, and one failure stops nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from privet import data, recipes
from privet.data import Dataset, Progress
from privet.errors import PrivetError
from privet.recipes import comparison, table
from privet.reproduction.figure import make_figure
from privet.reproduction.results import Results
from privet.reproduction.source import Part, sources
from privet.synthesis import table as students
from privet.training.logs import OnStep

OnLine = Callable[[str, str, int, int], None]
"""Called before each line with the part, the line, its number and how many there are."""
OnFailure = Callable[[str, str, str], None]


@dataclass(frozen=True)
class Work:
    """One line of a table, and what makes its results."""

    part: str
    line: str
    do: Callable[[], None]


@dataclass(frozen=True)
class Runner:
    """Where results are kept, and with how many seeds they are made.

    Attributes:
        out: a folder for the single trainings of each part, as `privet reproduce PART` keeps them.
        results: the folder of results that the page is made from.
        seeds: None means those of each part: 3 of a recipe or of students, 1 of a comparison.
    """

    out: Path
    results: Results
    delta: float
    seeds: int | None = None
    on_step: OnStep | None = None
    progress: Progress | None = None

    def run(self, on_line: OnLine | None = None, on_failure: OnFailure | None = None) -> dict[tuple[str, str], str]:
        """Do everything; gives the failures by part and line."""
        self.results.folder.mkdir(parents=True, exist_ok=True)
        failures: dict[tuple[str, str], str] = {}
        every = list(self.work())
        for number, work in enumerate(every, 1):
            if on_line is not None:
                on_line(work.part, work.line, number, len(every))
            try:
                work.do()
            except Exception as error:  # whatever it is, the other lines go on and this one says it on the page
                said = str(error) if isinstance(error, PrivetError) else f"{type(error).__name__}: {error}"
                failures[work.part, work.line] = " ".join(said.split())
                if on_failure is not None:
                    on_failure(work.part, work.line, failures[work.part, work.line])
        return failures

    def work(self) -> Iterator[Work]:
        """Every line of every part, in the order of the page."""
        kinds = {
            "recipe": self._recipe,
            "students": self._students,
            "comparison": self._comparison,
            "figure": self._figure,
        }
        for source in sources():
            for part in source.parts:
                yield from kinds[part.kind](part)

    def _recipe(self, part: Part) -> Iterator[Work]:
        chosen = recipes.load(part.name)
        seeds = self.seeds or 3

        def do(method: str, epsilon: float) -> None:
            several = f" --method {method}" if len(chosen.methods) > 1 else ""
            made = table.reproduce(
                chosen,
                self._records(chosen.data),
                self.out / part.name,
                epsilons=(epsilon,),
                methods=(method,),
                seeds=seeds,
                delta=self.delta,
                command=f"privet reproduce {part.name} --seeds {seeds} --epsilon {epsilon:g}{several}",
                on_step=self.on_step,
                progress=self.progress,
            )
            self.results.add_rows(made)

        for method in chosen.methods:
            for epsilon in chosen.epsilons:
                yield Work(part.name, f"{method} {epsilon:g}", partial(do, method, epsilon))

    def _students(self, part: Part) -> Iterator[Work]:
        chosen = students.load(part.name)
        seeds = self.seeds or 3

        def do(number: int, key: str) -> None:
            dataset = self._records(chosen.data)
            found = students.reproduce(
                chosen,
                dataset,
                self.out / part.name,
                seeds=seeds,
                delta=self.delta,
                keys=(key,),
                on_step=self.on_step,
            )
            command = f"privet reproduce {part.name} --seeds {seeds} --line {number}"
            self.results.add_rows(students.rows(chosen, found, self.delta, command))

        for number, line in enumerate(chosen.lines, 1):
            yield Work(part.name, line.key, partial(do, number, line.key))

    def _comparison(self, part: Part) -> Iterator[Work]:
        chosen = comparison.load(part.name)

        def do(line: comparison.Line) -> None:
            dataset = chosen.divided(self._records(chosen.data))
            folder = self.out / part.name
            folder.mkdir(parents=True, exist_ok=True)
            made = [
                comparison.measure(chosen, dataset, line, seed, folder, self.on_step) for seed in range(self.seeds or 1)
            ]
            self.results.add_measured(part.name, made)

        for line in chosen.lines:
            yield Work(part.name, line.title(chosen.depth), partial(do, line))

    def _figure(self, part: Part) -> Iterator[Work]:
        def do() -> None:
            make_figure(self.results.folder)

        yield Work(part.name, "", do)

    def _records(self, name: str) -> Dataset:
        return data.load(name, progress=self.progress)
