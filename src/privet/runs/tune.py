"""Tuning: choose the best of several candidates, and account for the choice.

Before it uses a record, a tuning draws the number of trials and their candidates. It charges all trials to its ledger, makes
every one of them, whatever the earlier ones gave, and releases only the best one (`RepeatAndSelect`).
"""

from __future__ import annotations

import json
import math
import os
import shutil
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

from privet.data import Progress, Split, divide
from privet.errors import InputError, PrivetError
from privet.io import write_whole
from privet.io.names import DATA_KEY, LEDGER, NEWEST_HEAD, RECORD, STEPS
from privet.methods.method import Context, Method, Task, method_for, plain_settings
from privet.methods.preparation import scores
from privet.methods.private_accuracy import PrivateAccuracy, exactly
from privet.privacy import (
    AccountExhausted,
    AccountStanding,
    Assumed,
    DataAccount,
    Event,
    Ledger,
    LedgerError,
    RepeatAndSelect,
    Spent,
    Trials,
    accountant_named,
    weakest,
)
from privet.privacy.events import NOTHING, composed, tally
from privet.randomness import Randomness
from privet.randomness.sources import uniform
from privet.report import OtherRun, RunRecord, TuningSummary, load_model, renew
from privet.runs.accounts import OWN, account_of, on_account
from privet.runs.runner import check, check_space, run
from privet.training.checkpoint import load_checkpoint
from privet.training.folder import RunFolder, check_not_foreign, remove_working_files
from privet.training.identity import plain
from privet.training.releases import heads_after

