"""The page of a comparison: one self-contained file, made from the runs in its folder."""

from __future__ import annotations

import shlex
from pathlib import Path

from jinja2 import ChoiceLoader, PackageLoader
from markupsafe import Markup

from privet.compare.result import Outcome, Result
from privet.io import write_whole
from privet.privacy.spent import round_up
from privet.report import figures
from privet.report.page import environment

FILE = "report.html"


def write_comparison(result: Result, out: Path) -> Path:
    """Write `report.html`, whole or not at all; made again, it has the same bytes."""
    return write_whole(out / FILE, render_comparison(result).encode(), mode=result.internal_mode)


def render_comparison(result: Result) -> str:
    made = environment()
    made.loader = ChoiceLoader([PackageLoader("privet.compare"), PackageLoader("privet.report")])
    done = [outcome for outcome in result.outcomes if outcome.record is not None]
    return made.get_template("compare.html.j2").render(
        job=result.job,
        outcomes=result.outcomes,
        done=done,
        others=[outcome for outcome in result.outcomes if outcome.record is None],
        record=done[0].record if done else None,
        best=result.best,
        epsilon=round_up(result.job.epsilon),
        together=str(result.together) if result.together is not None else "",
        figure=Markup(figures.accuracies([_drawn(outcome) for outcome in done])) if done else "",
        few=any(outcome.lowest_rate and not _resolved(outcome) for outcome in done),
        resolved=_resolved,
        command=shlex.join(result.job.command),
    )


def _resolved(outcome: Outcome) -> bool:
    attack = outcome.record.attack if outcome.record else None
    return attack is not None and attack.resolves(attack.rates[0])


def _drawn(outcome: Outcome) -> figures.Measured:
    record, interval = outcome.record, outcome.interval
    assert record is not None
    low, high = (interval.low, interval.high) if interval is not None else (record.accuracy, record.accuracy)
    return figures.Measured(outcome.row.title, record.accuracy, low, high, outcome.holds)
