"""`privet reproduce`: the tables of papers, our figures beside the published ones."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from privet.cli.options import check_used
from privet.cli.program import AsJson, echo, how_to_go_on, verb
from privet.cli.progress import fetching, training
from privet.cli.records import ManyRunsOptions, Plugins, check_budget, completing, load_plugins, say_preview
from privet.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from privet.io.farm import Farm
    from privet.papers import Measurement, PaperTable, Reproduction
    from privet.papers.table import Line
    from privet.runs.preview import Preview

HOME = Path("runs") / "reproduce"
DELTA = 1e-5


def _names() -> list[str]:
    from privet.papers import names

    return list(names())


def _method_keys() -> list[str]:
    from privet.methods import METHODS

    return list(METHODS)


@dataclass
class Selection:
    """Which lines of a table to run, and on which records."""

    epsilon: Annotated[
        list[float] | None,
        typer.Option(help="Epsilon; repeat the option to give several. Without it, those of the table."),
    ] = None
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A method; repeat the option to give several. Without it, those of the table.",
            autocompletion=completing(_method_keys),
        ),
    ] = None
    line: Annotated[
        list[int] | None, typer.Option(help="Only the line with this number; repeat the option to give several.")
    ] = None
    records: Annotated[
        str | None, typer.Option("--data", help="Other records than the table's, for example folder:PATH.")
    ] = None


@dataclass
class Places:
    """Where figures are kept."""

    out: Annotated[
        Path | None,
        typer.Option(help="The folder that keeps the figures of each run; figures in it are not computed again."),
    ] = None
    results: Annotated[
        Path | None,
        typer.Option(help="Put the figures into this JSON file, or into the table's file in this folder."),
    ] = None
    export: Annotated[
        Path | None, typer.Option(help="Write the figures, means over seeds, to this .csv or .tex file too.")
    ] = None

    def check(self) -> None:
        """Refuse a file that cannot be written, before anything runs."""
        from privet.report.export import check_suffix

        if self.export is not None:
            check_suffix(self.export)

    def write(self, found: Sequence[Measurement], caption: str) -> None:
        """Write the table that was asked for, if one was."""
        from privet.io import to_plain
        from privet.papers.results import means
        from privet.report.export import export

        if self.export is not None:
            export([to_plain(one) for one in means(found)], self.export, caption)


@verb("reproduce", "privet reproduce abadi-mnist --seeds 3")
def reproduce(
    context: typer.Context,
    selection: Selection,
    places: Places,
    control: ManyRunsOptions,
    recipe: Annotated[
        str | None,
        typer.Argument(help="A table or a recipe by name, or a .yaml file.", autocompletion=_names, metavar="[TABLE]"),
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Every table and figure of the papers, on one page. It takes hours, and can be resumed."
        ),
    ] = False,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="With --all: make the page from the results that exist.")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option(help="The number of seeds (0, 1, ...); by default, that of the table.", min=1, max=1000),
    ] = None,
    delta: Annotated[float, typer.Option(help="The delta of the statement.")] = DELTA,
    image: Annotated[Path | None, typer.Option(help="For wang-reversal: the picture to recover.")] = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Run a table of a paper over several seeds, and print our figures beside the published ones.

    A recipe is run as a table too: DP-SGD at each of its budgets. --all runs every table of the four papers, and says for each
    figure why it differs from the published one.
    """
    load_plugins(plugins)
    places.check()
    work = Work(seeds, delta, control.farm(), tuple(str(Path(file).resolve()) for file in plugins or ()))
    if every or no_run:
        if recipe is not None or not every:
            raise InputError("--no-run belongs to --all, and --all takes no TABLE.")
        check_used(context, "no-run" if no_run else "all")
        check_budget(1.0, delta)
        if control.dry_run:
            say_preview(_preview_all(places, seeds, delta), as_json)
            return
        _reproduce_all(places, work, run=not no_run, as_json=as_json)
        return
    if recipe is None:
        raise InputError(f"Name a table, or use --all. There are {', '.join(_names())}.")
    from privet.papers import load
    from privet.papers.measure import computed

    table = load(recipe)
    check_used(context, table.protocol, named=recipe)
    if table.protocol == "reversal":
        _draw(table, places.out, image, as_json)
    elif table.protocol == "formulas":
        places.write(computed(table), table.title)
        _say(table, table.cases, computed(table), as_json)
    elif control.dry_run:
        lines = _chosen(table, recipe, selection, delta)
        say_preview(
            _preview(table, lines, selection.records or "", places.out or HOME / table.name, seeds, delta), as_json
        )
    else:
        _run(table, recipe, selection, places, work, as_json)


