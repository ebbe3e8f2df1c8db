"""Groups of options that verbs share: the records, the budget, and the settings of a method."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.cli.options import GivenSettings
from privet.cli.program import echo
from privet.cli.progress import fetching
from privet.errors import InputError, PrivetError, PrivetWarning
from privet.io.names import account_names

if TYPE_CHECKING:
    from privet.data import Dataset
    from privet.io.farm import Farm
    from privet.methods import DataSpec, Task
    from privet.report import DataSummary, OtherRun, RunRecord
    from privet.runs.preview import Preview

NAMES = ("mnist", "fashion-mnist", "cifar10", "digits", "sms-spam", "sotu")
"""For tab completion only: the catalog imports PyTorch, which takes too long for a key press."""


def completing(names: Callable[[], Sequence[str]]) -> Callable[[typer.Context], list[str]]:
    """Tab completion by `names`, after the plug-ins named before the cursor are loaded."""

    def complete(context: typer.Context) -> list[str]:
        # A key press must not fail, and whatever a plug-in prints would become a name.
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with suppress(PrivetError):
                load_plugins(context.params.get("plugins"))
            return list(names())

    return complete


def with_plugins(names: Sequence[str], group: str, module: str, table: str) -> list[str]:
    """`names` and those of plug-ins, for tab completion, without importing PyTorch, which takes a second.

    Args:
        names: Privet's own.
        group: the entry points of installed packages.
        module, table: the registry, where a plug-in has imported it.
    """
    from importlib.metadata import entry_points

    loaded = getattr(sys.modules.get(module), table, ())
    return list(dict.fromkeys([*names, *(point.name for point in entry_points(group=group)), *loaded]))


@dataclass
class RecordOptions:
    """The options that say which records to use."""

    data: Annotated[
        str,
        typer.Option(
            help="A data set by name (mnist, fashion-mnist, cifar10, digits, sms-spam, sotu); files of your own as FORMAT:PATH, "
            "with the format csv, parquet, folder, idx, cifar or svhn; or py:package.module:load for a function of your own.",
            autocompletion=completing(lambda: with_plugins(NAMES, "privet.data", "privet.data", "DATA")),
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
            help="For csv: and parquet: the column that names the user each row belongs to; for sotu: speaker. Each user is "
            "then protected with all their rows, and --public-size counts users. A schema can name the column, too (user:).",
        ),
    ] = ""
    public_size: Annotated[
        int | None,
        typer.Option(
            help="The public number of records, from which rate, steps and delta follow; for data with their own test part, of "
            "training records. By default the true number is taken as public.",
            min=1,
        ),
    ] = None
    hold_out: Annotated[
        float | None,
        typer.Option(
            help="Hold out this share of the records WITHOUT protection and measure on it exactly. By default all records are "
            "protected, and the accuracy is measured on a fifth of them with noise."
        ),
    ] = None
    unprotected_test: Annotated[
        bool,
        typer.Option(
            "--unprotected-test",
            help="The test part of the data needs no protection: measure on it exactly, without noise.",
        ),
    ] = False

    account: Annotated[
        str,
        typer.Option(
            help="The account of these data (privet budget), by name or path. The run is charged to it before any record is "
            "used. By default, the account named in the file .privet-account beside the data.",
            autocompletion=account_names,
        ),
    ] = ""

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
            account=self.account,
        )


Epsilon = Annotated[float, typer.Option(help="The budget: the epsilon of the whole run.")]
Delta = Annotated[
    float | None,
    typer.Option(help="The delta of the statement; by default, a power of ten below 1 / the public number of records."),
]
LARGEST_SEED = 2**63 - 1
Seed = Annotated[
    int | None,
    typer.Option(
        help="A seed makes the run repeatable; do not publish the release of a seeded run.", min=0, max=LARGEST_SEED
    ),
]
PublicRecords = Annotated[
    str,
    typer.Option(
        help="Public records without labels, for methods that need them (pate): a number of test records, or another data "
        "set, written as for --data."
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
        help="Attacks, separated by commas (privet attacks lists them); by default, a quick one that fits.",
    ),
]


@dataclass
class BudgetOptions:
    """The options of the budget."""

    epsilon: Epsilon = 3.0
    delta: Delta = None
    seed: Seed = None

    def check(self) -> None:
        check_budget(self.epsilon, self.delta)


def set_option(owner: str, lists: str) -> Any:
    """The option --set NAME=VALUE for the settings of a method or an attack."""
    return typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help=f"A setting of the {owner} ({lists} lists them); repeat the option to give several.",
    )


SetOption = Annotated[list[str] | None, set_option("method", "privet methods KEY")]


@dataclass
class SettingOptions:
    """The options that set fields of a method."""

    settings: SetOption = None
    recipe: Annotated[
        str,
        typer.Option(
            help="A recipe by name, or a .yaml file; by default, the one that fits the records. Short for --set recipe=...",
            autocompletion=lambda: recipe_names(),
        ),
    ] = ""
    model: Annotated[
        str,
        typer.Option(
            help="Another model: a name of privet.models, or py:package.module:Net for your own. Short for --set model=..."
        ),
    ] = ""

    def given(self) -> GivenSettings:
        """All settings by name."""
        found = GivenSettings.of(self.settings)
        for name in ("recipe", "model"):
            if value := getattr(self, name):
                found.add(f"--{name}", name, value)
        return found


Resume = Annotated[
    bool,
    typer.Option("--resume", help="Continue where the same command was stopped, or start; finished parts are kept."),
]


DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Print the plan, its cost, an estimate of the time and the files to be written; then stop.",
    ),
]


@dataclass
class ControlOptions:
    """Whether to continue a stopped command, and whether only to print the plan."""

    resume: Resume = False
    dry_run: DryRun = False


def say_preview(preview: Preview, as_json: bool) -> None:
    """Print the plan of a command, for a terminal or for a program."""
    for line in [json.dumps(preview.to_dict(), indent=1)] if as_json else preview.lines():
        echo(line)


@dataclass
class FarmOptions:
    """Where many runs are computed, and how many at once."""

    jobs: Annotated[
        int | None,
        typer.Option(
            help="How many runs at once, each in a process with one thread. compare takes one for each core without it; other "
            "commands run in this process.",
            min=1,
            max=1000,
        ),
    ] = None
    backend: Annotated[
        str,
        typer.Option(
            help="Where they run: local, dask or ray.", autocompletion=completing(lambda: ["local", "dask", "ray"])
        ),
    ] = "local"
    address: Annotated[
        str,
        typer.Option(
            help="The address of the Dask scheduler or the Ray head; local starts one on this machine.",
        ),
    ] = ""

    def farm(self) -> Farm | None:
        """The farm that was asked for; None where none was."""
        from privet.io.farm import Farm

        if self.jobs is None and self.backend == "local" and not self.address:
            return None
        return Farm(self.jobs, self.backend, self.address)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, shadow models and audits run in the farm that was asked for."""
        farm = self.farm()
        with farm.in_use() if farm is not None else nullcontext():
            yield


