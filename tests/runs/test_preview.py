"""Dry runs: the plan, the cost, the time and what would be written, from public facts, before a record is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privet import data
from privet.cli import app
from privet.methods import DataSpec
from privet.runs import preview
from tests.runs.small import run_small

SCHEMA = {"label": "owns", "columns": {"age": {"low": 20, "high": 80}, "owns": {"categories": ["no", "yes"]}}}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Short rehearsals in an empty folder, where reading any record is an error."""

    def read(*_: Any, **__: Any) -> None:
        raise AssertionError("a record was read")

    monkeypatch.setattr(preview, "SECONDS", 0.2)
    monkeypatch.setattr(data, "load", read)
    monkeypatch.setattr(data, "get", read)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


COMMANDS = [
    "train --data digits",
    "train --data mnist --method residual --set epochs=1",
    "train --data csv:../nobody.csv --schema ../schema.json --public-size 500",
    "synthesize --data digits --out made",
    "compare --data digits --method dpsgd,moments",
    "tune --data digits --set learning_rate=1,2 --out tuned",
    "demo --data digits",
    "reproduce digits-linear --seeds 1",
    "audit --method dpsgd --draws 100 --no-laboratory",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_dry_run_reads_no_record_writes_nothing_and_tells_the_cost(quick: Path, command: str) -> None:
    (quick / "schema.json").write_text(json.dumps(SCHEMA))
    done = CliRunner().invoke(app, [*command.split(), "--dry-run", "--json"])
    assert done.exit_code == 0, done.output + done.stderr
    facts = json.loads(done.stdout)
    assert facts["dry_run"] and facts["writes"] and facts["seconds_from"]
    assert facts["records"] == preview.NOT_READ
    assert bool(facts["cost"]) != bool(facts["costs_nothing"])
    for cost in facts["cost"]:
        assert cost["epsilon"] > 0 and 0 < cost["delta"] < 1
        assert cost["relation"] and cost["accountant"] and cost["guarantee"]
    assert list(Path().iterdir()) == []


AFTERWARD = [
    ("dpsgd", "attack {run}"),
    ("dpsgd", "attack {run} --attack lira,rmia --set shadows=4 --set epochs=1 --set records=40"),
    ("moments", "attack {run}"),
    pytest.param("dpsgd", "audit {run} --draws 100 --canaries 40", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Finished runs, each made once."""
    root = tmp_path_factory.mktemp("made")

    def run(name: str) -> Path:
        if not (root / name).exists():
            run_small(name, root / name, 3)
        return root / name

    run("dpsgd"), run("moments")
    return run


@pytest.mark.parametrize(("name", "command"), AFTERWARD)
def test_a_dry_run_on_a_finished_run_leaves_it_as_it_is(
    made: Callable[[str], Path], quick: Path, name: str, command: str
) -> None:
    run = made(name)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    done = CliRunner().invoke(app, [*command.format(run=run).split(), "--dry-run", "--json"])
    assert done.exit_code == 0, done.output + done.stderr
    facts = json.loads(done.stdout)
    assert facts["dry_run"] and facts["costs_nothing"] and not facts["cost"]
    assert facts["records"] == preview.NOT_READ
    assert facts["seconds"] is not None and facts["seconds"] < 120, facts["seconds_from"]
    assert str(run) in " ".join(facts["writes"])
    asked = command.partition("--attack ")[2].split(" ")[0].split(",") if "--attack" in command else []
    assert all(any(f"({key})" in line for line in facts["plan"]) for key in asked), facts["plan"]
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    said = CliRunner().invoke(app, [*command.format(run=run).split(), "--dry-run"]).stdout
    assert "Cost: nothing, because" in said and "Time: about" in said and "nothing was written" in said


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--attack lira --set shadows=100000", "at most 1,000"),
        ("--attack nothing", "nothing"),
        ("--attack loss --set shadows=4", "is not used by"),
        ("--attack distance", "synthetic"),
        ("--attack inversion", "has no --dry-run"),
    ],
)
def test_an_attack_that_would_be_refused_is_refused_by_its_dry_run(
    made: Callable[[str], Path], quick: Path, more: str, said: str
) -> None:
    refused = CliRunner().invoke(app, ["attack", str(made("dpsgd")), *more.split(), "--dry-run"])
    assert refused.exit_code == 2 and said in refused.stderr, refused.output + refused.stderr


def test_the_cost_is_that_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "SECONDS", 0.1)
    command = ["train", "--data", "digits", "--set", "epochs=1", "--out", str(tmp_path / "run"), "--json"]
    planned = json.loads(CliRunner().invoke(app, [*command, "--dry-run"]).stdout)["cost"][0]
    spent = json.loads(CliRunner().invoke(app, command).stdout)["spent"]
    assert {name: planned[name] for name in spent} == spent


def test_files_that_only_the_records_tell_of_are_loaded_and_that_is_said(tmp_path: Path) -> None:
    rows = "\n".join(f"{20 + number % 60},{'yes' if number % 2 else 'no'}" for number in range(300))
    (tmp_path / "people.csv").write_text(f"age,owns\n{rows}\n")
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    spec = DataSpec(f"csv:{tmp_path / 'people.csv'}", schema=str(tmp_path / "schema.json"))
    found, real = preview.outline(spec), spec.load()
    assert preview.said_of_records(spec) == preview.LOADED
    assert (found.size, found.shape, found.classes) == (real.size, real.shape, real.classes)
    assert found.fingerprint != real.fingerprint


def test_what_would_be_refused_is_refused_by_the_dry_run(quick: Path) -> None:
    refused = CliRunner().invoke(
        app, ["synthesize", "--data", "digits", "--size", "999999999999", "--out", "x", "--dry-run"]
    )
    assert refused.exit_code == 2 and "at most 100,000,000" in refused.stderr


@pytest.mark.parametrize(("pace", "steps"), [(0.01, 1000), (0.0, 3)])
def test_the_time_is_extrapolated_from_the_pace(monkeypatch: pytest.MonkeyPatch, pace: float, steps: int) -> None:
    clock = [0.0]
    monkeypatch.setattr(preview.time, "monotonic", lambda: clock[0])

    def work(progress: Any) -> None:
        clock[0] += 7.0  # before the first report
        for step in range(1, steps + 1):
            clock[0] += pace
            progress("Training", step, steps)

    found = preview.rehearse(work, seconds=2.0)
    assert found.seconds == pytest.approx(7.0 + pace * steps, abs=0.1)
    assert "estimate" in str(found)


def test_a_rehearsal_that_fails_tells_no_time() -> None:
    def work(progress: Any) -> None:
        raise ValueError("no such thing")

    found = preview.rehearse(work)
    assert found.seconds is None and "no such thing" in str(found)