@dataclass(frozen=True)
class Work:
    """How the runs are made: with how many seeds, at which delta, and where."""

    seeds: int | None
    delta: float
    farm: Farm | None
    plugins: tuple[str, ...]


@contextmanager
def _showing(folder: Path, work: Work, quiet: bool, source: str = "") -> Iterator[Reproduction]:
    """A reproduction that shows its progress."""
    from privet.papers import Reproduction

    with how_to_go_on(pays=False), training(work.delta, "Starting") as show:
        yield Reproduction(
            folder,
            work.delta,
            work.seeds,
            # Computing epsilon after every step takes time. A log gets one line for each run instead.
            on_step=show if sys.stderr.isatty() else None,
            progress=lambda what, done, total: show({"what": what, "step": done, "steps": total}),
            say=lambda sentence: None if quiet else echo(sentence, err=True),
            farm=work.farm,
            source=source,
            plugins=work.plugins,
        )


def _run(
    table: PaperTable,
    named: str,
    selection: Selection,
    places: Places,
    work: Work,
    as_json: bool,
) -> None:
    """Measure the chosen lines of a table, and print it."""
    from privet.papers import merge
    from privet.papers.measure import CURVES, draw_rocs
    from privet.papers.results import file_of

    lines = _chosen(table, named, selection, work.delta)
    with fetching() as progress:
        dataset = table.data.load(selection.records or "", progress)
    folder = places.out or HOME / table.name
    with _showing(folder, work, as_json, selection.records or "") as reproduction:
        command = _command(named, selection, work.seeds or table.seeds, work.delta)
        found = reproduction.run(table, lines, dataset, command)
    if places.results is not None:
        merge(file_of(places.results, table.name), found)
    places.write(found, table.title)
    _say(table, lines, found, as_json)
    if table.protocol == "quarters" and not as_json:
        curves = draw_rocs(folder / CURVES, table, [one for one in found if one.seed == 0])
        echo(f"The ROC curves: {curves}")


def _chosen(table: PaperTable, named: str, selection: Selection, delta: float) -> Sequence[Line]:
    """The lines of the table that were asked for; refused where their records are missing."""
    for epsilon in selection.epsilon or (1.0,):
        check_budget(epsilon, delta)
    lines = table.some(selection.line or (), selection.epsilon or (), selection.method or ())
    if not (selection.records or table.data.source):
        raise InputError(f"{named} needs records of your own: give them with --data folder:PATH.")
    return lines


def _preview(
    table: PaperTable, lines: Sequence[Line], source: str, folder: Path, seeds: int | None, delta: float
) -> Preview:
    """Describe the reproduction of these lines without making it."""
    from privet.methods import DataSpec
    from privet.papers import Reproduction
    from privet.papers.measure import cost_of_trial, measured_file, try_out
    from privet.runs.preview import Preview, outline, rehearse, said_of_records

    spec = DataSpec(source or table.data.source)
    trials = Reproduction(folder, delta, seeds).trials(table, lines, outline(spec))
    left = [trial for trial in trials if not measured_file(trial, folder).exists()]
    plan = f"{table.title}: {len(lines)} lines, {len(trials)} runs; those of {len(trials) - len(left)} are kept in {folder}."
    again = "Kept figures are not computed again if settings and records are the same."
    time = rehearse(lambda progress: try_out((left or trials)[0], progress))
    costs = {trial.line.label: cost_of_trial(trial) for trial in trials}
    return Preview(
        (plan, again),
        tuple(costs.values()),
        time.times(len(left), f"{len(left)} runs like the first one that is left"),
        (f"{folder}: the figures of each run",),
        said_of_records(spec),
    )


