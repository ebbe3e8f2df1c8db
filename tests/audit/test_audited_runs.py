"""`privet audit RUN` rebuilds what ran: broken parts of a plug-in are refuted, and nothing is called consistent unseen."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privet.cli import app
from privet.io.registry import Registry
from privet.methods import METHODS
from privet.privacy import Assumed
from privet.report import RunRecord

PLUGIN = Path(__file__).with_name("planted_plugin.py")
QUICK = ("--draws", "1000", "--canaries", "100")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with the plug-in, and later with its runs."""
    made = tmp_path_factory.mktemp("planted")
    shutil.copy(PLUGIN, made / "planted.py")
    return made


@pytest.fixture
def folder(runs):
    """Each test loads the plug-in as a new process does; the registries are afterward as they were."""
    for name in [name for name in sys.modules if name.startswith("privet_plugin_planted")]:
        del sys.modules[name]
    with Registry.restored():
        yield runs


def privet(folder, *words):
    given = [*map(str, words), "--plugin", str(folder / "planted.py")]
    return CliRunner().invoke(app, given, env={"COLUMNS": "200", "NO_COLOR": "1"})


def trained(folder, method, *words):
    """A small run of a method, made once."""
    out = folder / method
    if not out.exists():
        asked = ("--data", "digits", "--seed", 0, "--method", method, "--out", out)
        page = privet(folder, "train", *asked, "--set", "epochs=1", "--set", "sampling_rate=0.3", *words)
        assert page.exit_code == 0, page.output
    return out


def audited(folder, run, *words):
    """The exit code and the audits, which the record keeps too."""
    before = len(RunRecord.read(run).audits)
    page = privet(folder, "audit", run, *QUICK, "--json", *words)
    assert page.exit_code in (0, 1) and page.stdout, page.output + repr(page.exception)
    found = json.loads(page.stdout)
    kept = RunRecord.read(run).audits[before:]
    assert [one.to_dict() for one in kept] == found
    return page.exit_code, found


@pytest.mark.parametrize(
    ("method", "draws"), [("clips-nothing", 1000), ("half-noise", 8000), ("draws-twice", 1000), ("draws-more", 10_000)]
)
def test_a_broken_part_of_a_plug_in_is_refuted(folder, method, draws):
    code, found = audited(folder, trained(folder, method), "--draws", draws)
    assert code == 1
    for one in found[:2]:  # the stand-in model and the run's own
        assert one["refuted"], one
    assert "and its model with its weights" in found[1]["audited"] or method == "draws-twice"
    assert not any(one["verdict"] == "consistent" for one in found)
    assert ("which is not part of Privet" in found[0]["not_audited"]) == (method != "clips-nothing")
    assert method != "draws-twice" or all(one["refuted"] for one in found)


def test_a_part_that_cannot_be_rebuilt_is_named_and_not_called_consistent(folder):
    code, found = audited(folder, trained(folder, "clips-oddly"))
    assert code == 0
    for one in found:
        assert one["audited"].startswith("the run's sampling and noise")
        assert one["not_audited"].split(": ")[0].endswith("the run's clipping")
        assert one["verdict"].startswith("consistent for the parts that were audited")


def test_a_ledger_that_does_not_hold_the_steps_is_a_contradiction(folder):
    code, (one,) = audited(folder, trained(folder, "unrecorded"))
    assert code == 1 and one["refuted"]
    assert "steps that the run made by its plan are not in its ledger" in one["evidence"]


def test_a_method_that_does_not_follow_its_plan_is_assumed_and_not_called_consistent(folder):
    """Nothing can be seen of that in a plan: the statement is an assumption, and every audit says what it does not cover."""
    run = trained(folder, "off-plan")
    record = RunRecord.read(run)
    said = "the method off-plan, which is not part of Privet, does to the records what it states"
    assert record.open_ledger(run).guarantee == Assumed(said)
    assert said in (run / "CARD.md").read_text(encoding="utf-8")
    code, found = audited(folder, run)
    assert code == 0
    for one in found:
        assert one["not_audited"].endswith(f"whether {said}")
        assert one["verdict"].startswith("consistent for the parts that were audited")


def test_without_its_plug_in_a_run_is_not_audited(folder):
    run = trained(folder, "clips-nothing")
    METHODS._values.pop("clips-nothing", None)
    page = CliRunner().invoke(app, ["audit", str(run), *QUICK])
    assert page.exit_code == 2
    assert "--plugin FILE" in page.stderr


def test_a_run_is_audited_with_its_own_clipping_and_model(folder):
    code, found = audited(folder, trained(folder, "dpsgd-automatic"))
    assert code == 0
    one, own, whole = found
    assert one["mechanism"] == "One step of DP-SGD, automatic clipping"
    assert own["audited"] == "the run's sampling, clipping and noise, and its model with its weights"
    assert own["verdict"] == "consistent" and not own["not_audited"]
    assert whole["audited"].endswith("in all its steps")
    assert [one["not_audited"], whole["not_audited"]] == ["the run's model"] * 2


def test_a_model_that_is_gone_is_named(folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained(folder, "dpsgd-automatic"), run)
    (run / "model.safetensors").unlink()
    code, found = audited(folder, run)
    assert code == 0 and len(found) == 2
    assert all("the weights of the run are missing" in one["not_audited"] for one in found)
    assert all(one["verdict"].startswith("consistent for the parts that were audited") for one in found)


def test_a_record_that_states_more_steps_than_the_ledger_holds_is_refuted(folder, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained(folder, "dpsgd-automatic"), run)
    plain = json.loads((run / "record.json").read_text())
    plain["how"]["steps"] = plain["how"]["plan"]["steps"] = 10**7
    (run / "record.json").write_text(json.dumps(plain))
    code, (one,) = audited(folder, run)
    assert code == 1 and "are not in its ledger" in one["evidence"]
