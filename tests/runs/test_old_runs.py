"""Folders made by version 0.1.0 open: report, account, attack, audit; a comparison's page is made again."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privet.cli import app
from privet.report import RunRecord

OLD = Path(__file__).parents[1] / "made_by_0_1_0"
STATEMENT = "epsilon = 3 at delta = 1e-05 (add/remove one record; "


@pytest.fixture
def copied(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["privet"])

    def copy(name: str) -> Path:
        return Path(shutil.copytree(OLD / name, tmp_path / name))

    return copy


def said(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output + repr(result.exception)
    return " ".join(result.output.split())


@pytest.mark.parametrize(("name", "attack"), [("train", "loss"), ("synthesize", "distance")])
def test_a_run_is_reported_attacked_and_audited(copied, name, attack):
    run = copied(name)
    before = RunRecord.read(run)
    assert STATEMENT in said("report", str(run))
    assert STATEMENT in said("account", str(run))
    assert "AUC" in said("attack", str(run))
    audits = json.loads(said("audit", str(run), "--draws", "400", "--canaries", "100", "--json"))
    # The record does not say how the run was made: only what the ledger holds is audited.
    assert all(audit["not_audited"] and audit["verdict"] != "consistent" for audit in audits)
    after = RunRecord.read(run)
    assert len(before.attacks) == 1, "the attack of the run itself"
    assert [one.key for one in after.attacks][-1] == attack and len(after.attacks) == 2
    assert len(after.audits) == len(before.audits) + len(audits)
    assert (after.test_accuracy, after.ledger_head) == (before.test_accuracy, before.ledger_head)
    assert STATEMENT in said("report", str(run))


def test_the_page_of_a_comparison_is_made_again(copied):
    out = copied("compare")
    shown = said("report", str(out))
    assert "dpsgd" in shown and "synthetic-moments" in shown
    assert "as much as all of them together: epsilon = 4.39" in shown
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "91.9" in page and "A student of artificial data: one-shot moments" in page
    assert STATEMENT in said("report", str(out / "dpsgd"))


def test_an_old_run_counts_where_settings_were_chosen_by_it(copied, tmp_path):
    """A new run beside it counts its cost, as it counts that of a new one."""
    copied("train")
    said(
        "train", "--data", "digits", "--epsilon", "3", "--set", "epochs=1", "--seed", "1", "--out", str(tmp_path / "b")
    )
    record = RunRecord.read(tmp_path / "b")
    assert record.others is not None and len(record.others) == 1
