"""`--users` on the command line: a user is protected with all their rows."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privet.cli import app
from privet.privacy import Ledger

SCHEMA = """label: sick
columns:
  age: {low: 0, high: 100}
  sick: {categories: ["yes", "no"]}
ignore: [patient]
"""
USERS = 300


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    draw = random.Random(0)
    rows = ["patient,age,sick"]
    for user in range(USERS):
        for _ in range(draw.choice([1, 1, 2, 5])):
            age = draw.uniform(0, 100)
            rows.append(f"person{user},{age:.1f},{'yes' if age + draw.gauss(0, 10) > 50 else 'no'}")
    (folder / "t.csv").write_text("\n".join(rows) + "\n")
    (folder / "s.yaml").write_text(SCHEMA)
    return folder


def call(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(part) for part in arguments])
    return done.exit_code, done.output


def of(table: Path) -> tuple[str, ...]:
    return ("--data", f"csv:{table / 't.csv'}", "--schema", str(table / "s.yaml"))


def test_training_synthesis_and_attack_go_by_user(table: Path, tmp_path: Path) -> None:
    code, out = call("train", *of(table), "--users", "patient", "--seed", 0, "--out", tmp_path / "a")
    assert code == 0 and "add/remove one user" in out and "the number of users is public" in out
    assert Ledger.open(tmp_path / "a" / "ledger.jsonl", read_only=True).unit == "user"
    card = (tmp_path / "a" / "CARD.md").read_text()
    assert f"about {round(0.8 * USERS)} training users, which are protected; so are the others, about 20 %" in " ".join(
        card.split()
    )
    assert "measured on about 20 % of the users" in card.replace("\N{NO-BREAK SPACE}", " ")
    assert "person" not in card.replace("a person's", "")
    assert "NOT FOR RELEASE" in card[: card.index("| What is asked")] and "may be published" not in out  # seeded
    assert call("attack", tmp_path / "a")[0] == 0
    code, out = call("synthesize", *of(table), "--users", "patient", "--seed", 0, "--out", tmp_path / "b")
    assert code == 0 and "add/remove one user" in out
    assert not any("patient" in path.read_text() for path in (tmp_path / "b" / "release").glob("*.csv"))


def test_a_stated_number_of_users_is_the_only_one_that_is_told(table: Path, tmp_path: Path) -> None:
    code, out = call(
        "train", *of(table), "--users", "patient", "--public-size", 500, "--seed", 0, "--out", tmp_path / "a", "--json"
    )
    assert code == 0
    facts = json.loads(out[out.index("{") :])
    assert facts["spent"]["unit"] == "user" and facts["spent"]["conditions"] == []
    assert "400 training users" in (tmp_path / "a" / "CARD.md").read_text()


def test_what_has_no_proof_for_users_is_refused(table: Path, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCHEMA.replace("ignore: [patient]", "user: patient"))
    named = ("--data", f"csv:{table / 't.csv'}", "--schema", tmp_path / "s.yaml")
    for method in (("optimized-noise", "--as-published"), ("residual",)):
        code, out = call("train", *named, "--method", *method, "--out", tmp_path / "r")
        assert code == 2 and "it has no proof for users who hold several records" in " ".join(out.split())
        assert not (tmp_path / "r").exists()


def test_users_of_data_without_columns_are_refused(tmp_path: Path) -> None:
    code, out = call("train", "--data", "digits", "--users", "patient", "--out", tmp_path / "a")
    assert code == 2 and "no column of users" in out
