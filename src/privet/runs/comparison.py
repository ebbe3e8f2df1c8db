"""A finished comparison: the rows with their runs, the cost of all of them together, and the page."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, PackageLoader
from markupsafe import Markup

from privet.attacks.result import AttackResult, Interval, Rate
from privet.audit import Audit
from privet.errors import InputError, PrivetError
from privet.io import build, check_inside, from_json, read_text, write_whole
from privet.io.names import LEDGER
from privet.privacy import Ledger, Spent, Together
from privet.privacy.spent import round_up
from privet.report import OtherRun, RunRecord, figures, renew, words
from privet.report.others import distinct, find_others, of_folder, together
from privet.report.page import environment
from privet.report.statement import accuracy_interval, standing
from privet.runs.job import Job, Row
from privet.training.folder import alone_in

FILE, PAGE = "compare.json", "report.html"


@dataclass(frozen=True, eq=False)
class Compared:
    """A row with the results of its run; there is no run if the method failed or was left out."""

    row: Row
    record: RunRecord | None = None
    spent: Spent | None = None

    @property
    def standing(self) -> words.Standing | None:
        if self.record is None or self.spent is None:
            return None
        return standing(self.record, self.spent)

    @property
    def holds(self) -> bool:
        """Whether its statement is neither only claimed nor vacuous."""
        return self.standing is not None and self.standing.protects

    @property
    def interval(self) -> Interval | None:
        return accuracy_interval(self.record) if self.record is not None else None

    @property
    def audit(self) -> Audit | None:
        """An audit that refutes the statement, or else the last one, which covers the whole training if any does."""
        audits = self.record.audits if self.record is not None else ()
        return next((audit for audit in audits if audit.refuted), audits[-1] if audits else None)

    @property
    def whole_audit(self) -> bool:
        """Whether that audit covers the whole run, to 1 % of its epsilon: a bound for one step says nothing about all steps."""
        if self.audit is None or self.spent is None:
            return False
        return math.isclose(self.audit.claimed_epsilon, self.spent.epsilon, rel_tol=0.01)

    @property
    def lowest_rate(self) -> Rate | None:
        return self.record.attack.rates[0] if self.record is not None and self.record.attack else None

    def facts(self) -> dict[str, Any]:
        """The row as plain data; figures from private records without noise are under "internal"."""
        found: dict[str, Any] = dataclasses.asdict(self.row)
        if self.record is None or self.spent is None:
            return found
        public, utility = self.record.data.public, self.record.released_utility
        inside: dict[str, Any] = found if public else {}
        found |= {
            "accuracy": utility.accuracy if utility else None,
            "spent": self.spent.to_dict(),
            "statement": str(self.spent),
        }
        if utility is None:
            inside["accuracy"] = self.record.accuracy
        if self.record.attack is not None:
            inside["attack"] = _figures(self.record.attack)
            inside["attacks"] = [_figures(attack) for attack in self.record.attacks]
        found["audit"] = self.audit.to_dict() if self.audit is not None else None
        if not public:
            found["internal"] = inside
        return found


def _figures(attack: AttackResult) -> dict[str, Any]:
    rates = {f"{rate.fpr:g}": rate.tpr for rate in attack.rates}
    return {
        "key": attack.key,
        "name": attack.name,
        "auc": attack.auc,
        "low": attack.low,
        "high": attack.high,
        "tpr_at": rates,
    }


@dataclass(frozen=True, eq=False)
class Comparison:
    """A finished comparison."""

    job: Job
    outcomes: tuple[Compared, ...]
    together: Together | None
    """The cost of all runs together, including those found beside the comparison: choosing among them costs this."""
    beside: tuple[str, ...] = ()
    """The names of the runs on the same records that were found beside the comparison."""

    @property
    def best(self) -> Compared | None:
        """The most accurate method whose statement holds."""
        sound = [outcome for outcome in self.outcomes if outcome.holds]
        return max(sound, key=lambda outcome: (outcome.record and outcome.record.accuracy) or 0.0, default=None)

    @property
    def within_noise(self) -> tuple[Compared, ...]:
        """The methods that hold and whose accuracy may equal that of the best: the difference is within its 95 % interval.

        Newcombe's interval for the difference of two shares, from the interval of each. It counts the noise of the test records
        alone: every method was run once, so nothing is known about other seeds.
        """
        best = self.best
        if best is None:
            return ()
        others = (outcome for outcome in self.outcomes if outcome is not best and outcome.holds)
        return tuple(outcome for outcome in others if _may_equal(best, outcome))

    @property
    def internal_mode(self) -> int:
        """The permissions of the comparison's files, which show figures computed from the records."""
        modes = [outcome.record.internal_mode for outcome in self.outcomes if outcome.record is not None]
        return min(modes, default=0o600)

    def to_dict(self) -> dict[str, Any]:
        return {
            "job": dataclasses.asdict(self.job),
            "together": str(self.together) if self.together is not None else None,
            "best": self.best.row.method if self.best is not None else None,
            "within_noise_of_the_best": [outcome.row.method for outcome in self.within_noise],
            "rows": [outcome.facts() for outcome in self.outcomes],
        }


