"""`privet tune`: choose among settings or recipes, and account for the choice."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.cli.options import GivenSettings, check_methods
from privet.cli.program import AsJson, echo, how_to_go_on, verb
from privet.cli.progress import computing
from privet.cli.records import (
    BudgetOptions,
    DryRun,
    Plugins,
    RecordOptions,
    command_line,
    completing,
    keys,
    load_plugins,
    open_task,
    others_on,
    run_folder,
)
from privet.cli.train import method_keys, result_facts, say_result
from privet.errors import InputError

if TYPE_CHECKING:
    from privet.methods import Task
    from privet.privacy import Trials
    from privet.report import RunRecord
    from privet.runs.tune import Candidate, TuningPlan

AUTO, ONCE = "auto", "once"
FEWEST = 5.0
"""The mean number of trials for few candidates: a Poisson distribution of mean 5 draws no trial once in 150 tunings."""
SECONDS_BETWEEN_LINES = 60.0


def distributions() -> list[str]:
    from privet.privacy.selection import NAMES

    return [AUTO, *NAMES, "negative-binomial:SHAPE", ONCE]


@dataclass
class ChoiceOptions:
    """What to choose among, and how."""

    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE,VALUE,...",
            help="A setting of the method with the values to choose among (privet methods KEY lists the settings); repeat the "
            "option to give several settings. Every combination is a candidate.",
        ),
    ] = None
    recipes: Annotated[
        list[str] | None,
        typer.Option(
            "--recipes", "--recipe", help="Recipes to choose among, separated by commas; privet recipes lists them."
        ),
    ] = None
    model: Annotated[
        str, typer.Option(help="Another model: a name of privet.models, or py:package.module:Net for your own.")
    ] = ""
    trials: Annotated[
        str,
        typer.Option(
            help="The distribution of the secret number of trials: poisson, geometric, logarithmic or negative-binomial:SHAPE; "
            "or once, to try and pay for each candidate once; auto: poisson or once, whichever leaves each trial more budget.",
            autocompletion=distributions,
        ),
    ] = AUTO
    mean: Annotated[
        float | None,
        typer.Option(help="The mean number of trials; by default the number of candidates, and at least 5.", min=1.0),
    ] = None

    def given(self) -> GivenSettings:
        """The values of each setting, as a list."""
        found = GivenSettings.of(self.settings)
        if self.recipes:
            found.add("--recipes", "recipe", ",".join(self.recipes))
        if self.model:
            found.add("--model", "model", self.model)
        return found


@verb("tune", "privet tune --data digits --epsilon 3 --set learning_rate=1,2,4 --set clip=0.5,1 --out runs/tuned")
def tune(
    context: typer.Context,
    records: RecordOptions,
    budget: BudgetOptions,
    choices: ChoiceOptions,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the release; by default a new one in runs, named after the data.")
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="The method, dpsgd by default; several, separated by commas, are candidates.",
            autocompletion=completing(method_keys),
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the stopped tuning in --out, or start it.")
    ] = False,
    dry_run: DryRun = False,
    plugins: Plugins = None,
    tuned_from: Annotated[
        list[Path] | None,
        typer.Option(
            help="The folder of an earlier run on the same records that helped to choose the candidates; the card counts it."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Choose among settings or recipes: only the best of a secret, random number of trials is released.

    All trials together stay within the budget. Half of the test records choose the best trial, the other half measures it.
    """
    load_plugins(plugins)
    budget.check()
    from privet.methods import METHODS, method_named

    named, settings = [method_named(key) for key in keys(method) or ["dpsgd"]], choices.given()
    check_methods(context, named, settings, {key: METHODS[key] for key in method_keys()})
    out = run_folder(out, records.data, "tuned", resume)
    task = open_task(records, budget, out, made_up=dry_run)
    with computing() as progress:
        progress("Calibrating the noise", 0, None)
        plan = _plan([each.key for each in named], task, settings, choices)
        also = _alternatives(plan, task) if dry_run else []
    if dry_run:
        _say_plan(plan, also, task, out, as_json)
        return
    from privet.runs import tune as run

    with how_to_go_on(out), _waiting() as tick:
        record = run.tune(
            plan,
            out,
            resume=resume,
            others=others_on(task.dataset, out, tuned_from or ()),
            command=command_line(),
            on_tick=tick,
        )
    _say(record, out, as_json)


