"""Dry runs: the plan, cost, time and files of a command, from public facts and a rehearsal on made-up records."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from privet import data
from privet.attacks import Attack
from privet.data import CATALOGUE, Dataset, Progress, Split, with_test_records
from privet.errors import InputError, PrivetError
from privet.io import in_bytes
from privet.methods import Context, DataSpec, Method, Task
from privet.privacy import Ledger
from privet.privacy.spent import round_up
from privet.report import RunRecord
from privet.report.words import duration
from privet.runs.accounts import account_of
from privet.runs.after import target_of
from privet.runs.runner import check_space

SECONDS = 5.0
"""Approximate duration of a rehearsal."""
MOST_NUMBERS = 1 << 29
"""The most numbers in made-up records: with more, the machine could run out of memory."""
NOT_READ = "No record was read: number, shape and classes of the records are public facts."
LOADED = (
    "The records were loaded to learn their number, shape and classes, which the statement takes as public; nothing was computed "
    "from them. With --public-size and a schema no record is read."
)

# --- made-up records --------------------------------------------------------------------------------------------------


def made_up(
    name: str, classes: Sequence[str], shape: Sequence[int], sizes: dict[str, int], *, users: bool = False
) -> Dataset:
    """Random records of a stated shape, as many as the public number of records."""
    numbers = sum(sizes.values()) * max(1, torch.Size(shape).numel())
    if numbers > MOST_NUMBERS:
        raise InputError(
            f"A dry run makes up as many records as the public number says, and these would take {in_bytes(numbers)}: give a "
            f"smaller --public-size to see what the command does."
        )
    generator = torch.Generator().manual_seed(0)
    parts = {}
    for part, size in sizes.items():
        inputs = torch.randint(256, (size, *shape), dtype=torch.uint8, generator=generator)
        labels = torch.arange(size) % len(classes)
        parts[part] = Split(inputs if len(shape) == 3 else inputs / 255, labels, torch.arange(size) if users else None)
    return Dataset(name, tuple(classes), parts)


def reads_nothing(spec: DataSpec) -> bool:
    """Whether the catalog, or a schema and a stated size, tell the number, shape and classes of the records."""
    table = spec.source.partition(":")[0] in ("csv", "parquet")
    return spec.source in CATALOGUE or (table and bool(spec.schema) and spec.public_size is not None)


def said_of_records(spec: DataSpec) -> str:
    """How much of the records a dry run reads."""
    return NOT_READ if reads_nothing(spec) else LOADED


def outline(spec: DataSpec, progress: Progress | None = None) -> Dataset:
    """Made-up records in place of those that `spec` names, with the same public number, shape, classes and split."""
    users = bool(spec.user)
    if spec.source in CATALOGUE:
        entry = CATALOGUE[spec.source]
        shape = entry.shape if len(entry.shape) != 2 else (1, *entry.shape)
        found = made_up(entry.name, entry.classes, shape, dict(entry.records))
    elif reads_nothing(spec) and spec.public_size is not None:
        schema = spec.columns()
        assert schema is not None
        users = users or bool(getattr(schema, "user", ""))
        shape = (sum(len(column.inputs) for column in schema.features),)
        name = Path(spec.source.partition(":")[2]).stem
        found = made_up(name, schema.classes, shape, {"train": spec.public_size}, users=users)
    else:
        real = data.load(spec.source, schema=spec.schema or None, header=spec.header, user=spec.user, progress=progress)
        sizes = {name: len(part) for name, part in real.splits.items()}
        with_users = real.train.users is not None
        found = made_up(real.name, real.classes, real.shape, sizes, users=with_users)
    division: dict[str, Any] = {"hold_out": spec.hold_out, "unprotected_test": spec.unprotected_test}
    return with_test_records(found, spec.source, public_size=spec.public_size, **division)


# --- the rehearsal ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """An estimate of how long some work takes on this machine, and its basis; `seconds` is None if it is not known."""

    seconds: float | None
    source: str

    def __str__(self) -> str:
        if self.seconds is None:
            return f"not known: {self.source}"
        return f"about {duration(max(1.0, self.seconds))}, an estimate: {self.source}"

    def times(self, factor: float, why: str) -> Estimate:
        """The estimate for `factor` times the work."""
        return self if self.seconds is None else Estimate(self.seconds * factor, f"{self.source}; {why}")


class _Enough(BaseException):
    """The rehearsal has lasted long enough. Not an `Exception`, so that no code in between handles it as a failure."""


@dataclass
class _Phase:
    what: str
    began: float
    first: int
    total: int | None
    ended: float = 0.0
    done: int = 0

    def goes_on(self, what: str, done: int, total: int | None) -> bool:
        """Whether a report belongs to this phase; a colon may separate the phase from the name of a part."""
        return (what.partition(":")[0], total) == (self.what.partition(":")[0], self.total) and done >= self.done


def rehearse(work: Callable[[Progress], Any], seconds: float = SECONDS) -> Estimate:
    """Run some work on made-up records for a few seconds, and estimate how long all of it takes.

    Args:
        work: gets a function that it calls with a description, how much is done and how much there is.
        seconds: when to stop.
    """
    began = time.monotonic()
    phases = [_Phase("Starting", began, 0, None)]

    def told(what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if not phases[-1].goes_on(what, done, total):
            phases.append(_Phase(what, now, done, total))
        last = phases[-1]
        last.ended, last.done = now, done
        # The first report of a phase includes other work, so the speed is measured from the second one on.
        if (now - last.began > seconds and done > last.first) or now - began > 6 * seconds:
            raise _Enough

    try:
        with _apart():
            work(told)
    except _Enough:
        last = phases[-1]
        named = last.what.partition(":")[0]
        if last.done == last.first or not last.total:
            return Estimate(None, f'"{named}" had made too little progress after {time.monotonic() - began:.0f} s')
        left = (last.ended - last.began) * (last.total - last.done) / (last.done - last.first)
        return Estimate(
            last.ended - began + left,
            f'"{named}" was tried on made-up records for {last.ended - last.began:.0f} s here, from {last.first:,} to '
            f"{last.done:,} of {last.total:,}; what comes after it is not counted",
        )
    except (PrivetError, ArithmeticError, RuntimeError, ValueError) as error:
        said = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        return Estimate(None, f"a rehearsal on made-up records ended ({said})")
    took = time.monotonic() - began
    return Estimate(took, f"the same work on made-up records took {took:.1f} s here")


@contextmanager
def _apart() -> Iterator[None]:
    """Keep nothing that is computed from made-up records, neither in the cache nor in the state of torch's generator."""
    before = os.environ.get("PRIVET_DATA")
    with tempfile.TemporaryDirectory() as place, torch.random.fork_rng(devices=[]):
        os.environ["PRIVET_DATA"] = place
        try:
            yield
        finally:
            if before is None:
                del os.environ["PRIVET_DATA"]
            else:
                os.environ["PRIVET_DATA"] = before