def _may_equal(best: Compared, other: Compared) -> bool:
    """Whether the interval of the difference of two accuracies holds zero; without intervals, nothing tells them apart."""
    first, second = best.interval, other.interval
    if first is None or second is None or best.record is None or other.record is None:
        return True
    high, low = best.record.accuracy or 0.0, other.record.accuracy or 0.0
    return high - low <= math.hypot(high - first.low, second.high - low)


def finish(
    job: Job, out: Path, rows: Sequence[Row], left_out: Mapping[str, str], fingerprints: Sequence[str]
) -> Comparison:
    """Count every run of the comparison in the card of every other, and write `compare.json`."""
    all_runs = _runs(out)
    before = distinct([run for mark in fingerprints for run in find_others(out, mark)])
    for row in rows:
        if row.state == "done":
            _count(out / row.method, distinct([*before, *all_runs]))
    rows = [*rows, *(Row(key, key, "left out", reason) for key, reason in left_out.items())]
    result = _comparison(job, rows, out)
    text = json.dumps(result.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(out / FILE, f"{text}\n".encode(), mode=result.internal_mode)
    return result


def read_result(out: Path) -> Comparison:
    """Read a finished comparison from its folder: the rows of `compare.json` and their runs."""
    check_inside(out)
    if not (out / FILE).exists():
        raise InputError(f"{out}: this comparison is not finished; call privet compare again to continue it.")
    try:
        plain = from_json(read_text(out / FILE), 1 << 63)
        known = {field.name for field in dataclasses.fields(Row)}
        rows = [build(Row, {name: value for name, value in row.items() if name in known}) for row in plain["rows"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{out / FILE} is damaged ({error}); call privet compare again.") from None
    for row in rows:
        # A row from somebody else's file must not point to other folders.
        if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,99}", row.method):
            raise InputError(f"{out / FILE} is damaged: {row.method[:100]!r} is no method.")
    return _comparison(Job.read(out), rows, out)


def _outcome(row: Row, out: Path) -> Compared:
    if row.state != "done":
        return Compared(row)
    record = RunRecord.read(out / row.method)
    return Compared(row, record, record.spent(record.open_ledger(out / row.method)))


def _runs(out: Path) -> tuple[OtherRun, ...]:
    """Every folder with a ledger: failed and stopped runs have used the records, too."""
    found: list[OtherRun] = []
    for path in sorted(out.glob(f"*/{LEDGER}")):
        try:
            if Ledger.open(path, read_only=True).used:  # a run that failed before its first release used nothing
                found += of_folder(path.parent)[:1]
        except PrivetError:
            continue  # its first line was never written: nothing was used
    return distinct(found)


def _count(folder: Path, everybody: Sequence[OtherRun]) -> None:
    with alone_in(folder):  # somebody may attack the run meanwhile
        record, own = RunRecord.read(folder), of_folder(folder)[0]
        others = tuple(run for run in everybody if run.identity != own.identity)
        if others != record.others:
            dataclasses.replace(record, others=others).write(folder)
            renew(folder)


def _comparison(job: Job, rows: Sequence[Row], out: Path) -> Comparison:
    outcomes = tuple(_outcome(row, out) for row in rows)
    first = next((outcome for outcome in outcomes if outcome.record is not None), None)
    if first is None or first.record is None:
        return Comparison(job, outcomes, None)
    own = {run.identity for run in _runs(out)}
    beside = tuple(run.name for run in first.record.others or () if run.identity not in own)
    ledger = first.record.open_ledger(out / first.row.method)
    return Comparison(job, outcomes, together(first.record, ledger), beside)


def write_comparison(result: Comparison, out: Path) -> Path:
    """Write `report.html` atomically. The same comparison always gives the same bytes."""
    return write_whole(out / PAGE, render_comparison(result).encode(), mode=result.internal_mode)


def render_comparison(result: Comparison) -> str:
    made = environment()
    made.loader = ChoiceLoader([PackageLoader("privet.runs"), PackageLoader("privet.report")])
    done = [outcome for outcome in result.outcomes if outcome.record is not None]
    return made.get_template("compare.html.j2").render(
        job=result.job,
        outcomes=result.outcomes,
        done=done,
        others=[outcome for outcome in result.outcomes if outcome.record is None],
        record=done[0].record if done else None,
        best=result.best,
        tied=result.within_noise,
        epsilon=round_up(result.job.epsilon),
        together=str(result.together) if result.together is not None else "",
        beside=result.beside,
        figure=Markup(figures.accuracies([_drawn(outcome) for outcome in done])) if done else "",
        few=any(outcome.lowest_rate and not _resolved(outcome) for outcome in done),
        resolved=_resolved,
        command=shlex.join(result.job.command),
    )


def _resolved(outcome: Compared) -> bool:
    attack = outcome.record.attack if outcome.record else None
    return attack is not None and attack.resolves(attack.rates[0])


def _drawn(outcome: Compared) -> figures.MethodAccuracy:
    record, interval = outcome.record, outcome.interval
    assert record is not None and record.accuracy is not None
    low, high = (interval.low, interval.high) if interval is not None else (record.accuracy, record.accuracy)
    return figures.MethodAccuracy(outcome.row.title, record.accuracy, low, high, outcome.holds)
