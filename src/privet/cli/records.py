"""Groups of options that verbs share: the records, the budget, and the settings of a method."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.cli.data import NAMES
from privet.cli.progress import fetching
from privet.errors import InputError, PrivetWarning

if TYPE_CHECKING:
    from privet.data import Dataset
    from privet.methods import DataSpec, Method, Task
    from privet.report import DataSummary, OtherRun, RunRecord


@dataclass
class Records:
    """The options that say which records to use."""

    data: Annotated[
        str,
        typer.Option(
            help="A data set by name (mnist, fashion-mnist, cifar10, digits), FORMAT:PATH as privet data reads it, or "
            "py:package.module:load for a function of your own.",
            autocompletion=lambda: list(NAMES),
        ),
    ]
    schema: Annotated[
        Path | None, typer.Option(help="For csv: and parquet: the file with the public bounds and categories.")
    ] = None
    no_header: Annotated[
        bool,
        typer.Option(
            "--no-header", help="For csv: the first row is a record; columns are those of the schema, in its order."
        ),
    ] = False
    users: Annotated[
        str,
        typer.Option(
            "--users",
            metavar="COLUMN",
            help="For csv: and parquet: the column that says whose a row is. A user is then protected with all their rows, and "
            "--public-size counts users. A schema can name it as user.",
        ),
    ] = ""
    public_size: Annotated[
        int | None,
        typer.Option(
            help="How many records there are, as far as that is public: rate, steps and delta follow from it. Without it the "
            "true number is taken as public. Of data with a test part of its own: how many training records.",
            min=1,
        ),
    ] = None
    hold_out: Annotated[
        float | None,
        typer.Option(
            help="Hold out this share of the records WITHOUT protection and measure on it exactly. Without it all records are "
            "protected, and a fifth is measured on with noise."
        ),
    ] = None
    unprotected_test: Annotated[
        bool,
        typer.Option(
            "--unprotected-test",
            help="The test part of the data needs no protection: measure on it exactly, without noise.",
        ),
    ] = False

    def spec(self) -> DataSpec:
        """The records as a value."""
        from privet.methods import DataSpec

        return DataSpec(
            self.data,
            str(self.schema) if self.schema else "",
            not self.no_header,
            self.users,
            self.public_size,
            self.hold_out,
            self.unprotected_test,
        )


Epsilon = Annotated[float, typer.Option(help="The budget.")]
Delta = Annotated[
    float | None,
    typer.Option(help="The delta of the statement; without it, a power of ten below 1 / the public number of records."),
]
Seed = Annotated[
    int | None, typer.Option(help="Makes the run repeatable; such a release is not for publication.", min=0)
]
PublicRecords = Annotated[
    str,
    typer.Option(
        help="Public records without labels, for methods that learn from some (pate): how many of the test records, or "
        "another data set by name."
    ),
]
Plugins = Annotated[
    list[Path] | None,
    typer.Option("--plugin", help="A Python file with plug-ins to load first; repeat the option to load several."),
]
Attacks = Annotated[
    list[str] | None,
    typer.Option(
        "--attack",
        "--attacks",
        help="Attacks by key, with commas between (privet attacks lists them); without it, the quick one that fits.",
    ),
]


@dataclass
class Budget:
    """The options of the budget."""

    epsilon: Epsilon = 3.0
    delta: Delta = None
    seed: Seed = None

    def check(self) -> None:
        check_budget(self.epsilon, self.delta)


@dataclass
class Settings:
    """The options that set fields of a method."""

    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the method (privet methods KEY lists them); repeat the option to give several.",
        ),
    ] = None
    recipe: Annotated[
        str,
        typer.Option(
            help="A recipe by name, or a .yaml file; without it, the one that fits the records. Short for --set recipe=...",
            autocompletion=lambda: recipe_names(),
        ),
    ] = ""
    model: Annotated[
        str,
        typer.Option(
            help="Another model: a name of privet.models, or py:package.module:Net for your own. Short for --set model=..."
        ),
    ] = ""

    def given(self) -> dict[str, Any]:
        """All settings by name."""
        found = pairs(self.settings or ())
        for name in ("recipe", "model"):
            if value := getattr(self, name):
                if name in found:
                    raise InputError(f"--{name} and --set {name}= are the same setting: give one of them.")
                found[name] = value
        return found


def pairs(settings: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE as a dictionary."""
    found = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set takes NAME=VALUE, and {text!r} has no '='.")
        found[name.strip().replace("-", "_")] = value.strip()
    return found


def recipe_names() -> list[str]:
    from privet.methods import recipe

    return list(recipe.names())


def keys(texts: Sequence[str] | None) -> list[str]:
    """Keys that were given with commas between them, each once."""
    return list(dict.fromkeys(key.strip() for text in texts or () for key in text.split(",") if key.strip()))


