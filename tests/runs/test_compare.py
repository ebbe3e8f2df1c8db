"""A small comparison on digits: killed in the middle and resumed, with one method that fails."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from importlib import resources
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privet import data
from privet.cli import app
from privet.errors import InputError
from privet.io import Lock
from privet.io.names import LOCK
from privet.io.registry import load_plugin
from privet.methods import DataSpec, Power, Task
from privet.privacy import Claimed, Gaussian, Ledger, PoissonSampled
from privet.report import RunRecord
from privet.runs import Measuring
from privet.runs.comparison import Compared, finish, render_comparison, write_comparison
from privet.runs.job import Clock, Job, Row, TimeIsUp, fitting
from privet.runs.race import Lane, _Said, compete, race, run_method
from tests.report.test_browser import BROWSER, look
from tests.runs.worker import quick

HERE = Path(__file__).parent
PLUGIN = HERE / "broken_method.py"
STEPS = 30


def sourced() -> dict[str, str]:
    """The environment in which a script of this folder finds the package as this process does."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> str:
    text = resources.files("privet.methods").joinpath("recipes", "digits-linear.yaml").read_text(encoding="utf-8")
    path = tmp_path_factory.mktemp("recipes") / "short.yaml"
    path.write_text(text.replace("epochs: 10", "epochs: 3"), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def compared(tmp_path_factory, recipe):
    """The folder of a comparison that was killed in the middle and resumed, and what came out of it."""
    out = tmp_path_factory.mktemp("runs") / "compare"
    keys = ("dpsgd", "broken", "optimized-noise-elliptical")
    job = Job(
        DataSpec("digits"),
        3.0,
        1e-5,
        keys,
        seed=1,
        settings={"recipe": recipe},
        measuring=Measuring(attacks=("loss", "distance", "rmia")),
        plugins=(str(PLUGIN),),
        command=("privet", "compare", "--data", "digits"),
    )
    job.keep(out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", sourced()["PYTHONPATH"])
        killed = subprocess.run(
            [sys.executable, str(HERE / "killed.py"), str(out)],
            env=sourced(),
            capture_output=True,
            timeout=300,
        )
        assert killed.returncode == -9, killed.stderr
        done_before = len(Ledger.open(out / "dpsgd" / "ledger.jsonl", read_only=True))
        assert 10 < done_before < STEPS
        load_plugin(PLUGIN)
        Job.read(out).keep(out)  # the same job again goes on
        seen: set[str] = set()
        wait_for_the_lock(out / "dpsgd" / "ledger.jsonl")
        rows = race(
            keys,
            out,
            one=quick,
            on_change=lambda lanes: seen.update(lane.state for lane in lanes),
        )
        result = finish(job, out, rows, {"pate": "there are no public records"}, (data.load("digits").origin,))
    assert "running" in seen
    return out, result


def wait_for_the_lock(ledger: Path) -> None:
    """The orphaned worker sees that its parent is gone, and ends."""
    end = time.monotonic() + 60
    while True:
        try:
            Ledger.open(ledger).close()
            return
        except Exception:
            assert time.monotonic() < end, "the worker outlived the process that started it"
            time.sleep(0.1)


def test_one_failure_is_a_row_and_stops_nobody(compared):
    _, result = compared
    assert [(o.row.method, o.row.state) for o in result.outcomes] == [
        ("dpsgd", "done"),
        ("broken", "failed"),
        ("optimized-noise-elliptical", "done"),
        ("pate", "left out"),
    ]
    assert result.outcomes[1].row.reason == "This method is broken on purpose."


def test_what_was_killed_went_on_where_it_was(compared):
    out, result = compared
    assert len(RunRecord.read(out / "dpsgd").open_ledger(out / "dpsgd")) == STEPS
    assert result.outcomes[0].spent.epsilon <= 3


def test_every_run_is_attacked_audited_and_measured(compared):
    _, result = compared
    first, _, second, _ = result.outcomes
    assert first.audit.name == f"{first.record.method}, {STEPS} steps"
    assert first.audit.claimed_epsilon == pytest.approx(first.spent.epsilon, rel=0.02)
    for outcome in (first, second):
        assert [attack.key for attack in outcome.record.attacks] == ["loss", "rmia"]  # distance is for data
        assert outcome.row.seconds > 0
        assert outcome.row.peak_megabytes > 50


def test_every_attack_is_on_the_page_and_the_most_successful_one_in_the_table(compared):
    _, result = compared
    page, plain = render_comparison(result), result.to_dict()["rows"][0]
    listed = page.split('<table id="attacks" class="many">')[1].split("</table>")[0]
    for attack in result.outcomes[0].record.attacks:
        assert attack.name in listed and f"{attack.auc:.3f} ({attack.low:.3f} to {attack.high:.3f})" in listed
    assert plain["attack"]["low"] == max(attack["low"] for attack in plain["attacks"])
    assert [attack["key"] for attack in plain["attacks"]] == ["loss", "rmia"]


def test_attacks_and_audits_that_a_stop_prevented_are_made_later(compared, tmp_path, monkeypatch):
    out, _ = compared
    shutil.copytree(out, tmp_path / "c")
    folder = tmp_path / "c" / "dpsgd"
    record = RunRecord.read(folder)
    dataclasses.replace(record, attacks=record.attacks[:1], audits=()).write(folder)
    monkeypatch.setattr("privet.runs.race.POWER", Power(draws=400, canaries=100))
    compete(Job.read(tmp_path / "c"), "dpsgd", folder, lambda _: None)
    again = RunRecord.read(folder)
    assert again.attacks[0] == record.attacks[0]
    assert [attack.key for attack in again.attacks] == ["loss", "rmia"]
    assert [audit.name for audit in again.audits] == [audit.name for audit in record.audits]
    assert again.ledger_head == record.ledger_head  # nothing was spent


def test_a_refuted_audit_is_the_one_that_is_shown(compared):
    _, result = compared
    first = result.outcomes[0]
    refuted = dataclasses.replace(first.audit, lower_bound=2 * first.audit.claimed_epsilon)
    record = dataclasses.replace(first.record, audits=(refuted, first.audit))
    found = Compared(first.row, record, first.spent)
    assert found.audit is refuted and not found.holds


def test_the_cards_count_every_run_of_the_comparison(compared):
    out, result = compared
    record = RunRecord.read(out / "dpsgd")
    assert [run.name for run in record.others] == ["optimized-noise-elliptical"]
    assert str(result.together) in (out / "dpsgd" / "CARD.md").read_text()
    assert result.beside == () and "found beside this folder" not in render_comparison(result)
    beside = dataclasses.replace(result, beside=("tuning",))
    assert "the runs that were found beside this folder (tuning)" in render_comparison(beside)
    assert result.together.epsilon > max(o.spent.epsilon for o in result.outcomes if o.spent)


def raises(*_: object) -> Row:
    raise AssertionError("nothing is run")


def test_a_second_time_nothing_is_run_again_and_the_page_has_the_same_bytes(compared):
    out, result = compared
    first = render_comparison(result)
    rows = race(["dpsgd", "optimized-noise-elliptical"], out, one=raises)
    assert [row.state for row in rows] == ["done", "done"]
    assert first == render_comparison(result)
    plain = json.loads((out / "compare.json").read_text())
    assert plain["rows"][0]["statement"] == str(result.outcomes[0].spent)
    assert plain["rows"][1]["state"] == "failed"


def test_the_verb_report_makes_the_same_page_from_the_folder(compared):
    out, result = compared
    made = CliRunner().invoke(app, ["report", str(out)], env={"COLUMNS": "200"})
    assert made.exit_code == 0, made.output
    assert "✓ proved" in made.output and "failed: This method is broken" in made.output
    assert (out / "report.html").read_text() == render_comparison(result)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is damaged"),
        ('{"rows": [{"method": "../x", "title": "X", "state": "done"}]}', "is no method"),
        (None, "is not finished"),
    ],
)
def test_a_damaged_comparison_gets_one_sentence(compared, tmp_path, content, sentence):
    out, _ = compared
    (tmp_path / "job.json").write_bytes((out / "job.json").read_bytes())
    if content:
        (tmp_path / "compare.json").write_text(content)
    made = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert made.exit_code == 2
    assert sentence in made.stderr and made.stderr.count("\n") == 1