def _preview_all(places: Places, seeds: int | None, delta: float) -> Preview:
    """Describe the reproduction of every table. It takes hours, and the time of one line says nothing about the others."""
    from privet.papers import load, papers
    from privet.papers.results import read
    from privet.runs.preview import Estimate, Preview

    home = places.out or HOME
    tables = [load(name) for paper in papers() for name in paper.tables]
    measured = [one for table in tables for one in read((places.results or home) / f"{table.name}.json")]
    plan = tuple(f"{table.name}: {table.title}, {len(table.cases)} lines." for table in tables)
    time = Estimate(None, "privet reproduce TABLE --dry-run estimates each table")
    if measured:
        total = sum(one.seconds * max(1, one.seeds) for one in measured)
        time = Estimate(total, f"processor time of the {len(measured)} existing figures, if all were made again")
    free = "the tables use public data sets; each line's statement is on the page"
    return Preview(plan, (), time, (f"{home}: the figures of each run, and one page",), free=free)


def _say(table: PaperTable, lines: Sequence[Line], found: Sequence[Measurement], as_json: bool) -> None:
    """The table for a terminal, or the mean over seeds of each line for a program."""
    from privet.io import to_plain
    from privet.papers import section
    from privet.papers.results import means

    if as_json:
        echo(json.dumps([to_plain(one) for one in means(found)], indent=1))
        return
    shown, first = section(table, found, lines=lines), found[0]
    about = [f"{first.data}, delta {first.delta:g}"] if first.data else []
    if table.quarters is not None and first.attack is not None:
        about.append(f"quarters of {first.attack.members:,} records, {table.quarters.schedule.epochs} epochs")
    if any(row.seeds > 1 for row in shown.rows):
        about.append("mean and standard deviation over seeds")
    details = f" ({'; '.join(about)})" if about else ""
    echo(f"{table.title}{details}\n\n{shown.markdown()}")
    if said := [f"- {row.label}: {row.statement}" for row in shown.rows if row.statement]:
        echo("\n".join(["", "The ledger's statement for each:", "", *said]))


def _draw(table: PaperTable, out: Path | None, image: Path | None, as_json: bool) -> None:
    """Run the reversal with and without noise, and write its figure."""
    from privet.papers import merge
    from privet.papers.measure import draw_figure

    folder = out or HOME / table.name
    path, found = draw_figure(table, folder, image)
    merge(folder / f"{table.name}.json", found)
    errors = {one.line: one.quantities["error"] for one in found}
    if as_json:
        echo(json.dumps({"picture": str(path), "rmse": errors}, indent=1))
        return
    for name, error in errors.items():
        echo(f"{name}: recovered with a root mean squared error of {error:.4f}")
    echo(f"The picture: {path}")


def _reproduce_all(places: Places, work: Work, *, run: bool, as_json: bool) -> None:
    """Run the missing parts, unless `run` is false, and make the page from all existing results."""
    from privet.papers import gather, markdown, write_reproduction
    from privet.papers.results import read

    home = places.out or HOME
    results, failures = places.results or home, {}
    if run:
        with _showing(home, work, as_json) as reproduction:
            failures = dict(reproduction.run_all(results))
    chapters = gather(results, failures)
    page = write_reproduction(chapters, results, home)
    if places.export is not None:
        files = sorted(results.glob("*.json")) if results.is_dir() else [results]
        places.write([one for file in files for one in read(file)], "Figures of papers, measured again.")
    if as_json:
        facts = {"page": str(page), "sources": [asdict(chapter) for chapter in chapters]}
        echo(json.dumps(facts, indent=1, allow_nan=False))
        return
    echo(f"{markdown(chapters)}\nThe page: {page}")


def _command(named: str, selection: Selection, seeds: int, delta: float) -> str:
    """The command, quoted for a shell."""
    given = {"--line": selection.line, "--epsilon": selection.epsilon, "--method": selection.method}
    words = ["privet", "reproduce", named, "--seeds", str(seeds)]
    for option, values in given.items():
        words += [
            word for value in values or () for word in (option, f"{value:g}" if option == "--epsilon" else str(value))
        ]
    words += ["--data", selection.records] if selection.records else []
    words += ["--delta", f"{delta:g}"] if delta != DELTA else []
    return shlex.join(words)
