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
    points = RunRecord.read(run).attacks[-1].points
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
    last = RunRecord.read(run).attacks[-1]
    assert (last.auc, last.key) == (facts["auc"], kind)
    assert last.date and last.power and last.command


def test_attacks_are_appended_and_never_written_over(run):
    """Version 0.1 kept the last attack alone."""
    before = RunRecord.read(run).attacks
    settings = ("--set", "records=100", "--set", "epochs=2", "--set", "shadows=4")
    page = privet("attack", run, "--attack", "loss,rmia", "--attack", "lira", *settings)
    assert page.exit_code == 0, page.output
    after = RunRecord.read(run)
    assert after.attacks[: len(before)] == before
    assert [attack.key for attack in after.attacks[len(before) :]] == ["loss", "rmia", "lira"]
    assert after.attack.low == max(attack.low for attack in after.attacks)
    card = (run / "CARD.md").read_text()
    listed = json.loads((run / "card.json").read_text())["attacks"]
    assert [one["auc"] for one in listed] == [attack.auc for attack in after.attacks]
    for attack in after.attacks:
        assert attack.name in card.replace("\\", "") and f"Area under the ROC {attack.auc:.3f}" in card
    assert str(run.parent) not in card


def test_an_attack_that_does_not_fit_attacks_nothing(run):
    before = RunRecord.read(run)
    page = privet("attack", run, "--attack", "loss,distance")
    assert page.exit_code == 2
    assert "The attack distance does not fit this run: it attacks synthetic data" in " ".join(page.output.split())
    assert RunRecord.read(run) == before


def test_an_attack_that_cannot_be_made_is_refused_before_anything_is_spent(tmp_path):
    for key, words in (("distance", "The attack distance does not fit"), ("mystery", "There is no attack 'mystery'")):
        page = privet("train", "--data", "digits", "--seed", 3, "--out", tmp_path / key, "--attack", key)
        assert page.exit_code == 2 and words in " ".join(page.output.split())
        assert not (tmp_path / key).exists()


def test_an_attack_that_fails_costs_the_attack_alone(tmp_path):
    """The model was paid for: version 0.2 once wrote it after the attacks."""
    plugin = tmp_path / "fails.py"
    plugin.write_text(
        "from dataclasses import dataclass\n"
        "from privet.attacks import register\n"
        "from privet.errors import PrivetError\n"
        "@register\n"
        "@dataclass(frozen=True)\n"
        "class Fails:\n"
        "    key = 'fails'\n"
        "    title = 'Fails'\n"
        "    def fits(self, target): return ''\n"
        "    def run(self, target, progress=None): raise PrivetError('It fails on purpose.')\n"
    )
    asked = ("--data", "digits", "--seed", 3, "--out", tmp_path / "a", "--plugin", plugin)
    page = privet("train", *asked, "--attack", "loss,fails")
    assert page.exit_code == 1
    assert "It fails on purpose. The run is finished and kept" in " ".join(page.output.split())
    record = RunRecord.read(tmp_path / "a")
    assert [attack.key for attack in record.attacks] == ["loss"]
    assert (tmp_path / "a" / record.model.weights).exists() and (tmp_path / "a" / "CARD.md").exists()
    assert privet("attack", tmp_path / "a").exit_code == 0


def test_an_inversion_draws_a_picture(run):
    page = privet("attack", run, "--attack", "inversion")
    assert page.exit_code == 0, page.output
    assert (run / "inversion.png").stat().st_size > 1000
    facts = json.loads(privet("attack", run, "--attack", "inversion", "--json").stdout)
    assert len(facts["confidence"]) == 10