def test_the_page_says_what_is_proved_and_what_it_cost_to_look(compared):
    _, result = compared
    page = render_comparison(result)
    assert "This method is broken on purpose." in page
    assert "there are no public records" in page
    assert re.search(r'id="together">epsilon = ', page)
    assert '<tr class="proved">' in page and '<tr class="claimed">' not in page
    assert "No theorem that is known here" not in page
    assert "No theorem that is known here" in render_comparison(dataclasses.replace(result, together=None))
    assert f"<dd>{result.outcomes[0].record.settings['Steps']}</dd>" in page


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on the PATH (Debian: apt install chromium)")
@pytest.mark.parametrize("width", [320, 1280])
def test_the_page_fits_in_a_browser(compared, width, tmp_path):
    out, result = compared
    seen, log = look(write_comparison(result, out), width, tmp_path)
    assert seen["overflow"] <= 0
    assert seen["wide"] == []
    assert seen["figures"] == ["accuracies"]
    assert seen["requests"] == []
    assert ":CONSOLE" not in log
    assert seen["statement"] == str(result.best.spent)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--methods", "magic"], "There is no method 'magic'"),
        (["--methods", "pate"], "None of these methods fits digits: it learns from public records"),
        (["--epsilon", "0"], "--epsilon must be a number above 0"),
        (["--attacks", "magic"], "There is no attack 'magic'"),
        (["--methods", "dpsgd", "--attacks", "loss,distance"], "The attack distance fits none of these methods"),
    ],
)
def test_bad_usage_is_said_before_anything_is_written(tmp_path, options, sentence):
    made = CliRunner().invoke(app, ["compare", "--data", "digits", "--out", str(tmp_path / "c"), *options])
    assert made.exit_code == 2
    assert sentence in made.stderr
    assert not (tmp_path / "c").exists()


