"""`privet train --method pate` from the command to the folder, the attack and what it refuses."""

import json

import pytest
from typer.testing import CliRunner

from privet.cli import app
from privet.privacy import NoisyTopCount, PublicRecords
from privet.report import RunRecord


def privet(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a"
    asked = ["--public", 180, "--set", "teachers=20", "--set", "threshold=8", "--set", "threshold_noise=25"]
    page = privet(
        "train",
        "--method",
        "pate",
        "--data",
        "digits",
        "--epsilon",
        8,
        "--set",
        "queries=60",
        *asked,
        "--seed",
        1,
        "--out",
        folder,
    )
    assert page.exit_code == 0, page.output
    return folder, page


def test_the_public_records_are_told_and_not_tested_on(finished):
    folder, page = finished
    record = RunRecord.read(folder)
    ledger = record.open_ledger(folder)
    events = [event for event, _ in ledger]
    assert events[0] == PublicRecords(180, "180 of the test records of digits")
    assert events[1] == NoisyTopCount(25.0) * 60
    assert ledger.spent(1e-5).epsilon <= 8
    assert str(ledger.spent(1e-5)) in page.stdout
    assert (record.data.set_aside, record.data.test_records) == (180, 180)
    assert "taken as public" in record.data.note
    assert "taken as public" in (folder / "report.html").read_text()
    assert record.test_accuracy > 0.4


def test_the_data_dependent_cost_is_on_the_page_and_on_no_card(finished):
    folder, _ = finished
    assert "internal, not for release" in (folder / "report.html").read_text()
    for card in ("CARD.md", "card.json"):
        said = (folder / card).read_text()
        assert "not for release" not in said.replace("do not release", "")
        assert "data-dependent" not in said.lower()


def test_an_attack_leaves_the_public_records_out(finished):
    folder, _ = finished
    before = RunRecord.read(folder).attack
    attacked = json.loads(privet("attack", folder, "--json").stdout)
    assert attacked["non_members"] == before.non_members == 180
    assert attacked["auc"] == pytest.approx(before.auc, abs=1e-9)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--method", "pate"], "--method pate needs public records without labels"),
        (["--public", "100"], "use it with --method pate"),
        (["--method", "pate", "--public", "0"], "none were given"),
        (["--method", "pate", "--public", "360"], "leave at least one to test on"),
        (["--method", "pate", "--public", "digits"], "digits is the data to protect"),
        (["--method", "pate", "--public", "nothing"], "There is no data set 'nothing'"),
        (["--method", "pate", "--public", "100", "--form", "isotropic"], "use it with --method optimized-noise"),
        (["--method", "pate", "--public", "100", "--set", "threshold=8"], "both a threshold and a threshold_noise"),
        (["--method", "pate", "--public", "100", "--set", "teachers=1"], "at least two teachers"),
        (["--method", "pate", "--public", "100", "--set", "teachers=5000"], "fewer records than 5,000 teachers"),
        (["--method", "pate", "--public", "100", "--set", "queries=101"], "101 queries cannot be asked of 100 public"),
    ],
)
def test_bad_usage_is_said_before_anything_is_written(arguments, sentence, tmp_path):
    page = privet("train", "--data", "digits", "--out", tmp_path / "a", *arguments)
    assert page.exit_code == 2, page.output
    assert sentence in page.stderr
    assert not (tmp_path / "a").exists()


def test_a_public_set_of_ones_own(tmp_path):
    """Records that are tested on are not public ones too; others are taken by their own name."""
    rows = ["x,y,kind"] + [f"{i % 20 / 20},{i // 20 / 20},{'ab'[i % 20 > 9]}" for i in range(400)]
    (tmp_path / "mine.csv").write_text("\n".join(rows) + "\n")
    (tmp_path / "same.csv").write_text("\n".join(rows) + "\n")
    columns = {"x": {"low": 0, "high": 1}, "y": {"low": 0, "high": 1}, "kind": {"categories": ["a", "b"]}}
    (tmp_path / "schema.json").write_text(json.dumps({"label": "kind", "columns": columns}))
    asked = [
        "train",
        "--method",
        "pate",
        "--data",
        f"csv:{tmp_path / 'mine.csv'}",
        "--schema",
        tmp_path / "schema.json",
    ]
    page = privet(*asked, "--public", f"csv:{tmp_path / 'same.csv'}", "--out", tmp_path / "a")
    assert (page.exit_code, page.stderr.count("is the data to protect")) == (2, 1)
    # With its own label a record would land in the same part of both files; with another label it may be in the test part of one.
    swapped = [row[:-1] + {"a": "b", "b": "a"}[row[-1]] for row in rows[1:200]]
    (tmp_path / "same.csv").write_text("\n".join([rows[0], *swapped]) + "\n")
    page = privet(*asked, "--public", f"csv:{tmp_path / 'same.csv'}", "--out", tmp_path / "a")
    assert page.exit_code == 2
    assert "a model cannot be tested on" in page.stderr
    others = [f"{i % 7 / 7 + 0.01:.3f},{i % 11 / 11 + 0.01:.3f},a" for i in range(100)]
    (tmp_path / "same.csv").write_text("\n".join([rows[0], *others]) + "\n")
    page = privet(
        *asked,
        "--public",
        f"csv:{tmp_path / 'same.csv'}",
        "--set",
        "teachers=40",
        "--epsilon",
        8,
        "--seed",
        1,
        "--out",
        tmp_path / "a",
    )
    assert page.exit_code == 0, page.output
    record = RunRecord.read(tmp_path / "a")
    assert record.data.note.startswith("The training part of same.csv")
    assert record.test_accuracy > 0.8