# --- what a command would do ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """The cost of one run, as far as it is known in advance: a statement, or the budget that bounds it."""

    what: str
    said: str
    facts: dict[str, Any]


def cost_of(method: Method, task: Task, what: str = "") -> Cost:
    """The cost of a method on a task: that of its plan, or the budget to which it calibrates its noise."""
    what = what or method.key
    try:
        planned = method.planned(task)
    except InputError:
        planned = None
    if planned is not None:
        ledger = Ledger(relation=method.relation, unit=method.unit(task))
        Context(ledger).begin(method, task)
        ledger.record(planned)
        spent = ledger.spent(task.delta)
        return Cost(what, str(spent), spent.to_dict() | {"planned": True})
    if not method.spends_budget:
        return Cost(what, "its epsilon follows from its settings and is known when it runs", {"epsilon": None})
    neighbors = method.relation.describe(method.unit(task))
    accountant = getattr(method, "accountant", "pld")
    said = (
        f"at most epsilon = {round_up(task.epsilon)} at delta = {task.delta:g}, to which it calibrates its noise ({neighbors}; "
        f"accountant: {accountant}; guarantee: {method.proof or 'see privet methods'})"
    )
    facts = {"epsilon": task.epsilon, "delta": task.delta, "relation": method.relation.value, "unit": method.unit(task)}
    return Cost(what, said, facts | {"accountant": accountant, "guarantee": method.proof, "planned": False})


@dataclass(frozen=True)
class Preview:
    """A description of what a command would do.

    Attributes:
        plan: in sentences.
        costs: the cost of each run.
        time: an estimate of the duration.
        writes: the files that it would write.
        records: how much of the records was read for the preview, in a sentence.
        free: why the command costs nothing; empty if it costs something.
    """

    plan: tuple[str, ...]
    costs: tuple[Cost, ...]
    time: Estimate
    writes: tuple[str, ...]
    records: str = NOT_READ
    free: str = ""
    more: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "dry_run": True,
            "plan": list(self.plan),
            "cost": [{"what": cost.what, "statement": cost.said, **cost.facts} for cost in self.costs],
            "costs_nothing": self.free,
            "seconds": None if self.time.seconds is None else round(self.time.seconds, 1),
            "seconds_from": self.time.source,
            "writes": list(self.writes),
            "records": self.records,
            **self.more,
        }

    def lines(self) -> list[str]:
        """For a terminal."""
        many = len(self.costs) > 1
        return [
            *self.plan,
            *(f"Cost{f' of {cost.what}' if many else ''}: {cost.said}." for cost in self.costs),
            *([f"Cost: nothing, because {self.free}."] if self.free else []),
            f"Time: {self.time}.",
            f"Would write: {', '.join(self.writes)}.",
            f"{self.records} Nothing was spent, and nothing was written.",
        ]