def _plan(methods: list[str], task: Task, settings: GivenSettings, choices: ChoiceOptions) -> TuningPlan:
    """The plan that was asked for; for `auto`, the one that leaves each trial more budget."""
    from privet.runs.tune import TuningPlan, grid

    values = {name: _values(settings.options[name], str(text)) for name, text in settings.values.items()}
    candidates = grid(methods, task, values)
    if choices.trials == ONCE and choices.mean is not None:
        raise InputError("--mean is not used with --trials once: each candidate is tried once. Leave it out.")
    if choices.trials != AUTO:
        return TuningPlan.of(candidates, task, _distribution(choices.trials, choices.mean, candidates))
    random = TuningPlan.of(candidates, task, _distribution("poisson", choices.mean, candidates))
    if choices.mean is not None:
        return random
    once = TuningPlan.of(candidates, task, None)
    return once if once.epsilon >= random.epsilon else random


def _values(option: str, text: str) -> list[str]:
    found = [value.strip() for value in text.split(",")]
    if not all(found) or len(set(found)) < len(found):
        raise InputError(f"{option} takes different values separated by commas, and not {text!r}.")
    return found


def _distribution(name: str, mean: float | None, candidates: tuple[Candidate, ...]) -> Trials | None:
    from privet.privacy import Trials

    if name == ONCE:
        return None
    if name not in distributions() and ":" not in name:
        raise InputError(f"--trials is {', '.join(distributions()[:-1])} or {ONCE}, and not {name!r}.")
    return Trials.named(name, mean if mean is not None else max(FEWEST, float(len(candidates))))


def _alternatives(plan: TuningPlan, task: Task) -> list[TuningPlan]:
    """The same choice with each of the other ways to make trials."""
    from privet.privacy import Trials
    from privet.privacy.selection import NAMES
    from privet.runs.tune import TuningPlan

    mean = plan.trials.mean if plan.trials is not None else max(FEWEST, float(len(plan.candidates)))
    ways: list[Trials | None] = [*(Trials(mean, shape) for shape in NAMES.values()), None]
    return [TuningPlan.of(plan.candidates, task, way) for way in ways if way != plan.trials]


def _noises(plan: TuningPlan) -> list[float]:
    """The noise multipliers of the steps of a trial, each once."""
    from privet.privacy import Gaussian, PoissonSampled
    from privet.privacy.events import bare, tally

    steps = (bare(leaf) for run in plan.runs for leaf, _ in tally(run))
    inner = (bare(step.event) for step in steps if isinstance(step, PoissonSampled))
    return sorted({each.noise_multiplier for each in inner if isinstance(each, Gaussian)})


def _facts(plan: TuningPlan) -> dict[str, Any]:
    """The plan and its cost, for JSON."""
    many, trials = len(plan.candidates), plan.trials
    drawn: dict[str, Any] = {"trials": ONCE, "tried": 1.0, "at_most": {"1": many}, "nothing": 0.0}
    if trials is not None:
        drawn = {
            "trials": trials.name,
            "mean": trials.mean,
            "tried": 1 - trials.never(1 / many),
            "at_most": {f"{level:g}": trials.quantile(level) for level in (0.5, 0.9, 0.999)},
            "nothing": trials.nothing,
        }
    return drawn | {
        "epsilon_of_a_trial": plan.epsilon,
        "noise_multipliers": _noises(plan),
        "spent": plan.spent().to_dict(),
    }


