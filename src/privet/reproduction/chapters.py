"""From the results that exist to the chapters of the page: nothing is computed here but formulas."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path

from privet import recipes
from privet.recipes import comparison
from privet.recipes.comparison import Line, Measured
from privet.recipes.methods import CLAIMED, method_named
from privet.reproduction.entry import FAILED, NOT_RUN, Chapter, Entry, Section
from privet.reproduction.figure import PICTURE, read_errors
from privet.reproduction.formulas import FORMULAS
from privet.reproduction.results import Results
from privet.reproduction.source import Part, Source, sources
from privet.synthesis import table as students

ACCURACY, AREA, EPSILON, ERROR = "accuracy %", "AUC of the attack", "epsilon", "error of the recovered picture"
ABOVE = "as said above the table"
Failures = Mapping[tuple[str, str], str]
"""By part and line: why a line has no result."""


def gather(folder: Path, failures: Failures | None = None) -> tuple[Chapter, ...]:
    """The page's content from a folder of results; lines without one say how to get it."""
    results = Results(folder)
    return tuple(_chapter(source, results, failures or {}) for source in sources())


def _chapter(source: Source, results: Results, failures: Failures) -> Chapter:
    made = [Section("Computed, without any training", entries=tuple(_checks(source)))] if source.checks else []
    made += [_section(part, results, failures) for part in source.parts]
    return Chapter(source.title, source.by, tuple(made), tuple((a.what, a.published, a.why) for a in source.absent))


def _checks(source: Source) -> Iterator[Entry]:
    for check in source.checks:
        ours = FORMULAS[check.compute](**check.arguments)
        claimed = check.compute != "moments"
        yield Entry(check.what, EPSILON, check.published, ours, differs=check.differs, claimed=claimed)


def _section(part: Part, results: Results, failures: Failures) -> Section:
    if part.kind == "recipe":
        chosen = recipes.load(part.name)
        entries = _of_recipe(part.name, results, failures)
        return Section(part.what, part.name, chosen.why, chosen.differs, part.beside, tuple(entries))
    if part.kind == "students":
        table = students.load(part.name)
        entries = _of_students(part.name, results, failures)
        return Section(part.what, part.name, table.why, table.differs, part.beside, tuple(entries))
    if part.kind == "comparison":
        compared = comparison.load(part.name)
        entries = _of_comparison(part.name, results, failures)
        return Section(part.what, part.name, compared.why, compared.differs, part.beside, tuple(entries))
    entries = _of_figure(part.name, results, failures)
    shown = ((PICTURE, "A picture, its features, and what is recovered from them"),) if results.picture(PICTURE) else ()
    return Section(part.what, part.name, entries=tuple(entries), pictures=shown)


def _of_recipe(name: str, results: Results, failures: Failures) -> Iterator[Entry]:
    chosen = recipes.load(name)
    rows = {(row.method, row.epsilon): row for row in results.rows() if row.recipe == name}
    for method in chosen.methods:
        for epsilon in chosen.epsilons:
            paper, row = chosen.published_near(epsilon), rows.get((method, epsilon))
            title = method_named(method).title
            again = f"privet reproduce {name} --epsilon {epsilon:g}"
            again += f" --method {method}" if len(chosen.methods) > 1 else ""
            yield Entry(
                what=title,
                quantity=ACCURACY,
                published=paper.accuracy if paper else None,
                ours=100 * row.accuracy if row else None,
                std=100 * row.std if row and row.std is not None else None,
                seeds=row.seeds if row else 0,
                seconds=row.seconds if row else 0.0,
                at=epsilon,
                beside=_by(paper.by, paper.epsilon, epsilon) if paper else "",
                differs=paper.differs if paper else "",
                command=row.command if row else again,
                claimed=CLAIMED in title,
                state=_state(bool(row), (name, f"{method} {epsilon:g}") in failures),
                reason=failures.get((name, f"{method} {epsilon:g}"), ""),
            )


def _by(who: str, theirs: float, ours: float) -> str:
    return who if theirs == ours else f"{who}, at epsilon {theirs:g}"


def _of_students(name: str, results: Results, failures: Failures) -> Iterator[Entry]:
    chosen = students.load(name)
    rows = {row.method: row for row in results.rows() if row.recipe == name}
    for number, line in enumerate(chosen.lines, 1):
        for student in chosen.students:
            row = rows.get(f"{line.key}/{student}")
            yield Entry(
                what=f"{line.title}: student {student}",
                quantity=ACCURACY,
                published=line.published.get(student),
                ours=100 * row.accuracy if row else None,
                std=100 * row.std if row and row.std is not None else None,
                seeds=row.seeds if row else 0,
                seconds=row.seconds if row else 0.0,
                at=line.epsilon or None,
                differs=line.differs,
                command=row.command if row else f"privet reproduce {name} --line {number}",
                claimed=students.CLAIMED in line.title,
                state=_state(bool(row), (name, line.key) in failures),
                reason=failures.get((name, line.key), ""),
            )


def _of_comparison(name: str, results: Results, failures: Failures) -> Iterator[Entry]:
    chosen = comparison.load(name)
    found: dict[str, list[Measured]] = {}
    for one in results.measured(name):
        found.setdefault(one.title, []).append(one)
    for number, line in enumerate(chosen.lines, 1):
        title = line.title(chosen.depth)
        group = found.get(title, [])
        published = {ACCURACY: line.published.accuracy, AREA: line.published.auc} if line.published else {}
        ours = {ACCURACY: [100 * m.test_accuracy for m in group], AREA: [m.attack.auc for m in group]}
        for quantity, values in ours.items():
            yield Entry(
                what=title,
                quantity=quantity,
                published=published.get(quantity),
                ours=statistics.fmean(values) if values else None,
                std=statistics.stdev(values) if len(values) > 1 else None,
                seeds=len(values),
                seconds=statistics.fmean(m.seconds for m in group) if group else 0.0,
                differs=(line.published.differs if line.published else "") or (ABOVE if chosen.differs else ""),
                command=shlex.join(["privet", "reproduce", name, "--line", str(number)]),
                claimed=_is_claimed(line),
                state=_state(bool(group), (name, title) in failures),
                reason=failures.get((name, title), ""),
            )


def _is_claimed(line: Line) -> bool:
    return bool(line.gamma) and not line.dpsgd


def _of_figure(name: str, results: Results, failures: Failures) -> Iterator[Entry]:
    errors = read_errors(results.folder)
    command = f"privet reproduce {name}"
    for what, error in errors.items():
        yield Entry(what, ERROR, ours=error, command=command)
    if not errors:
        state, reason = _state(False, (name, "") in failures), failures.get((name, ""), "")
        yield Entry("with and without noise", ERROR, command=command, state=state, reason=reason)


def _state(done: bool, failed: bool) -> str:
    """Why there is no number of ours; an older result stands also where a newer run failed."""
    return "" if done else FAILED if failed else NOT_RUN