def load_plugins(files: Sequence[Path] | None) -> None:
    """Load the files of plug-ins that were named."""
    from privet.io.registry import load_plugin

    for file in files or ():
        load_plugin(file)


def check_budget(epsilon: float, delta: float | None) -> None:
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise InputError(f"--epsilon must be a number above 0, and is {epsilon}.")
    if delta is not None and not 0 < delta < 1:
        raise InputError(f"--delta must lie between 0 and 1, and is {delta}.")


def check_used(context: typer.Context, method: Method, table: Mapping[str, Method]) -> None:
    """Raise if an option was given that the method does not use."""
    from privet.cli.options import given

    written = given(context)
    reasons = {
        "epsilon": (method.spends_budget, "its noise is set by its settings, and its epsilon follows from them"),
        "resume": (method.resumes, "a run of it cannot be continued: start it anew, in another folder"),
        "users": (method.protects_users, "it has no proof for users who hold several records"),
        "public": (method.needs_public, "it does not learn from public records"),
    }
    attributes = {"epsilon": "spends_budget", "resume": "resumes", "users": "protects_users", "public": "needs_public"}
    for name, (used, why) in reasons.items():
        if name in written and not used:
            others = [key for key, other in table.items() if getattr(other, attributes[name])]
            instead = f", or use it with --method {_either(others)}" if others else ""
            raise InputError(f"{written[name]} is not used by --method {method.key}: {why}. Leave it out{instead}.")


def _either(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def load_records(spec: DataSpec) -> Dataset:
    """Training and test records, with a bar while they are fetched."""
    with fetching() as progress:
        return spec.load(progress)


def load_again(about: DataSummary) -> Dataset:
    """The records of a run, divided as the run divided them."""
    from privet.methods import DataSpec

    divided = about.unprotected and about.measured_share > 0
    return load_records(
        DataSpec(
            about.source or about.name,
            about.schema,
            about.header,
            about.user,
            hold_out=about.measured_share if divided else None,
            unprotected_test=about.unprotected and not divided,
        )
    )


def make_task(spec: DataSpec, dataset: Dataset, budget: Budget, public: str = "") -> Task:
    """The task of the options."""
    from privet.methods import Public, Task

    return Task.of(
        spec,
        dataset,
        budget.epsilon,
        choose_delta(budget.delta, dataset),
        seed=budget.seed,
        public=Public.of(public, dataset, spec) if public else None,
    )


def others_on(dataset: Dataset, out: Path, named: Sequence[Path] = ()) -> tuple[OtherRun, ...]:
    """The other runs on these records beside `out`, however they divided the file."""
    from privet.report import find_others
    from privet.report.others import distinct

    marks = dict.fromkeys((dataset.origin, dataset.fingerprint))  # version 0.1.0 wrote that of the divided file
    return distinct([run for mark in marks for run in find_others(out, mark, named)])


def command_line() -> tuple[str, ...]:
    return ("privet", *sys.argv[1:])


def free_folder(name: str) -> Path:
    """The first folder of that name in `runs`, or with a number behind it, that is not there yet."""
    tried = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(folder for folder in tried if not folder.exists())


def check_free(out: Path, resume: bool = False) -> None:
    """A run is never written over."""
    from privet.report.record import FILE

    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give a folder with --out.")
    if (out / FILE).exists() and resume:
        raise InputError(
            f"The run in {out} is finished: see it with privet report {out}, or give another folder with --out."
        )
    if (out / FILE).exists():
        raise InputError(f"{out} holds a run already: give another folder with --out.")


def say_who_is_unprotected(dataset: Dataset) -> None:
    """One of the first lines of output, on the error stream, so that JSON stays JSON."""
    if not dataset.unprotected:
        return
    share = dataset.measured_share
    who = f"the hold-out, about {100 * share:g} % of the {dataset.train.unit}s" if share else "the test records"
    also = ""
    if dataset.train.unit == "user" and not share:
        also = " A user who is in both parts is protected for the training records alone."
    typer.echo(f"NOT PROTECTED: {who}. The statement is about the others alone.{also}", err=True)


def say_of_run(record: RunRecord) -> None:
    """Whom the statement of a run leaves out, and whether it may be released; on the error stream."""
    from privet.report.statement import not_for_release

    for said in (not_for_release(record), record.data.who_is_unprotected):
        if said:
            typer.echo(said, err=True)


def choose_delta(delta: float | None, dataset: Dataset) -> float:
    """The given delta, or the usual one for the public number of records; warns where it is too large."""
    from privet.privacy import delta_warning, usual_delta

    chosen = usual_delta(dataset.protected) if delta is None else delta
    if said := delta_warning(chosen, dataset.protected, dataset.train.unit):
        typer.echo(f"privet: {said}", err=True)
        warnings.filterwarnings("ignore", "delta = .* is not below 1/N", PrivetWarning)  # it was said already
    return chosen
