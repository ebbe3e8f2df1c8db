"""Every method goes on after a stop: a seeded run to the same bits, a release with everything on the books."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from privet.cli import app
from privet.errors import InputError, PrivetError
from privet.methods import METHODS, method_for
from privet.privacy import Claimed, Gaussian, Ledger
from privet.runs import Measuring, run, runner
from privet.training import BudgetExhausted
from tests.runs.small import (
    BUDGET,
    DELTA,
    FILES,
    MAY_STAY,
    PAID_ONCE,
    SETTINGS,
    Moments,
    counted,
    ctrl_c,
    full_disk,
    results,
    run_small,
    task_of,
)


def stopped(name: str, out: Path, seed: int | None, at: int, happens: Any = ctrl_c, only: str = "") -> bool:
    """Run until a moment; False if the run ended before."""
    moments = Moments(at, happens, only)
    try:
        run_small(name, out, seed, moments)
    except KeyboardInterrupt:
        return True
    except PrivetError as error:
        if "No space left" not in str(error):
            raise
        return True
    # A folder that cannot be synchronized stops nobody.
    assert moments.count <= at or happens is full_disk, "the run went on after what happened"
    return False


def test_every_method_that_is_registered_is_tried_here() -> None:
    alike = {
        "dpsgd-automatic": "dpsgd",
        "dpsgd-adaptive": "dpsgd",
        "dpsgd-per-layer": "dpsgd",
        "dpsgd-advanced": "dpsgd",
    }
    alike |= {f"optimized-noise-{form}": "optimized-noise" for form in ("isotropic", "elliptical", "published")}
    tried = {key for key, _ in SETTINGS.values()}
    own = {key for key, method in METHODS.items() if type(method).__module__.startswith("privet.")}
    assert {alike.get(key, key) for key in own} == tried


ALIKE = ("residual by DP-SGD", "rows of random features")
"""Runs that go on as others do."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in SETTINGS])
def test_a_seeded_run_that_was_stopped_ends_with_the_same_bits(tmp_path: Path, name: str) -> None:
    """Stopped by Ctrl-C in a report and by a full disk in a write, at moments that differ from run to run."""
    moments = Moments()
    run_small(name, tmp_path / "whole", 3, moments)
    whole = results(tmp_path / "whole")
    assert FILES <= {path.name for path in (tmp_path / "whole").iterdir()} <= MAY_STAY
    chance, out = random.Random(name), tmp_path / "parts"
    stops = [
        stopped(name, out, 3, chance.randrange(moments.count // 2)),
        stopped(name, out, 3, chance.randrange(10, 50), full_disk, "write"),
        stopped(name, out, 3, chance.randrange(20, 90)),
    ]
    assert any(stops)
    if not (out / "record.json").exists() or {path.name for path in out.iterdir()} - MAY_STAY:
        run_small(name, out, 3)
    assert results(out) == whole
    assert FILES <= {path.name for path in out.iterdir()} <= MAY_STAY


@pytest.mark.parametrize("name", ["pate", "residual", "dpgan with votes", "noise layer as published", "table"])
def test_a_release_that_was_stopped_is_on_the_books(tmp_path: Path, name: str) -> None:
    run_small(name, tmp_path / "whole", None)
    whole = Ledger.open(tmp_path / "whole" / "ledger.jsonl", read_only=True)
    expected, out, heads = counted(whole), tmp_path / "parts", set[str]()
    for at in (30, 60, 75):
        if not stopped(name, out, None, at):
            break
        heads.add(Ledger.open(out / "ledger.jsonl", read_only=True).head)
    record = run_small(name, out, None)
    ledger = record.open_ledger(out)
    assert ledger.holds(heads) == heads
    found = counted(ledger)
    if name in PAID_ONCE:
        assert len(ledger) == len(whole)
    spent = record.spent(ledger)
    if METHODS[SETTINGS[name][0]].spends_budget and not isinstance(spent.guarantee, Claimed):
        assert spent.epsilon <= BUDGET
    if name in ("residual", "noise layer as published"):
        assert found.keys() == expected.keys() and sum(found.values()) <= sum(expected.values())
        assert int(record.how.steps or 0) < (39 if name == "residual" else 10**6)


@pytest.mark.parametrize(
    ("name", "back"), [("svrg", 0), ("svrg", 2), ("svrg", 9), ("moments", 1), ("moments", 5), ("moments", 14)]
)
def test_stopped_in_the_last_second_it_is_finished_and_cleans_up(tmp_path: Path, name: str, back: int) -> None:
    moments = Moments()
    run_small(name, tmp_path / "whole", 3, moments)
    assert stopped(name, tmp_path / "parts", 3, moments.count - 1 - back)
    if (tmp_path / "parts" / "release").exists():
        assert (tmp_path / "parts" / "release" / "README.md").exists()
    run_small(name, tmp_path / "parts", 3)
    assert results(tmp_path / "parts") == results(tmp_path / "whole")
    assert FILES <= {path.name for path in (tmp_path / "parts").iterdir()} <= MAY_STAY


@pytest.mark.parametrize("name", ["dpsgd", "pate", "table"])
def test_stopped_after_its_training_it_pays_for_nothing_again(tmp_path: Path, name: str) -> None:
    """In a release: everything that costs something was on the disk before it was measured."""

    def stop() -> None:
        if (
            (tmp_path / "data.key").exists()
            or (tmp_path / "model.safetensors").exists()
            or (tmp_path / ".release").exists()
        ):
            raise KeyboardInterrupt

    class Watching(Moments):
        def pass_by(self, kind: str) -> None:
            stop()

    with pytest.raises(KeyboardInterrupt):
        run_small(name, tmp_path, None, Watching())
    before = (tmp_path / "ledger.jsonl").read_bytes()
    run_small(name, tmp_path, None)
    assert (tmp_path / "ledger.jsonl").read_bytes() == before


def test_a_protected_accuracy_is_read_once(tmp_path: Path) -> None:
    """Noise that is drawn twice for one charge would not be accounted for."""

    class Watching(Moments):
        def pass_by(self, kind: str) -> None:
            if (tmp_path / "run" / "release-measured-accuracy.safetensors").exists():
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_small("table", tmp_path / "run", None, Watching())
    path = tmp_path / "run" / "release-measured-accuracy.safetensors"
    from privet.training.checkpoint import read_state

    kept = read_state(path)["value"]
    record = run_small("table", tmp_path / "run", None)
    assert record.utility is not None and record.utility.noise > 0
    assert record.utility.accuracy == kept["accuracy"] and record.utility.low == kept["low"]


CHANGED = [
    ({"gamma": 0.7}, {}, "settings.gamma 0.5, and 0.7"),
    ({}, {"seed": 4}, "seed 3, and 4"),
    ({}, {"delta": 1e-5}, "delta"),
    ({}, {"data": True}, "made with other data"),
]


@pytest.mark.parametrize(("settings", "change", "said"), CHANGED)
def test_other_settings_are_refused_by_name(tmp_path: Path, settings: Any, change: Any, said: str) -> None:
    assert stopped("residual", tmp_path / "run", 3, 60)
    before = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    task = task_of("residual", change.get("seed", 3), tmp_path)
    task = replace(task, delta=change.get("delta", DELTA))
    if "data" in change:
        parts = {"train": task.dataset.train.select(range(399)), "test": task.dataset.test}
        task = replace(task, dataset=replace(task.dataset, splits=parts))
    method = method_for("residual", task, SETTINGS["residual"][1] | settings)
    with pytest.raises(InputError, match=said):
        run(method, task, tmp_path / "run", measuring=Measuring(), resume=True)
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == before


def test_a_method_that_keeps_nothing_is_not_paid_for_twice(tmp_path: Path) -> None:
    """A plug-in that records its events and keeps no release: to go on would cost as much again, which is refused."""
    from privet.methods import Context, Outcome, Task
    from privet.methods.method import Method

    class Careless(Method):
        def fit(self, task: Task, context: Context) -> Outcome:
            context.ledger.record(Gaussian(1.0))
            raise KeyboardInterrupt

    task = task_of("dpsgd", None, tmp_path)
    method = Careless(key="careless", title="careless")
    with pytest.raises(KeyboardInterrupt):
        run(method, task, tmp_path / "run")
    with pytest.raises(InputError, match="cost as much again"):
        run(method, task, tmp_path / "run", resume=True)


def test_a_plan_that_was_used_up_before_anything_was_saved_is_refused(tmp_path: Path) -> None:
    """One epoch, which was begun twice: a third begin would cost more than was planned."""
    task = task_of("residual", None, tmp_path)
    method = method_for("residual", task, {"epochs": 1, "pi": 5.0})

    def stop(step: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(method, task, tmp_path / "run", on_step=stop)
    with pytest.raises(BudgetExhausted, match="would cost more than was planned"):
        run(method, task, tmp_path / "run", resume=True)
    assert len(Ledger.open(tmp_path / "run" / "ledger.jsonl", read_only=True)) == 1


def test_two_processes_on_one_folder_are_refused(tmp_path: Path) -> None:
    from privet.training import RunFolder

    assert stopped("moments", tmp_path / "run", 3, 20)
    held = RunFolder(tmp_path / "run", resume=True)
    with pytest.raises(PrivetError, match="being continued by another process"):
        run_small("moments", tmp_path / "run", 3)
    held.close()
    assert run_small("moments", tmp_path / "run", 3).synthetic is not None


SYNTHESIZE = [
    "synthesize",
    "--data",
    "digits",
    "--method",
    "moments",
    "--size",
    "40",
    "--student",
    "GaussianNB",
    "--seed",
    "1",
]


def test_a_stopped_command_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [*SYNTHESIZE, "--out", str(tmp_path / "run")]

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(runner, "train_student", stop)
        stopped = CliRunner().invoke(app, command)
    assert stopped.exit_code == 130
    assert "nothing that was paid for is lost, and this goes on: privet " in stopped.stderr
    assert stopped.stderr.rstrip().endswith("--resume") and f"--out {tmp_path / 'run'}" in stopped.stderr
    assert not (tmp_path / "run" / "release").exists()
    ledger = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 2
    assert "--resume" in again.stderr
    done = CliRunner().invoke(app, [*command, "--resume"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == ledger
    assert FILES <= {path.name for path in (tmp_path / "run").iterdir()} <= MAY_STAY
    finished = CliRunner().invoke(app, [*command, "--resume"])
    assert finished.exit_code == 2
    assert "is finished" in finished.stderr


@pytest.mark.slow
def test_sigterm_stops_a_run_as_ctrl_c_does(tmp_path: Path) -> None:
    command = [
        "train",
        "--data",
        "digits",
        "--method",
        "residual",
        "--set",
        "epochs=200",
        "--out",
        str(tmp_path / "run"),
    ]
    process = subprocess.Popen([sys.executable, "-m", "privet", *command], stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while not (tmp_path / "run" / "steps.csv").exists():
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.1)
    process.terminate()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "--resume" in said and "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_killed_at_random_moments(tmp_path: Path, name: str) -> None:
    """SIGKILL in a process of its own: at least four times for each method, also twice in a row and in the last second."""
    program = Path(__file__).with_name("killed_methods.py")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, program, name, tmp_path], capture_output=True, text=True, check=False, timeout=300, cwd=root
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kills"] >= 4
    assert found["seeded"] == "the same bits" and found["left over"] == []
    assert found["used"] <= found["in the ledger"], found
    assert found["lost"] == []