def test_a_claim_is_hatched_and_never_the_best(compared):
    _, result = compared
    first, broken, second, left = result.outcomes
    ledger = Ledger()
    ledger.record(PoissonSampled(0.1, Gaussian(9.0)).under(Claimed("a paper", "it leaks")), 10)
    claimed = Compared(first.row, dataclasses.replace(first.record, test_accuracy=1.0), ledger.spent(1e-5))
    changed = dataclasses.replace(result, outcomes=(claimed, broken, second, left))
    page = render_comparison(changed)
    assert '<tr class="claimed">' in page
    assert "only claimed" in page.split('aria-label="Accuracy of each method')[1][:200]
    assert changed.best is second
    assert dataclasses.replace(result, outcomes=(claimed,)).best is None


def test_another_job_in_the_same_folder_is_refused(compared):
    out, result = compared
    with pytest.raises(InputError, match="holds another comparison"):
        dataclasses.replace(result.job, epsilon=1.0).keep(out)
    with pytest.raises(InputError, match="something else than a comparison"):
        result.job.keep(out / "dpsgd")


def test_a_row_that_is_done_is_not_run_again_by_a_second_worker(compared):
    """A cluster that has given up a worker sends its work to another one, and the first may have ended it meanwhile."""
    out, result = compared
    before = (out / "dpsgd" / "ledger.jsonl").read_bytes()
    assert run_method(out, "dpsgd") == result.outcomes[0].row
    assert (out / "dpsgd" / "ledger.jsonl").read_bytes() == before


def test_a_second_worker_waits_for_the_first(compared, monkeypatch):
    out, result = compared
    monkeypatch.setattr("privet.runs.race.SECONDS_BUSY", 30.0)
    held, began = Lock(out / "dpsgd" / LOCK), time.monotonic()
    threading.Timer(0.5, held.release).start()
    assert run_method(out, "dpsgd") == result.outcomes[0].row
    assert time.monotonic() - began >= 0.5
    (out / "dpsgd" / LOCK).unlink()


def test_progress_is_read_from_the_folder_and_is_for_the_owner_alone(tmp_path):
    lane, said = Lane("mine", "Mine", tmp_path / "mine"), _Said(tmp_path / "mine.progress")
    assert lane.state == "waiting"
    said({"what": "Training", "step": 1, "steps": 9})
    said({"what": "Training", "step": 2, "steps": 9})  # a moment later: it is not written
    lane.look()
    assert (lane.state, lane.standing) == ("running", {"what": "Training", "step": 1, "steps": 9})
    assert (tmp_path / "mine.progress").stat().st_mode & 0o077 == 0
    said({"what": "Training", "step": 9, "steps": 9})
    lane.look()
    assert lane.standing["step"] == 9
    (tmp_path / "mine.progress").write_text("{")
    lane.look()
    assert lane.standing["step"] == 9


def test_the_clock_ends_a_training_and_remembers(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr("privet.runs.job.time.monotonic", lambda: now)
    clock = Clock(tmp_path, minutes=1.0)
    seen: list[dict] = []
    look = clock.watching(seen.append)
    now += 50
    look({"step": 1, "steps": 9, "loss": 1.0})
    now += 1000
    look({"step": 5, "steps": 9})  # not a step of a training
    again = Clock(tmp_path, minutes=1.0)
    look = again.watching(seen.append)
    now += 11
    with pytest.raises(TimeIsUp, match="after step 2 of 9"):
        look({"step": 2, "steps": 9, "loss": 1.0})
    assert len(seen) == 3


def test_what_does_not_fit_is_named(monkeypatch):
    plugin = load_plugin(PLUGIN)
    task = Task.of(DataSpec("digits"), data.load("digits"), 3.0, 1e-5)
    monkeypatch.setattr(plugin.Broken, "why_not", lambda self, task: "it needs sound")
    found, left_out = fitting(task)
    assert left_out["broken"] == "it needs sound"
    assert "it does not run by default" in left_out["residual"]
    assert "dpsgd" in found and "broken" not in found
    assert "residual" in fitting(task, every=True)[0]


def test_a_row_that_is_torn_is_none(tmp_path):
    Row("a", "A", "done").write(tmp_path)
    assert Row.read(tmp_path) == Row("a", "A", "done")
    (tmp_path / "row.json").write_text('{"method": "a"')
    assert Row.read(tmp_path) is None
