"""Attacks, audits, comparisons, demos and reproductions go on after a stop, and two of them never share a folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from privet.attacks.classifiers import Fitting
from privet.attacks.membership import Rmia
from privet.cli import app
from privet.errors import InputError, PrivetError
from privet.io import write_whole
from privet.methods import DataSpec, Power
from privet.report import RunRecord, renew
from privet.runs import attack_run, audit_run
from privet.runs.job import Job
from privet.training import releases
from privet.training.folder import alone_in
from tests.runs.small import MAY_STAY, digits, run_small

COMMAND = ("privet", "attack", "RUN")
ATTACK = Rmia(records=100, epochs=8, shadows=2)
KILLS = {"attack": 5, "audit": 5, "compare": 4, "demo": 3, "reproduce": 5}
if "PRIVET_KILL_VERBS" in os.environ:
    KILLS = dict.fromkeys(KILLS, int(os.environ["PRIVET_KILL_VERBS"]))
"""How often each verb is killed; `PRIVET_KILL_VERBS=20` for more, which takes long. `benchmarks/kills.py` kills everything."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    run_small("dpsgd", folder, 3)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a finished run; loops save their state after each step."""
    monkeypatch.setattr(releases, "SECONDS", 0.0)
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


class StopAfter:
    """Progress that stops the work at a report, as Ctrl-C does, and counts the reports."""

    def __init__(self, reports: int = -1) -> None:
        self.left, self.count = reports, 0

    def __call__(self, what: str, done: int, total: int | None) -> None:
        self.count += 1
        if self.count == self.left:
            raise KeyboardInterrupt


def test_an_attack_that_is_stopped_goes_on_with_its_shadow_models(run: Path) -> None:
    whole, before = StopAfter(), len(RunRecord.read(run).attacks)
    (expected,), *_ = attack_run(run, [ATTACK], digits(), progress=whole)
    with pytest.raises(KeyboardInterrupt):
        attack_run(run, [ATTACK], digits(), command=COMMAND, progress=StopAfter(whole.count - 1))
    assert (run / "unfinished").is_dir()
    modes = {path.stat().st_mode & 0o077 for path in (run / "unfinished").rglob("*.safetensors")}
    assert modes == {0}, "shadow models are trained on private records"
    rest = StopAfter()
    (found,), *_ = attack_run(run, [ATTACK], digits(), resume=True, command=COMMAND, progress=rest)
    assert rest.count < whole.count / 2
    assert (found.auc, found.rates) == (expected.auc, expected.rates)
    assert len(RunRecord.read(run).attacks) == before + 2
    assert {path.name for path in run.iterdir()} <= MAY_STAY