RUN_FILES = "record, ledger, card and page"


def fit_time(method: Method, task: Task, seconds: float = SECONDS) -> Estimate:
    """Estimate how long a method takes on a task with made-up records."""

    def work(progress: Progress) -> None:
        def on_step(step: dict[str, Any]) -> None:
            progress(str(step.get("what", "Training")), int(step["step"]), step["steps"])

        method.fit(task, Context.in_memory(method, task, on_step=on_step, progress=progress))

    return rehearse(work, seconds)


def preview_run(method: Method, task: Task, out: Path, attacks: Sequence[str]) -> Preview:
    """Describe a run of `privet train` or `privet synthesize`; the records of `task` are made up.

    Raises the errors that the run would raise before it uses a record, including an account with too little left.
    """
    check_space(method, task, out)
    if (account := account_of(task.spec, out)) is not None and method.spends_budget:
        account.require_room(task.epsilon, task.delta, method.relation)
    unit, made = task.dataset.train.unit, "a model" if method.makes == "model" else "synthetic data"
    plan = f"{method.full_title} on {task.dataset.name} ({task.dataset.size:,} training {unit}s in public), which makes {made}"
    tried = f"Afterward it is measured, and attacked by {', '.join(attacks)}; that costs nothing."
    files = "model.safetensors" if method.makes == "model" else "release"
    return Preview(
        (f"{plan}.", tried),
        (cost_of(method, task),),
        fit_time(method, task),
        (f"{out}: {files}, {RUN_FILES}",),
        said_of_records(task.spec),
    )


def preview_comparison(methods: Sequence[Method], task: Task, out: Path, at_once: int) -> Preview:
    """Describe a run of `privet compare` or `privet demo`; the records of `task` are made up."""
    times = [fit_time(method, task, SECONDS / 2) for method in methods]
    known = [each.seconds for each in times if each.seconds is not None]
    missing = [method.key for method, each in zip(methods, times, strict=True) if each.seconds is None]
    lanes = max(1, min(at_once, len(methods)))
    source = f"each method was tried on made-up records for {SECONDS / 2:g} s here; {lanes} run at once"
    source += f"; not counted: {', '.join(missing)}" if missing else ""
    total = max([sum(known) / lanes, *known]) if known else None
    what = f"{len(methods)} methods on {task.dataset.name}, each in a process of its own; each is attacked and audited."
    together = "Choosing one of them by the results costs as much as all of them together: the page says how much."
    return Preview(
        (what, together),
        tuple(cost_of(method, task) for method in methods),
        Estimate(total, source if known else "no method came far enough in a rehearsal"),
        (f"{out}: the page, compare.json, and a run for each method ({RUN_FILES})",),
        said_of_records(task.spec),
    )


def preview_attack(record: RunRecord, folder: Path, attacks: Sequence[Attack], model: str) -> Preview:
    """Describe a run of `privet attack`."""
    about = record.data
    sizes = {"train": max(8, about.training_records), "test": max(8, about.test_records or about.training_records // 5)}
    classes = about.classes or ("0", "1")
    shape = about.shape if len(about.shape) != 2 else (1, *about.shape)
    if not shape:
        time_ = Estimate(None, "the record does not give the shape of the records")
    else:
        records = made_up(about.name, classes, shape, sizes)
        aside = replace(record, data=replace(about, set_aside=0))
        with _apart():
            target = target_of(aside, folder, records, model)
        for attack in attacks:
            if why := attack.fits(target):
                raise InputError(f"{folder}: The attack {attack.key} does not fit this run: {why}.")

        def work(progress: Progress) -> None:
            for number, attack in enumerate(attacks):
                attack.run(target, progress)
                progress("Attacks", number + 1, len(attacks))

        time_ = rehearse(work)
    return Preview(
        tuple(f"{attack.title} ({attack.key}) on the release of {folder}: {attack}." for attack in attacks),
        (),
        time_,
        (f"{folder}: the results, appended to its record, and its card and page again",),
        free="an attack is not a release: its results on private records are internal and not on the card",
    )
