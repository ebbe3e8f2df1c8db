"""The live table: where every method stands, with its delta, and the time left of the work that it does now."""

import io
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from privet.audit import Audit, Claim
from privet.cli.progress import _audited, _live_table, board
from privet.privacy import ApproximateDP, Ledger
from privet.runs.comparison import Compared, Comparison
from privet.runs.job import Row
from privet.runs.race import Lane


@pytest.fixture
def lanes(monkeypatch):
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    running, auditing, waiting, failed = (Lane(f"m{n}", f"Method {n}", Path("x")) for n in range(4))
    for lane in (running, auditing):
        lane.began_this = 90.0
    running.hear({"step": 20, "steps": 100, "loss": 1.0, "accuracy": 0.91, "epsilon": 1.5, "guarantee": "proved"})
    running.began_this = 90.0
    auditing.hear({"what": "Auditing", "step": 1, "steps": 4})
    auditing.began_this = 98.0
    failed.row = Row("a", "A", "failed", "it broke", seconds=3.0)
    return [running, auditing, waiting, failed]


def test_each_row_says_what_is_known(lanes):
    console = Console(width=160, file=io.StringIO(), force_terminal=False)
    console.print(_live_table(lanes, 1e-5))
    first, second, third, fourth = [line for line in console.file.getvalue().splitlines() if line.startswith("│")]
    assert "Epsilon at 1e-05" in console.file.getvalue()
    assert "Training" in first and "91.0 %" in first and "1.50" in first and "40 s" in first
    assert "Auditing" in second and "6 s" in second
    assert "waiting" in third
    assert "failed" in fourth


def test_a_claimed_epsilon_is_called_claimed(lanes):
    lanes[0].standing |= {"guarantee": "only claimed by a paper: it leaks"}
    console = Console(width=160, file=io.StringIO())
    console.print(_live_table(lanes, 1e-5))
    assert "1.50 (claimed)" in console.file.getvalue()


def test_in_a_log_each_that_ends_has_one_line(lanes, capsys):
    with board(1e-5) as show:
        show(lanes)
        show(lanes)
    assert capsys.readouterr().err == f"{lanes[3].title}: failed in 3 s: it broke\n"
    with board(1e-5, quiet=True) as show:
        show(lanes)
    assert capsys.readouterr().err == ""


def test_in_a_log_there_is_a_line_now_and_then(lanes, monkeypatch, capsys):
    with board(1e-5) as show:
        monkeypatch.setattr("time.monotonic", lambda: 100.0 + 16)
        show(lanes)
        show(lanes)
    _, line = capsys.readouterr().err.splitlines()
    assert line == f"{lanes[0].key}: Training 20/100, 104 s left; {lanes[1].key}: Auditing 1/4, 54 s left"


def test_on_a_terminal_the_table_is_live(lanes, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with redirect_stderr(Terminal()) as terminal, board(1e-5) as show:
        show(lanes)
    assert lanes[0].key in terminal.getvalue()


def measured_run(accuracy: float, low: float, high: float, epsilon: float = 1.0, *, refuted: bool = False) -> Compared:
    ledger = Ledger()
    ledger.record(ApproximateDP(epsilon, 1e-5))
    utility = SimpleNamespace(low=low, high=high, level=0.95, noise=0.0)
    audits = (SimpleNamespace(refuted=True),) if refuted else ()
    record = SimpleNamespace(audits=audits, utility=utility, accuracy=accuracy)
    return Compared(Row(f"{accuracy}", f"{accuracy}", "done"), record, ledger.spent(1e-5))


def test_differences_within_noise_are_named_and_a_refuted_method_is_never_the_best():
    best, tied = measured_run(0.90, 0.88, 0.92), measured_run(0.88, 0.86, 0.90)
    clear, refuted = measured_run(0.80, 0.78, 0.82), measured_run(0.99, 0.98, 1.0, refuted=True)
    vacuous = measured_run(0.91, 0.89, 0.93, 3000.0)
    result = Comparison(SimpleNamespace(), (tied, refuted, best, clear, vacuous), None)
    assert result.best is best
    assert result.within_noise == (tied,)
    # By hand: 0.9 - 0.88 is at most the root of 0.02^2 + 0.02^2; a difference of 0.03 is not.
    assert Comparison(SimpleNamespace(), (best, measured_run(0.87, 0.85, 0.89)), None).within_noise == ()
    assert Comparison(SimpleNamespace(), (refuted, vacuous), None).best is None


@pytest.mark.parametrize(("ceiling", "bound", "powerless"), [(0.5, 0.2, True), (4.0, 0.2, False), (1.0, 0.2, True)])
def test_an_audit_that_could_not_have_refuted_anything_is_flagged(ceiling, bound, powerless):
    audit = Audit("One step", Claim(1.0, 1e-5, "x"), bound, ceiling, 0.99, "m", "e")
    assert audit.powerless is powerless
    ledger = Ledger()
    ledger.record(ApproximateDP(1.0, 1e-5))
    outcome = Compared(Row("a", "A", "done"), SimpleNamespace(audits=(audit,)), ledger.spent(1e-5))
    assert ("without power" in _audited(outcome)) is powerless


@pytest.mark.parametrize(("claimed", "said"), [(0.4, "0.21 of 0.4, of a part of the run"), (2.999, "0.21 of 3")])
def test_the_audit_of_a_step_is_not_shown_as_one_of_the_run(claimed, said):
    ledger = Ledger()
    ledger.record(ApproximateDP(3.0, 1e-5))
    one = SimpleNamespace(lower_bound=0.21, claimed_epsilon=claimed, refuted=False, powerless=False)
    outcome = Compared(Row("a", "A", "done"), SimpleNamespace(audits=(one,)), ledger.spent(1e-5))
    assert _audited(outcome) == said