def test_models_that_are_trained_one_by_one_go_on_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch norm cannot be trained in one pass over all models."""
    monkeypatch.setattr(releases, "SECONDS", 0.0)

    def trained(stop: int) -> Any:
        generator = torch.Generator().manual_seed(0)
        inputs, labels = torch.rand(40, 6, generator=generator), torch.randint(2, (40,), generator=generator)
        rows = torch.stack([torch.randperm(40, generator=generator)[:20] for _ in range(3)])

        def build() -> torch.nn.Module:
            return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))

        fitting = Fitting(build, epochs=2, batch_size=10, progress=StopAfter(stop))
        models = fitting.many(inputs, labels, rows, generator).models
        return torch.cat([part.flatten().double() for model in models for part in model.state_dict().values()])

    expected = trained(-1)
    for stop in (3, 2, 4):
        with releases.Kept(tmp_path).in_use(), pytest.raises(KeyboardInterrupt):
            trained(stop)
    with releases.Kept(tmp_path).in_use():
        assert torch.equal(trained(-1), expected)


def test_attacks_that_a_command_has_finished_are_not_made_again(run: Path) -> None:
    two = [Rmia(records=60, epochs=1, shadows=2), ATTACK]
    whole = StopAfter()
    attack_run(run, two, digits(), progress=whole)
    before = len(RunRecord.read(run).attacks)
    with pytest.raises(KeyboardInterrupt):
        attack_run(run, two, digits(), command=COMMAND, progress=StopAfter(whole.count - 1))
    assert len(RunRecord.read(run).attacks) == before + 1
    found, *_ = attack_run(run, two, digits(), resume=True, command=(*COMMAND, "--resume"))
    assert [one.settings["records"] for one in found] == [60, 100]
    assert len(RunRecord.read(run).attacks) == before + 2
    attack_run(run, two, digits(), resume=True, command=COMMAND)
    assert len(RunRecord.read(run).attacks) == before + 2, "it was finished"
    attack_run(run, two[:1], digits(), resume=True, command=("privet", "attack", "OTHER"))
    assert len(RunRecord.read(run).attacks) == before + 3, "another command is another attack"


def test_an_audit_that_is_stopped_goes_on_with_its_parts(run: Path) -> None:
    power, whole = Power(draws=100, canaries=40), StopAfter()
    expected = audit_run(run, power, progress=whole)
    with pytest.raises(KeyboardInterrupt):
        audit_run(run, power, command=COMMAND, progress=StopAfter(whole.count - 2))
    rest = StopAfter()
    found = audit_run(run, power, resume=True, command=COMMAND, progress=rest)
    assert found == expected
    assert 0 < rest.count < whole.count / 2
    audits = RunRecord.read(run).audits
    assert len(audits) == 2 * len(expected) and all(one.date and one.power for one in audits)
    assert audit_run(run, power, resume=True, command=COMMAND) == found
    assert len(RunRecord.read(run).audits) == len(audits), "it was finished already"
    assert {path.name for path in run.iterdir()} <= MAY_STAY


def test_an_audit_without_a_run_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PRIVET_STATE", str(tmp_path))
    made: list[str] = []
    from privet.audit import white_box

    real = white_box.audit_scores

    def stopped(*given: Any, **named: Any) -> Any:
        made.append(named["name"])
        if len(made) == 3:
            raise KeyboardInterrupt
        return real(*given, **named)

    monkeypatch.setattr(white_box, "audit_scores", stopped)
    command = ["audit", "--no-laboratory", "--draws", "40"]
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 130
    assert "what was finished is kept, and this goes on: privet" in first.stderr
    done = CliRunner().invoke(app, [*command, "--resume", "--json"])
    assert done.exit_code == 0, done.output
    names = [one["mechanism"] for one in json.loads(done.stdout)]
    assert len(names) == len(set(names)) == 6
    assert len(made) == 7, "two were made before, and one was in the making"
    assert list((tmp_path / "unfinished").iterdir()) == []


@pytest.mark.parametrize("verb", ["attack", "audit", "compare", "reproduce"])
def test_two_processes_on_one_folder_are_refused(run: Path, verb: str) -> None:
    def work() -> None:
        if verb == "attack":
            attack_run(run, [ATTACK], digits())
        elif verb == "audit":
            audit_run(run, Power(draws=40))
        elif verb == "compare":
            with Job(DataSpec("digits"), 3.0, 1e-4, ("dpsgd",)).kept_in(run):
                pass
        else:
            from privet.papers import Reproduction, load

            table = load("digits-linear")
            Reproduction(run).run(table, table.cases, digits())

    before = (run / "record.json").read_bytes()
    with alone_in(run), pytest.raises(PrivetError, match="being continued by another process"):
        work()
    assert (run / "record.json").read_bytes() == before
    assert not (run / "lock").exists()


@pytest.mark.parametrize(
    "line",
    ["report {run}", "report {run} --contact x", "attack {run} --attack inversion", "budget charge a --run {run}"],
)
def test_verbs_that_only_write_to_a_run_wait_for_nobody_and_change_nothing(
    run: Path, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PRIVET_ACCOUNTS", "PRIVET_STATE"):
        monkeypatch.setenv(name, str(tmp_path / name))
    opened = CliRunner().invoke(app, ["budget", "open", "a", "--epsilon", "8", "--delta", "1e-5"])
    assert opened.exit_code == 0, opened.output
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with alone_in(run):
        refused = CliRunner().invoke(app, line.format(run=run).split())
    assert refused.exit_code == 1 and "being continued by another process" in refused.stderr
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    done = CliRunner().invoke(app, line.format(run=run).split())
    assert done.exit_code == 0, done.output + done.stderr


def test_the_report_of_a_comparison_is_refused_while_it_runs(tmp_path: Path) -> None:
    out = tmp_path / "old"
    shutil.copytree(Path(__file__).parents[1] / "made_by_0_1_0" / "compare", out)
    with alone_in(out):
        refused = CliRunner().invoke(app, ["report", str(out)])
    assert refused.exit_code == 1 and "being continued by another process" in refused.stderr
    assert CliRunner().invoke(app, ["report", str(out)]).exit_code == 0


def test_a_run_whose_folder_is_deleted_does_not_come_back(tmp_path: Path) -> None:
    """Also after the training, when nothing is written to the ledger any more."""
    out = tmp_path / "run"

    class Deleting:
        at, count, only, deleted = -1, 0, "", False

        def pass_by(self, kind: str) -> None:
            if not self.deleted and (out / "model.safetensors").exists() and (out / "record.json").exists():
                self.deleted = True  # deleting is watched, too
                shutil.rmtree(out)

        def report(self, _: dict[str, Any]) -> None:
            self.pass_by("report")

        from tests.runs.small import Moments

        watched, _around = Moments.watched, Moments._around

    with pytest.raises(PrivetError, match=r"was deleted|cannot be"):
        run_small("dpsgd", out, 3, Deleting())  # type: ignore[arg-type]
    assert not (out / "record.json").exists()


def test_a_half_written_file_does_not_stay_in_the_release(run: Path) -> None:
    for place in (run, run / "release"):
        place.mkdir(exist_ok=True)
        with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(os, "fsync", killed)
            patch.setattr(Path, "unlink", lambda *_: None)  # a killed process does not tidy up
            write_whole(place / "README.md", b"torn")
        (place / ".gitignore.template").write_text("somebody else's")
    assert len(list(run.rglob(".*"))) == 4
    with alone_in(run):
        pass
    assert [path.name for path in run.rglob(".*")] == [".gitignore.template"] * 2


def killed(_: int) -> None:
    raise KeyboardInterrupt


# --- what a reader recognizes -----------------------------------------------------------------------------------------


def test_two_runs_with_the_same_events_have_different_heads(tmp_path: Path) -> None:
    heads = set()
    for name in ("a", "b"):
        record = run_small("svrg", tmp_path / name, 3)
        heads.add(record.ledger_head)
    cards = [json.loads((tmp_path / name / "card.json").read_text()) for name in ("a", "b")]
    assert len(heads) == 2 and cards[0]["ledger"]["head"] != cards[1]["ledger"]["head"]
    assert cards[0]["files"] == cards[1]["files"], "the same seed, the same model"


@pytest.mark.parametrize("name", ["dpsgd", "moments", "table"])
def test_the_card_names_the_hash_of_each_released_file_and_of_no_other(tmp_path: Path, name: str) -> None:
    out = tmp_path / "run"
    record = run_small(name, out, None)
    card = json.loads((out / "card.json").read_text())
    if record.synthetic is None:
        released = {"model.safetensors"}
    else:
        released = {f"release/{path.name}" for path in (out / "release").iterdir()} - {"release/README.md"}
    assert set(card["files"]) == released
    for file, known in card["files"].items():
        assert hashlib.sha256((out / file).read_bytes()).hexdigest() == known
        assert known in (out / "CARD.md").read_text()
    before = (out / "CARD.md").read_bytes()
    renew(out)
    assert (out / "CARD.md").read_bytes() == before


def test_a_released_file_that_was_changed_gets_no_card(run: Path) -> None:
    (run / "model.safetensors").write_bytes((run / "model.safetensors").read_bytes() + b"\0")
    with pytest.raises(InputError, match="is not the file that the run released"):
        renew(run)


# --- SIGKILL ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("verb", KILLS)
def test_killed_at_random_moments(tmp_path: Path, verb: str) -> None:
    """SIGKILL in a process of its own: the same result as without it, everything on the books, and nothing left over."""
    program, root = Path(__file__).with_name("killed_verbs.py"), Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, program, verb, tmp_path, str(KILLS[verb])],
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
        cwd=root,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kills"] == KILLS[verb]
    assert found["same"] and found["under-counted"] == [] and found["left over"] == []
