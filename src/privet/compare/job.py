"""What is compared: the records, the budget and the methods. It is written down first, so that a comparison can go on."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from privet import data, recipes
from privet.data import Dataset, Progress
from privet.errors import InputError
from privet.io import MisfitError, build, write_whole
from privet.recipes import Recipe

FILE = "job.json"


@dataclass(frozen=True)
class Sizes:
    """Of the methods that have sizes of their own; smaller ones make a comparison shorter.

    Attributes:
        examples: artificial ones at most.
        student_epochs: of a student of artificial data.
        residual_epochs: of residual perturbation; 0 means those of its schedule.
        residual_shrink: images are averaged over squares of so many pixels a side for its network.
    """

    examples: int = 30_000
    student_epochs: int = 20
    residual_epochs: int = 0
    residual_shrink: int = 1


@dataclass(frozen=True)
class Job:
    """The same for every method.

    Attributes:
        source, schema: the records, as `privet.data.load` takes them.
        epsilon, delta: the budget of each method.
        methods: keys of `privet.compare.ENTRANTS`.
        minutes: how long a method may train; 0 means as long as it takes.
        seed: makes the comparison repeatable; None where what comes out may be released.
        public: public records without labels, for the methods that learn from some: how many of the test records, or
            another data set by name; empty where there are none.
        recipe: of the methods that train a classifier; empty for the one that fits the records.
        sizes: of other methods.
        note: on the records, for every page.
        public_size, hold_out, unprotected_test: as `privet.data.with_test_records` takes them.
        header: whether a CSV file has one.
        user: the column of a table that says whose a row is; empty for that of the schema.
    """

    source: str
    epsilon: float
    delta: float
    methods: tuple[str, ...]
    minutes: float = 0.0
    seed: int | None = None
    recipe: str = ""
    schema: str = ""
    public: str = ""
    command: tuple[str, ...] = ()
    sizes: Sizes = Sizes()
    note: str = ""
    public_size: int | None = None
    hold_out: float | None = None
    unprotected_test: bool = False
    header: bool = True
    user: str = ""

    def records(self, progress: Progress | None = None) -> Dataset:
        """Training and test records, the same for every method."""
        found = data.load(
            self.source, schema=self.schema or None, header=self.header, user=self.user, progress=progress
        )
        return data.with_test_records(
            found,
            self.source,
            hold_out=self.hold_out,
            unprotected_test=self.unprotected_test,
            public_size=self.public_size,
        )

    def load(self, source: str, schema: str = "", progress: Progress | None = None) -> Dataset:
        """Other records than those of the job: public ones."""
        return data.with_test_records(data.load(source, schema=schema or None, progress=progress), source)

    def recipe_for(self, dataset: Dataset) -> Recipe:
        return recipes.load(self.recipe) if self.recipe else recipes.pick(dataset)[0]

    def keep(self, out: Path) -> None:
        """Write the job into its folder, or find it there: another job is refused."""
        path = out / FILE
        if path.exists():
            there = Job.read(out)
            if dataclasses.replace(there, command=self.command) != self:
                raise InputError(f"{out} holds another comparison: give the same options to go on, or another --out.")
            return
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out} holds something else than a comparison: give another folder with --out.")
        out.mkdir(parents=True, exist_ok=True)
        write_whole(path, (json.dumps(dataclasses.asdict(self), indent=1) + "\n").encode(), mode=0o644)

    @classmethod
    def read(cls, out: Path) -> Job:
        try:
            return build(cls, json.loads((out / FILE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise InputError(f"{out} holds no comparison.") from None
        except (OSError, ValueError, MisfitError) as error:
            raise InputError(f"{out / FILE} is damaged ({error}): give another folder with --out.") from None