def _say_plan(plan: TuningPlan, also: list[TuningPlan], task: Task, out: Path, as_json: bool) -> None:
    """Describe the tuning without making it; nothing is spent."""
    from privet.privacy.spent import round_up
    from privet.runs.preview import Cost, Preview, fit_time, said_of_records

    spent, mean = plan.spent(), float(len(plan.candidates)) if plan.trials is None else plan.trials.mean
    time = fit_time(plan.candidates[0].method, task).times(
        mean, f"{mean:g} trials like the first candidate, on average"
    )
    writes = (f"{out}: the best trial alone, with model, ledger, record, card and page",)
    shared = Preview(
        (), (Cost("the whole tuning", str(spent), spent.to_dict()),), time, writes, said_of_records(task.spec)
    )
    one_run = max(plan.of_one(number).epsilon for number in range(len(plan.candidates)))
    if as_json:
        facts = shared.to_dict() | {
            "candidates": [one.label for one in plan.candidates],
            "score": plan.said_score(),
            **_facts(plan),
            "one_run": one_run,
            "each_once": plan.of_all_once().epsilon,
            "alternatives": [_facts(other) for other in also],
        }
        echo(json.dumps(facts, indent=1))
        return
    echo(f"{len(plan.candidates)} candidates:")
    for one in plan.candidates:
        echo(f"  {one.label}")
    echo(f"Each trial is scored by {plan.said_score()}. The other test records measure the release.")
    echo(_said_trials(plan))
    echo(
        f"One run with the noise of a trial, without a choice: epsilon = {round_up(one_run)}; "
        f"each candidate once, all of them paid for: epsilon = {round_up(plan.of_all_once().epsilon)}"
    )
    echo("Ways to make trials, at the same cost of the whole tuning:")
    heads = ("epsilon of a trial", "noise", "a candidate is tried", "9 of 10 make at most")
    echo(f"  {'trials':<28}{''.join(f'{head:>22}' for head in heads)}")
    for way in (plan, *also):
        facts = _facts(way)
        name = f"{facts['trials']}, mean {facts['mean']:g}" if "mean" in facts else "each candidate once"
        noise = " ".join(f"{each:.3g}" for each in facts["noise_multipliers"])
        most = facts["at_most"].get("0.9", len(plan.candidates))
        cells = (f"{facts['epsilon_of_a_trial']:.3f}", noise, f"{100 * facts['tried']:.0f} %", f"{most} trials")
        echo(f"  {name:<28}{''.join(f'{cell:>22}' for cell in cells)}")
    for line in shared.lines():
        echo(line)


def _said_trials(plan: TuningPlan) -> str:
    """How many trials would be made."""
    if plan.trials is None:
        return "Each candidate is tried once. All of them are paid for, so nothing about them has to stay secret."
    nothing = plan.trials.nothing
    none = f" With probability {nothing:.2g} there is none, and nothing is released." if nothing else ""
    return (
        f"The number of trials is random ({plan.trials}) and stays secret: half of all tunings make at most "
        f"{plan.trials.quantile(0.5)}, 9 of 10 at most {plan.trials.quantile(0.9)}, 999 of 1,000 at most "
        f"{plan.trials.quantile(0.999)}.{none} Each one takes as long as privet train with its settings."
    )


@contextmanager
def _waiting() -> Iterator[Callable[[], None]]:
    """Show that the tuning is running, but nothing about its trials: neither their number, progress nor scores."""
    from privet.report.words import duration

    began = time.monotonic()

    def said() -> str:
        return f"Tuning for {duration(time.monotonic() - began)}; the number of trials is secret"

    if sys.stderr.isatty():
        from rich.console import Console

        with Console(stderr=True).status(said()) as status:
            yield lambda: status.update(said())
        return
    last = began

    def line() -> None:
        nonlocal last
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print(f"{said()}.", file=sys.stderr, flush=True)

    yield line


def _say(record: RunRecord, out: Path, as_json: bool) -> None:
    """The result, for a terminal or for a program."""
    from dataclasses import asdict

    from privet.report.statement import choice, title

    assert record.tuning is not None
    if as_json:
        tuning = {name: value for name, value in asdict(record.tuning).items() if name != "event"}
        echo(json.dumps(result_facts(record, out, tuning=tuning), indent=1))
        return
    spent = record.spent(record.open_ledger(out))
    echo(f"{title(record, spent)}: {record.tuning.chosen}")
    echo(str(spent))
    for sentence in choice(record, spent):
        echo(sentence)
    say_result(record, out)
