"""`privet reproduce`: a table over seeds, kept training by training."""

import json
from importlib import resources

import pytest
from typer.testing import CliRunner

from privet.cli import app


def privet(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.fixture
def short(tmp_path):
    """The recipe of digits with one epoch and something published to compare with."""
    text = resources.files("privet.recipes").joinpath("digits-linear.yaml").read_text(encoding="utf-8")
    text = text.replace("epochs: 10", "epochs: 1").replace("- {epsilon: 3}", "- {epsilon: 3}\n  - {epsilon: 8}")
    path = tmp_path / "short.yaml"
    path.write_text(text + "published:\n  - {epsilon: 2.9, accuracy: 50, by: Nobody 2020}\n", encoding="utf-8")
    return path


def test_a_table_with_the_published_figure_and_the_difference(short, tmp_path):
    out, results = tmp_path / "out", tmp_path / "results.json"
    page = privet("reproduce", short, "--seeds", 2, "--out", out, "--results", results)
    assert page.exit_code == 0, page.output
    rows = json.loads(results.read_text())
    assert [row["epsilon"] for row in rows] == [3, 8]
    assert {"data", "method", "epsilon", "delta", "accuracy", "std", "seeds", "seconds"} <= rows[0].keys()
    kept = [json.loads((out / f"epsilon-3-seed-{seed}.json").read_text()) for seed in (0, 1)]
    assert rows[0]["accuracy"] == pytest.approx(sum(entry["accuracy"] for entry in kept) / 2, abs=1e-5)
    assert all(entry["spent"] <= 3 for entry in kept)
    assert kept[0]["accuracy"] != kept[1]["accuracy"]
    line = next(line for line in page.stdout.splitlines() if line.startswith("| 3 "))
    assert "| 50 at 2.9 (Nobody 2020) |" in line
    assert f"| {100 * rows[0]['accuracy'] - 50:+.2f} |" in line
    assert rows[0]["curve"][-1][0] == pytest.approx(1.0)
    assert "last parameters" not in page.stdout


def test_averaged_and_last_parameters_of_one_training_stand_beside_each_other(short, tmp_path):
    short.write_text(short.read_text().replace("  clip:", "  average: 0.9\n  clip:", 1).replace(
        "origins:", 'origins:\n  average: {source: convention, note: ""}'
    ))  # fmt: skip
    page = privet("reproduce", short, "--seeds", 1, "--epsilon", 3, "--out", tmp_path / "out")
    assert page.exit_code == 0, page.output
    kept = json.loads((tmp_path / "out" / "epsilon-3-seed-0.json").read_text())
    assert kept["last"] != kept["accuracy"]
    assert "| epsilon | accuracy % | last parameters % | seeds |" in page.stdout
    assert f"| 3 | {100 * kept['accuracy']:.2f} | {100 * kept['last']:.2f} | 1 |" in page.stdout


def test_what_is_there_is_not_computed_again_unless_the_recipe_changed(short, tmp_path, monkeypatch):
    asked = ["reproduce", short, "--seeds", 1, "--epsilon", 3, "--out", tmp_path / "out", "--json"]
    first = json.loads(privet(*asked).stdout)

    def fails(*_: object, **__: object) -> None:
        raise AssertionError("it was computed again")

    with monkeypatch.context() as patch:
        patch.setattr("privet.recipes.table.fit", fails)
        assert json.loads(privet(*asked).stdout) == first
        short.write_text(short.read_text().replace("learning_rate: 2", "learning_rate: 1"))
        assert isinstance(privet(*asked).exception, AssertionError)
    (tmp_path / "out" / "epsilon-3-seed-0.json").write_text("{")
    again = json.loads(privet(*asked).stdout)
    assert again[0]["accuracy"] != first[0]["accuracy"]


def test_rows_of_others_are_left_alone(short, tmp_path):
    results = tmp_path / "results.json"
    mine = {"recipe": "short", "epsilon": 3.0, "delta": 1e-5, "accuracy": 0.1}
    results.write_text(json.dumps([{"recipe": "another", "epsilon": 3.0, "delta": 1e-5}, mine]))
    asked = ["reproduce", short, "--seeds", 1, "--epsilon", 3, "--out", tmp_path / "out", "--results", results]
    assert privet(*asked).exit_code == 0
    rows = json.loads(results.read_text())
    assert [row["recipe"] for row in rows] == ["another", "short", "digits-linear"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nope"], "There is no recipe 'nope'"),
        (["digits-linear", "--epsilon", "-1"], "--epsilon must be a number above 0"),
    ],
)
def test_bad_usage_gets_one_sentence(arguments, sentence):
    page = privet("reproduce", *arguments)
    assert page.exit_code == 2
    assert sentence in page.stderr


def test_a_file_that_holds_no_results_is_left_as_it_is(short, tmp_path):
    results = tmp_path / "notes.txt"
    results.write_text("mine")
    page = privet("reproduce", short, "--seeds", 1, "--epsilon", 3, "--out", tmp_path / "out", "--results", results)
    assert (page.exit_code, results.read_text()) == (2, "mine")


def test_several_methods_beside_each_other_and_what_is_only_claimed_says_so(tmp_path):
    text = resources.files("privet.recipes").joinpath("xiang-mnist.yaml").read_text()
    changes = {"data: mnist": "data: digits", "epochs: 5": "steps: 4", "  epochs: {": "  steps: {"}
    for before, after in changes.items():
        text = text.replace(before, after)
    kept = [line for line in text.splitlines() if "isotropic" not in line]  # its privacy loss takes a while
    recipe = tmp_path / "several.yaml"
    recipe.write_text("\n".join(kept))
    page = privet("reproduce", recipe, "--seeds", 1, "--epsilon", 2, "--out", tmp_path / "out")
    assert page.exit_code == 0, page.output
    rows = [line for line in page.stdout.splitlines() if "| 2 |" in line]
    assert len(rows) == 5
    claimed = [line for line in (*rows, *page.stderr.splitlines()) if "published" in line]
    assert len(claimed) == 2
    assert all("as published, by advanced composition: only claimed" in line for line in claimed)
    assert "proved, but where the method says that it is only claimed" in page.stdout.splitlines()[0]


def test_a_method_that_the_recipe_does_not_name(short, tmp_path):
    method, results = "optimized-noise-elliptical", tmp_path / "results.json"
    arguments = [short, "--seeds", 1, "--epsilon", 3, "--out", tmp_path / "out", "--results", results]
    page = privet("reproduce", *arguments, "--method", method)
    assert page.exit_code == 0, page.output
    (row,) = json.loads(results.read_text())
    assert (row["method"], row["command"].split()[-2:]) == (method, ["--method", method])
    wrong = privet("reproduce", *arguments, "--method", "magic")
    assert wrong.exit_code == 2
    assert "There is no method 'magic'" in wrong.stderr