@dataclass
class ManyRunsOptions(FarmOptions, ControlOptions):
    """Whether a command goes on, whether it only says what it would do, and where its many runs are computed."""


@dataclass
class RunOptions:
    """Further options of a run: attacks, plug-ins, earlier runs, resuming, trackers."""

    attacks: Attacks = None
    plugins: Plugins = None
    tuned_from: Annotated[
        list[Path] | None,
        typer.Option(
            help="The folder of an earlier run on the same records that was used to choose settings: the card counts its cost, "
            "too, like that of the runs beside --out. Repeat the option to give several.",
        ),
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue the stopped run in --out, or start it.")] = False
    dry_run: DryRun = False
    track: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TRACKER:FOLDER",
            help="Log every step to mlflow:FOLDER, wandb:FOLDER (offline) or tensorboard:FOLDER, on this machine alone; figures "
            "from private records without noise are named internal. Repeat the option to give several.",
        ),
    ] = None

    def load(self) -> None:
        """Load the files of plug-ins, and refuse trackers that cannot be used."""
        load_plugins(self.plugins)
        if self.track:
            from privet.integrations.trackers import check_trackers

            check_trackers(self.track)

    @property
    def attack_keys(self) -> tuple[str, ...]:
        return tuple(keys(self.attacks))


def recipe_names() -> list[str]:
    from privet.methods import recipe

    return list(recipe.names())


def keys(texts: Sequence[str] | None) -> list[str]:
    """The keys in a list separated by commas, each once."""
    return list(dict.fromkeys(key.strip() for text in texts or () for key in text.split(",") if key.strip()))


def load_plugins(files: Sequence[Path] | None) -> None:
    """Load the files of plug-ins that were named."""
    from privet.io.registry import load_plugin

    for file in files or ():
        load_plugin(file)


def check_budget(epsilon: float, delta: float | None) -> None:
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise InputError(f"--epsilon must be a number above 0, and is {epsilon}.")
    if not LEAST_EPSILON <= epsilon <= 1 / LEAST_EPSILON:
        raise InputError(
            f"--epsilon is from {LEAST_EPSILON:g} to {1 / LEAST_EPSILON:g}, and not {epsilon:g}: below, nothing can be learned; "
            "above, nothing is protected."
        )
    if delta is not None and not 0 < delta < 1:
        raise InputError(f"--delta must lie between 0 and 1, and is {delta}.")
    if delta is not None and delta < LEAST_DELTA:
        raise InputError(
            f"--delta is at least {LEAST_DELTA:g}, and not {delta:g}: accountants cannot compute with less."
        )
    if delta is not None and delta > MOST_DELTA:
        raise InputError(
            f"--delta is at most {MOST_DELTA:g}, and not {delta:g}: a statement with more protects nobody."
        )


LEAST_EPSILON, LEAST_DELTA, MOST_DELTA = 1e-6, 1e-100, 0.5
"""The limits of a budget: outside them, the search for the noise would not end."""