WORKING, DONE = ".tuning", ".tuned"
"""The folder of the trials inside that of the tuning. Only its owner can read it; at the end it is renamed and deleted."""
STATE, FAILURES = "state.json", "failures.txt"
SECRET = "nobody but the holder of the records learns how many trials there were, not even from how long they took"
"""The assumption behind a choice among a random number of trials."""
SHARE = 0.5
"""The share of the test records that compares the trials; the others measure the release."""
MOST_CANDIDATES = 1000
_KEY = 1
"""The key of the hash that splits the test records; key 0 splits a file into training and test records."""
_CLOSE = 1e-3
"""Relative precision with which the epsilon of a trial is found."""
_LEAST = 1 / 64
"""The smallest share of epsilon that is tried for a trial."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """One of the methods to choose among, with its settings; `label` names what distinguishes it from the others."""

    method: Method
    label: str


def grid(keys: Sequence[str], task: Task, choices: Mapping[str, Sequence[Any]]) -> tuple[Candidate, ...]:
    """Every combination of methods and of values of their settings.

    Args:
        keys: methods by key.
        task: what the tuning is for.
        choices: the values of each setting; a setting with one value is the same for all candidates.
    """
    count = math.prod(map(len, choices.values())) * len(keys)
    if count > MOST_CANDIDATES:
        raise InputError(f"These are {count:,} candidates: give at most {MOST_CANDIDATES:,}.")
    found = []
    for key in keys:
        for values in product(*choices.values()):
            settings = dict(zip(choices, values, strict=True))
            told = [f"{name}={value}" for name, value in settings.items() if len(choices[name]) > 1]
            label = ", ".join(([f"method={key}"] if len(keys) > 1 else []) + told)
            found.append(Candidate(method_for(key, task, settings), label))
    return tuple(found)


# --- the plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TuningPlan:
    """The plan of a tuning and its cost, from public facts alone.

    Formal guarantees: `event` is everything that the tuning does to the records. With `trials`, each trial does one of `events`
    and only the best one is released; the statement assumes `SECRET`. Without `trials`, each candidate is tried once and all are
    composed.

    Attributes:
        candidates: what to choose among.
        task: the budget of the whole tuning; its test records are those that measure the release.
        validation: the test records by which the trials are compared.
        trials: the distribution of the number of trials; None to try each candidate once.
        epsilon: the budget of one trial at the task's delta.
        score: the noise of the score where the test records are protected; None where it is exact.
        runs: what a run of each candidate does, without the score.
    """

    candidates: tuple[Candidate, ...]
    task: Task
    validation: Split
    trials: Trials | None
    epsilon: float
    score: PrivateAccuracy | None
    runs: tuple[Event, ...]

    @classmethod
    def of(cls, candidates: Sequence[Candidate], task: Task, trials: Trials | None) -> TuningPlan:
        """The plan with the largest budget for each trial that keeps the whole tuning within the budget of the task."""
        _check(candidates, task)
        task, validation = divided(task)
        given = tuple(candidates)

        def made(epsilon: float, like: Sequence[int]) -> TuningPlan:
            """The plan with trials of this budget, where each candidate has the event of the one in `like`."""
            runs = {number: _planned(given[number].method, replace(task, epsilon=epsilon)) for number in set(like)}
            score = None
            if task.protects_test:
                score = PrivateAccuracy.within(epsilon, task.delta, given[0].method.relation)
            return cls(given, task, validation, trials, epsilon, score, tuple(runs[number] for number in like))

        every = range(len(given))
        first = made(task.epsilon / 2, every).runs
        # Candidates with equal events at one budget have equal events at nearly every other: the search tries one of each kind.
        found = made(_largest(partial(_cost, made, [first.index(run) for run in first]), task.epsilon), every)
        if found.cost > task.epsilon:
            found = made(_largest(partial(_cost, made, every), task.epsilon), every)
        return found

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """The event of a trial of each candidate: a run and, if it is noisy, the score."""
        return tuple(run if self.score is None else run + self.score.event for run in self.runs)

    @cached_property
    def event(self) -> Event:
        """Everything that the tuning does to the records."""
        if self.trials is None:
            return composed(*self.events)
        distinct = tuple(dict.fromkeys(self.events))
        return RepeatAndSelect(distinct, self.trials.mean, self.trials.shape).under(Assumed(SECRET))

    @property
    def accountant(self) -> str:
        """The accountant whose theorem covers the tuning."""
        return "pld" if self.trials is None else "rdp"

    @cached_property
    def cost(self) -> float:
        relation = self.candidates[0].method.relation
        return accountant_named(self.accountant).epsilon(self.event, self.task.delta, relation)

    def spent(self) -> Spent:
        """The statement of the whole tuning."""
        return self._stated(self.event, self.accountant)

    def of_one(self, candidate: int) -> Spent:
        """The statement of one run of a candidate with the noise of a trial, without a choice."""
        return self._stated(self.runs[candidate], "pld")

    def of_all_once(self) -> Spent:
        """The statement of one run of each candidate, with the noise of the trials, all of them paid for."""
        return self._stated(composed(*self.events), "pld")

    def _stated(self, event: Event, accountant: str) -> Spent:
        method = self.candidates[0].method
        return accountant_named(accountant).spent(event, self.task.delta, method.relation, unit=method.unit(self.task))

    def said_score(self) -> str:
        """The score that compares the trials, in words that may be published."""
        if self.score is not None:
            return (
                f"its accuracy on about {100 * SHARE:g} % of the records that were not trained on, with Gaussian noise of "
                f"{self.score.noise_multiplier:.3g} on each count, which is part of each trial"
            )
        if self.task.is_public:
            return f"its accuracy on about {100 * SHARE:g} % of the test records, which are public"
        return f"its accuracy on about {100 * SHARE:g} % of the records that are not protected"

    def identity(self) -> dict[str, Any]:
        """The facts that must be equal for a tuning to be resumed."""
        return {
            "tuning": [[one.method.key, one.label, plain(plain_settings(one.method))] for one in self.candidates],
            "trials": None if self.trials is None else [self.trials.mean, self.trials.shape],
            "epsilon": self.task.epsilon,
            "delta": self.task.delta,
            "seed": self.task.seed,
            "data": self.task.dataset.origin,
        }

    def trial_task(self, number: int) -> Task:
        """The task of a trial. Each seeded trial has its own seed, as each trial of a release has its own key."""
        seed = self.task.seed
        own = None if seed is None else Randomness.apart(f"trial {number}", seed).seed
        return replace(self.task, epsilon=self.epsilon, seed=own)


def divided(task: Task) -> tuple[Task, Split]:
    """The task with one half of its test records, which measure the release, and the other half, which chooses it."""
    parts = divide(task.dataset, "test", {"test": 1 - SHARE, "validation": SHARE}, _KEY)
    rest = {name: split for name, split in parts.splits.items() if name != "validation"}
    dataset = replace(parts, splits=rest, undivided=task.dataset.origin)
    return replace(task, dataset=dataset), parts["validation"]


def _check(candidates: Sequence[Candidate], task: Task) -> None:
    """Raise for what can be known to fail before anything is spent."""
    if len(candidates) < 2:
        raise InputError("There is nothing to choose: give a setting several values, or several recipes.")
    if task.dataset.target is not None:
        raise InputError(
            f"A tuning chooses by the accuracy, and {task.dataset.target.name} is a number: train with one setting instead."
        )
    labels = Counter(one.label for one in candidates)
    if twice := [label for label, count in labels.items() if count > 1]:
        raise InputError(f"The candidate {twice[0]} is given twice.")
    for one in candidates:
        if why := one.method.why_not(task):
            raise InputError(f"The method {one.method.key} does not fit {task.dataset.name}: {why}.")
        if one.method.makes != "model":
            raise InputError(f"The method {one.method.key} makes data, and a tuning chooses among models.")
    if len({one.method.relation for one in candidates}) > 1:
        raise InputError("The candidates have statements about different neighbors, so no theorem covers a choice.")


def _planned(method: Method, task: Task) -> Event:
    event = method.planned(task)
    if event is None:
        raise InputError(
            f"The method {method.key} cannot be tuned: what it does to the records is not known before it runs, and a tuning is "
            f"paid for before its first trial."
        )
    return event


def _cost(made: Callable[[float, Sequence[int]], TuningPlan], like: Sequence[int], epsilon: float) -> float:
    return made(epsilon, like).cost


def _largest(cost: Callable[[float], float], limit: float) -> float:
    """The largest epsilon of a trial whose tuning costs at most `limit`; its cost is within 0.1 % of it where costs do not jump.

    Secant steps in the logarithms, kept inside a bracket.
    """
    good: tuple[float, float] | None = None
    bad: tuple[float, float] | None = None
    least, x = _LEAST * limit, limit / 2
    while True:
        value = cost(x)
        if value <= limit:
            good = (x, value)
            if value >= limit * (1 - _CLOSE) or x >= limit:
                return x
        else:
            bad = (x, value)
            if x <= least:
                raise InputError(
                    f"A budget of epsilon {limit:g} is too small for this tuning: even trials of {least:.2g} would cost more. "
                    f"Give a larger epsilon, fewer trials, or fewer candidates."
                )
        if good and bad and bad[0] / good[0] < 1 + _CLOSE:
            return good[0]
        x = min(limit, max(least, _between(good, bad, limit * (1 - _CLOSE / 2))))


def _between(good: tuple[float, float] | None, bad: tuple[float, float] | None, aim: float) -> float:
    """The next epsilon to try, between the largest that costs too little and the smallest that costs too much."""
    if good is None or bad is None:
        x, value = good or bad or (1.0, 1.0)
        ratio = min(4.0, max(0.25, aim / value if value > 0 else 4.0))
        return x * (ratio * 1.02 if good else ratio / 1.02)  # a little further, to have the answer between both
    low, high = math.log(good[0]), math.log(bad[0])
    if not (good[1] > 0 and bad[1] < math.inf):
        return math.exp((low + high) / 2)
    slope = (math.log(bad[1]) - math.log(good[1])) / (high - low)
    step = (math.log(aim) - math.log(good[1])) / slope if slope > 0 else (high - low) / 2
    margin = 0.1 * (high - low)
    return math.exp(min(max(low + step, low + margin), high - margin))


# --- the draw and the choice ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """The secret draw before the first trial.

    Attributes:
        order: the candidate of each trial; its length is the number of trials.
        ties: a random number for each trial, which decides between equal scores.
    """

    order: tuple[int, ...]
    ties: tuple[float, ...]

    @classmethod
    def of(cls, trials: Trials | None, candidates: int, randomness: Randomness) -> Drawn:
        """Draw the number of trials, the candidate of each (independent, with equal chances), and the ties."""
        source = randomness.noise
        if trials is None:
            order = list(range(candidates))
        else:
            count = trials.quantile(float(uniform(source, 1)[0]))
            order = [min(candidates - 1, int(candidates * each)) for each in uniform(source, count).tolist()]
        return cls(tuple(order), tuple(uniform(source, len(order)).tolist()))


@dataclass(frozen=True)
class Best:
    """The best trial so far: its number, its score, and the random number that decided between equal ones."""

    trial: int
    score: float
    tie: float

    def beaten_by(self, other: Best) -> bool:
        return (other.score, other.tie) > (self.score, self.tie)


def choose(
    drawn: Drawn, trial: Callable[[int], float], begin: tuple[int, Best | None] = (0, None)
) -> Iterator[tuple[int, Best | None]]:
    """Make every trial from `begin` on; after each, yields the number of finished trials and the best one so far.

    Formal guarantees: all trials are made, whatever they give. A trial without a score (minus infinity, or not a number) is never
    the best; if no trial has a score, there is no best one.
    """
    done, best = begin
    for number in range(done, len(drawn.order)):
        score = trial(number)
        found = Best(number, score, drawn.ties[number])
        if score > -math.inf and (best is None or best.beaten_by(found)):
            best = found
        yield number + 1, best


# --- the run ----------------------------------------------------------------------------------------------------------


def tune(
    plan: TuningPlan,
    out: Path,
    *,
    resume: bool = False,
    others: Sequence[OtherRun] | None = None,
    account: DataAccount | str | Path | None = OWN,
    command: Sequence[str] = (),
    on_tick: Callable[[], None] | None = None,
    progress: Progress | None = None,
) -> RunRecord:
    """Make the trials, and leave the best one in `out` like a run, with the ledger of the whole tuning.

    Formal guarantees: the whole tuning is in the ledger before the first record is used. A resumed tuning keeps its finished
    trials and the number of trials it had drawn. The interrupted trial goes on from its last checkpoint; repeated steps are
    charged in addition. Nobody sees the result of a trial: only the owner can read its files, and they are deleted. A trial that
    raises an error has no score. Nothing that remains shows how many trials there were.

    Args:
        plan: the plan of the tuning.
        out: the folder of the tuning; one that holds a run is refused, unless it is resumed.
        resume: continue the tuning in `out`, or start it.
        others: the other runs on these records that the card counts.
        account: the account of the records, which pays for the whole tuning before the first trial; as in `privet.runs.run`.
        command: the command line, for the record.
        on_tick: called from time to time, without arguments.
        progress: called while features are computed.
    """
    working = out / WORKING
    if (out / RECORD).exists() and not working.exists():
        if not resume:
            raise InputError(f"{out} holds a run already: give another folder.")
        return _cleaned(out)  # it was killed when only this was left to do
    check_not_foreign(out)
    for candidate in plan.candidates:
        check(candidate.method, plan.trial_task(0))
        check_space(candidate.method, plan.task, out)
    method = plan.candidates[0].method
    books, fresh = account_of(plan.task.spec, out, account), not out.exists()
    folder = RunFolder(out, resume=resume, relation=method.relation, unit=method.unit(plan.task))
    try:
        with closing(folder), on_account(books, method, plan.task, folder, plan.event) as paying:
            folder.state_what(plan.identity())
            for candidate in plan.candidates:  # including those that will not be tried: which ones are tried is secret
                Context(folder.ledger).begin(candidate.method, plan.task)
            tuning = _Tuning(plan, folder, _drawn(plan, folder), on_tick, progress)
            # Taken before the trials: a later date would reveal how long they took.
            standing = paying.account.standing() if paying is not None else None
            tuning.finish(tuning.best(), others, command, standing)
            if paying is not None:
                paying.close(ended=True)
        working.rename(
            working.with_name(DONE)
        )  # at once: a tuning that is killed now does not look for its trials again
        record = _cleaned(out)
    except AccountExhausted:
        if fresh and not folder.ledger.used:
            shutil.rmtree(out)  # refused before anything was spent
        raise
    except OSError as error:
        raise _stopped(error.strerror or type(error).__name__) from None
    return record


def _drawn(plan: TuningPlan, folder: RunFolder) -> dict[str, Any]:
    """The draw and its date. It is on disk and charged before it is used; a resumed tuning reads it again."""

    def draw(ledger: Ledger) -> dict[str, Any]:
        drawn = Drawn.of(plan.trials, len(plan.candidates), Randomness.apart("tuning", plan.task.seed))
        ledger.record(plan.event)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        return {"order": list(drawn.order), "ties": list(drawn.ties), "started": started}

    return folder.releases.get("drawn", draw)


def _cleaned(out: Path) -> RunRecord:
    """The record of a finished tuning; everything that could reveal its trials is removed."""
    if (out / DONE).exists():
        shutil.rmtree(out / DONE)
    remove_working_files(out)
    record = RunRecord.read(out)
    _date(out, record.created)
    return record


def _date(out: Path, created: str) -> None:
    """Set the dates of all files to the start of the tuning: the true dates would reveal how long it took."""
    at = datetime.fromisoformat(created).timestamp()
    for path in (*out.rglob("*"), out):
        os.utime(path, (at, at))


@dataclass(frozen=True, eq=False)
class _Tuning:
    """The trials of one tuning and their folders."""

    plan: TuningPlan
    folder: RunFolder
    kept: Mapping[str, Any]
    on_tick: Callable[[], None] | None
    progress: Progress | None

    @cached_property
    def drawn(self) -> Drawn:
        return Drawn(tuple(self.kept["order"]), tuple(self.kept["ties"]))

    @property
    def working(self) -> Path:
        return self.folder.path / WORKING

    def place(self, trial: int) -> Path:
        """The folder of a trial; its name does not reveal its number, because an error message could show it."""
        return self.working / f"trial-{int(self.drawn.ties[trial] * 2**53):014x}"

    def said(self, trial: int) -> Path:
        """The file that holds the score of a trial; none is null."""
        return self.place(trial).with_suffix(".json")

    def best(self) -> Best:
        """Make the remaining trials; raises if none has a score."""
        self.working.mkdir(mode=0o700, exist_ok=True)
        self.working.chmod(0o700)
        begin = self._state()
        self._clean(*begin)
        _, best = begin
        for done, best in choose(self.drawn, self.trial, begin):
            self._write(self.working / STATE, {"done": done, "best": None if best is None else vars(best)})
            self._clean(done, best)
        if best is not None:
            return best
        if not self.drawn.order:
            assert self.plan.trials is not None
            raise PrivetError(
                f"The random number of trials is 0, which happens with probability {self.plan.trials.nothing:.2g}: nothing was "
                f"trained, and nothing is released. The tuning is charged nevertheless. Start another one in another folder."
            )
        raise PrivetError(
            f"No trial gave a model, so nothing is released; the tuning is charged nevertheless. {self.working / FAILURES} says "
            f"what went wrong; it is only for people who may see the records."
        )

    def trial(self, number: int) -> float:
        """Make a trial, or resume it; returns its score."""
        place, chosen = self.place(number), self.drawn.order[number]
        if self.said(number).exists():
            found = json.loads(self.said(number).read_text(encoding="utf-8"))["score"]
            return -math.inf if found is None else float(found)
        task = self.plan.trial_task(number)
        if (place / LEDGER).exists() and not (place / RECORD).exists() and task.seed is None:
            self._settle(place)
        goes_on = (place / LEDGER).exists()
        try:
            score = self._made(place, self.plan.candidates[chosen].method, task)
        except Exception as error:
            if reason := _of_the_machine(error):
                raise _stopped(reason) from None
            if isinstance(error, LedgerError) or (goes_on and isinstance(error, InputError)):
                raise  # an error of the ledger or of changed settings: the trial still has to be made
            self._note(number, error)
            score = -math.inf
        self._charge(place, self.plan.events[chosen])
        self._write(self.said(number), {"score": score if score > -math.inf else None})
        return score

    def _made(self, place: Path, method: Method, task: Task) -> float:
        """Run a trial in its folder, or resume it there; returns its score."""
        if not (place / RECORD).exists():
            resume = (place / LEDGER).exists()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a warning could reveal something about a trial
                try:
                    # The tuning's own ledger is on the account.
                    run(method, task, place, resume=resume, account=None, on_step=self._tick, progress=self.progress)
                except PrivetError as error:
                    # A run whose attack failed is a run.
                    if _of_the_machine(error) or not (place / RECORD).exists():
                        raise
        return self._score(place, task)

    def finish(
        self,
        best: Best,
        others: Sequence[OtherRun] | None,
        command: Sequence[str],
        account: AccountStanding | None = None,
    ) -> RunRecord:
        """Move the best trial to the folder of the tuning, as the run that the tuning's ledger pays for."""
        plan, place, out = self.plan, self.place(best.trial), self.folder.path
        found, chosen, created = RunRecord.read(place), self.drawn.order[best.trial], str(self.kept["started"])
        for name in (found.model.weights, DATA_KEY, STEPS):
            if (place / name).exists():
                write_whole(out / name, (place / name).read_bytes(), mode=(place / name).stat().st_mode & 0o777)
        summary = TuningSummary(
            candidates=tuple(one.label for one in plan.candidates),
            chosen=plan.candidates[chosen].label,
            trials="" if plan.trials is None else str(plan.trials),
            score=plan.said_score(),
            best=best.score,
            one=plan.of_one(chosen).epsilon,
            all_once=plan.of_all_once().epsilon,
            event=plan.events[chosen].to_dict(),
        )
        seeds = dict.fromkeys(found.seeds, "secure" if plan.task.seed is None else str(plan.task.seed))
        replace(
            found,
            created=created,
            command=tuple(command),
            seeds=seeds,
            # The epsilons in it are those of one trial.
            history=(),
            # The date of an attack would reveal which trial it was.
            attacks=tuple(replace(one, date=created, command=tuple(command)) for one in found.attacks),
            others=None if others is None else tuple(others),
            account=account,
            tuning=summary,
            ledger_head=self.folder.ledger.head,
            accountant=plan.accountant,
        ).write(out)
        renew(out)
        return RunRecord.read(out)

    def _tick(self, _: Mapping[str, Any]) -> None:
        if self.on_tick is not None:
            self.on_tick()

    def _score(self, place: Path, task: Task) -> float:
        """The score of a trial's model on the choosing records; if they are protected, with noise that was charged in advance."""
        record, records, plan = RunRecord.read(place), self.plan.validation, self.plan
        own = record.model.name if record.model.name.startswith("py:") else ""
        predicted = scores(load_model(record, place, own), records).argmax(1)
        classes = len(task.dataset.classes)
        if plan.score is None:
            found = exactly(predicted, records.labels, classes).accuracy
        else:
            with Ledger.open(place / LEDGER) as ledger:
                plan.score.charge(ledger)
                randomness = Randomness.apart("score", task.seed)
                found = plan.score.read(
                    predicted, records.labels, classes, ledger=ledger, randomness=randomness, shares=records.shares
                ).accuracy
        return found if not math.isnan(found) else -math.inf

    def _charge(self, place: Path, planned: Event) -> None:
        """Charge what a trial did beyond the plan: a weaker guarantee, or uses repeated after a stop."""
        if not (place / LEDGER).exists():
            return
        found = Ledger.open(place / LEDGER, read_only=True).event
        extra = Counter(dict(tally(found))) - Counter(dict(tally(planned)))
        for event, count in extra.items():
            self.folder.ledger.record(event * count)
        known = self.folder.ledger.guarantee
        if weakest((known, found.guarantee)) != known:
            self.folder.ledger.record(NOTHING.under(found.guarantee))

    def _settle(self, place: Path) -> None:
        """Charge the steps that a killed trial will repeat, and take them out of its own ledger.

        Formal guarantees: the trial then has the same distribution as every other: it makes all of its steps, and its lost steps
        are charged separately. They are in the tuning's ledger before they are removed from the trial's. A trial that saved
        nothing starts again.
        """
        path, heads = place / LEDGER, set[str]()
        with suppress(PrivetError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = load_checkpoint(place)
            heads = heads_after(place) | ({str(state["ledger_head"])} if state is not None else set())
        lines = path.read_bytes().splitlines(keepends=True)
        marks = [f'"hash": "{head}"'.encode() for head in heads]
        last = max((at for at, line in enumerate(lines, 1) if any(mark in line for mark in marks)), default=0)
        kept = b"".join(lines[:last])
        whole = Counter(dict(tally(Ledger.open(path, read_only=True).event)))
        if kept:
            write_whole(place / "kept.jsonl", kept)
            whole -= Counter(dict(tally(Ledger.open(place / "kept.jsonl", read_only=True).event)))
        for event, count in whole.items():
            self.folder.ledger.record(event * count)
        if not kept:
            shutil.rmtree(place)
            return
        (place / NEWEST_HEAD).unlink(missing_ok=True)
        os.replace(place / "kept.jsonl", path)

    def _state(self) -> tuple[int, Best | None]:
        path = self.working / STATE
        if not path.exists():
            return 0, None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return int(found["done"]), None if found["best"] is None else Best(**found["best"])
        except (ValueError, KeyError, TypeError) as error:
            raise PrivetError(f"{path} is damaged ({error}): start again in another folder.") from None

    def _clean(self, done: int, best: Best | None) -> None:
        """Delete the folders of finished trials, except the best."""
        kept = None if best is None else self.place(best.trial)
        for number in range(done):
            if self.place(number) != kept:
                shutil.rmtree(self.place(number), ignore_errors=True)
                self.said(number).unlink(missing_ok=True)

    def _note(self, number: int, error: Exception) -> None:
        """Keep the error, only for people who may see the records."""
        path = self.working / FAILURES
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        label = self.plan.candidates[self.drawn.order[number]].label
        said = "".join(traceback.format_exception(error))
        write_whole(path, f"{before}{label}:\n{said}\n".encode())

    def _write(self, path: Path, facts: Mapping[str, Any]) -> None:
        try:
            write_whole(path, (json.dumps(facts) + "\n").encode())
        except OSError as error:
            raise PrivetError(f"{path} cannot be written: {error.strerror}. Make room and resume.") from None


def _stopped(reason: str) -> PrivetError:
    """The error names no path, because a path could reveal which trial it was."""
    return PrivetError(
        f"The tuning cannot go on: {reason}. What it has spent is in its ledger; fix the problem and resume it."
    )


def _of_the_machine(error: BaseException | None) -> str:
    """The machine's problem behind an error, such as a full disk or too little memory; empty if the trial itself failed."""
    while error is not None:
        if isinstance(error, MemoryError):
            return "there is not enough memory"
        if isinstance(error, OSError):
            return error.strerror or type(error).__name__
        error = error.__cause__ or error.__context__
    return ""
