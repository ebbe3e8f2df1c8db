"""`privet attack` with each of its attacks, on the folder of a run."""

import json

import pytest
from typer.testing import CliRunner

from privet.cli import app
from privet.report import RunRecord


def privet(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a"
    page = privet("train", "--data", "digits", "--seed", 3, "--out", folder)
    assert page.exit_code == 0, page.output
    return folder


def test_the_loss_attack_says_precision_and_recall_at_thresholds(run):
    page = privet("attack", run)
    assert page.exit_code == 0, page.output
    lines = page.stdout.splitlines()
    assert lines[0].startswith("Loss threshold: 1,437 training records")
    assert lines[4].startswith("precision / recall from a score of 0.5: ")
    points = RunRecord.read(run).attack.points
    assert [point.threshold for point in points] == [0.5, 0.6, 0.7, 0.8, 0.9]
    recalls = [point.recall for point in points]
    assert recalls == sorted(recalls, reverse=True)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("shadow", "Shadow model"),
        ("lira", "LiRA (4 shadow models, one vectorized pass"),
        ("rmia", "RMIA (4 shadow models, one vectorized pass"),
    ],
)
def test_attacks_with_shadow_models_update_the_page(run, kind, name):
    shadows = ["--shadows", 4] if kind == "lira" else []
    page = privet("attack", run, "--attack", kind, *shadows, "--records", 100, "--epochs", 2, "--json")
    assert page.exit_code == 0, page.output
    facts = json.loads(page.stdout)
    assert facts["name"].startswith(name)
    assert facts["members"] == 100
    assert facts["non_members"] == (100 if kind == "lira" else 50)  # half of the others are the attacker's own
    assert 0 < facts["auc"] < 1
    assert name in (run / "report.html").read_text()
    assert RunRecord.read(run).attack.auc == facts["auc"]


def test_an_inversion_draws_a_picture(run):
    page = privet("attack", run, "--attack", "inversion")
    assert page.exit_code == 0, page.output
    assert (run / "inversion.png").stat().st_size > 1000
    facts = json.loads(privet("attack", run, "--attack", "inversion", "--json").stdout)
    assert len(facts["confidence"]) == 10