def load_records(spec: DataSpec, *, made_up: bool = False) -> Dataset:
    """Training and test records, with a bar while they are fetched; or, for a dry run, made-up ones in their place."""
    from privet.runs.preview import outline

    with fetching() as progress:
        return outline(spec, progress) if made_up else spec.load(progress)


def say_account(spec: DataSpec, out: Path) -> None:
    """Print the state of the records' account on the error stream; refuse at once if it is exceeded or damaged."""
    from privet.runs.accounts import account_of

    account = account_of(spec, out)
    if account is None:
        return
    standing = account.standing()
    if standing.passed:
        raise InputError(f"{standing}.")
    echo(f"{standing}.", err=True)


def load_again(about: DataSummary, given: str = "") -> Dataset:
    """The records of a run, divided as the run divided them.

    Formal guarantees: a record never makes Privet import code; a function of the user's own is called only if the user names
    it, as `given`.
    """
    from privet.io.registry import PREFIX
    from privet.methods import DataSpec

    if not given and about.source.startswith(PREFIX):
        raise InputError(
            f"The records came from {about.source}. Privet does not run code only because a file names it: if you trust it, "
            f"name it yourself (--data {about.source})."
        )
    divided = about.unprotected and about.measured_share > 0
    return load_records(
        DataSpec(
            given or about.source or about.name,
            about.schema,
            about.header,
            about.user,
            hold_out=about.measured_share if divided else None,
            unprotected_test=about.unprotected and not divided,
        )
    )


def open_task(
    records: RecordOptions, budget: BudgetOptions, out: Path, public: str = "", *, made_up: bool = False
) -> Task:
    """Load the records, say who is not protected and which account pays, and make the task of the options."""
    from privet.methods import Public, Task

    spec = records.spec()
    say_account(spec, out)
    dataset = load_records(spec, made_up=made_up)
    say_who_is_unprotected(dataset)
    return Task.of(
        spec,
        dataset,
        budget.epsilon,
        choose_delta(budget.delta, dataset),
        seed=budget.seed,
        public=Public.of(public, dataset, spec) if public else None,
    )


def others_on(dataset: Dataset, out: Path, named: Sequence[Path] = ()) -> tuple[OtherRun, ...]:
    """The other runs on these records in the folders beside `out`, even if they split the file differently."""
    from privet.report import find_others
    from privet.report.others import distinct

    marks = dict.fromkeys((dataset.origin, dataset.fingerprint))  # version 0.1.0 wrote that of the divided file
    return distinct([run for mark in marks for run in find_others(out, mark, named)])


def command_line() -> tuple[str, ...]:
    return ("privet", *sys.argv[1:])


def free_folder(name: str) -> Path:
    """The first unused folder of that name in `runs`, with a number appended if needed."""
    tried = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(folder for folder in tried if not folder.exists())


def run_folder(out: Path | None, data: str, ending: str, resume: bool) -> Path:
    """The folder of a run: the given one, or a new one in `runs`, named after the data. A folder with a run is refused."""
    if out is None and resume:
        raise InputError("Give the folder of the run to continue, with --out.")
    out = out or free_folder(f"{Path(data.rpartition(':')[2]).stem}-{ending}")
    check_free(out, resume)
    return out


def check_free(out: Path, resume: bool = False) -> None:
    """Refuse to overwrite a run."""
    from privet.report.record import FILE
    from privet.training.folder import check_not_foreign, working_files

    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give a folder with --out.")
    if (out / FILE).exists() and resume and working_files(out):
        return  # it was stopped after its record was written
    if (out / FILE).exists() and resume:
        raise InputError(
            f"The run in {out} is finished: see it with privet report {out}, or give another folder with --out."
        )
    if (out / FILE).exists():
        raise InputError(f"{out} holds a run already: give another folder with --out.")
    check_not_foreign(out)


def say_who_is_unprotected(dataset: Dataset) -> None:
    """Print who is not protected, among the first lines and on the error stream, so that JSON stays valid."""
    if not dataset.unprotected:
        return
    share = dataset.measured_share
    who = f"the hold-out, about {100 * share:g} % of the {dataset.train.unit}s" if share else "the test records"
    also = ""
    if dataset.train.unit == "user" and not share:
        also = " For a user who is in both parts, only the training records are protected."
    echo(f"NOT PROTECTED: {who}. The statement covers only the others.{also}", err=True)


def say_of_run(record: RunRecord) -> None:
    """Print whom the statement of a run does not cover, and whether the run may be released, on the error stream."""
    from privet.report.statement import not_for_release

    for said in (not_for_release(record), record.data.who_is_unprotected):
        if said:
            echo(said, err=True)


def choose_delta(delta: float | None, dataset: Dataset) -> float:
    """The given delta, or the usual one for the public number of records; warns if it is too large."""
    from privet.privacy import delta_warning, usual_delta

    chosen = usual_delta(dataset.protected) if delta is None else delta
    if said := delta_warning(chosen, dataset.protected, dataset.train.unit):
        echo(f"privet: {said}", err=True)
        warnings.filterwarnings("ignore", "delta = .* is not below 1/N", PrivetWarning)  # it was said already
    return chosen
