"""`privet reproduce`: tables over seeds, kept run by run; quarters on a folder of patches; the reversal; all papers."""

import json
from importlib import resources
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image
from typer.testing import CliRunner

from privet.cli import app
from privet.errors import PrivetError
from privet.papers import Paper, load, measure
from privet.papers.table import PaperData


def privet(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


def recipe(name: str) -> str:
    return resources.files("privet.methods").joinpath("recipes", f"{name}.yaml").read_text(encoding="utf-8")


@pytest.fixture
def short(tmp_path):
    """A table of digits by its recipe with one epoch, and something published to compare with."""
    (tmp_path / "recipe.yaml").write_text(recipe("digits-linear").replace("epochs: 10", "epochs: 1"), encoding="utf-8")
    table = {
        "name": "short",
        "title": "Digits",
        "protocol": "accuracy",
        "data": {"source": "digits"},
        "settings": {"recipe": str(tmp_path / "recipe.yaml")},
        "epsilons": [3, 8],
        "lines": [
            {"method": "dpsgd", "published": [{"epsilon": 2.9, "figures": {"accuracy": 50}, "by": "Nobody 2020"}]}
        ],
    }
    path = tmp_path / "short.yaml"
    path.write_text(yaml.safe_dump(table), encoding="utf-8")
    return path


def test_a_table_with_the_published_figure_and_the_difference(short, tmp_path):
    out, results = tmp_path / "out", tmp_path / "results.json"
    page = privet("reproduce", short, "--seeds", 2, "--out", out, "--results", results)
    assert page.exit_code == 0, page.output
    rows = json.loads(results.read_text())
    assert [(row["epsilon"], row["seed"]) for row in rows] == [(3, 0), (3, 1), (8, 0), (8, 1)]
    kept = [json.loads((out / f"dpsgd-epsilon-3-seed-{seed}.json").read_text()) for seed in (0, 1)]
    assert kept == rows[:2]
    assert all(entry["spent"] <= 3 and entry["guarantee"] == "proved" for entry in kept)
    first, second = (entry["quantities"]["accuracy"] for entry in kept)
    assert first != second
    line = next(line for line in page.stdout.splitlines() if line.startswith("| DP-SGD (Abadi et al. 2016) | 3 "))
    assert "| 50 (Nobody 2020, at epsilon 2.9) |" in line
    assert f"| {50 * (first + second) - 50:+.2f} |" in line
    assert rows[0]["curve"][-1][0] == pytest.approx(1.0)
    assert "last parameters" not in page.stdout
    assert "at delta = 1e-05 (add/remove one record; Poisson sampling; PLD; proved" in page.stdout
    assert "DP-SGD (Abadi et al. 2016), epsilon 8, seed 1: accuracy %" in page.stderr


def test_averaged_and_last_parameters_of_one_training_stand_beside_each_other(short, tmp_path):
    own = tmp_path / "recipe.yaml"
    own.write_text(own.read_text().replace("  clip:", "  average: 0.9\n  clip:", 1).replace(
        "origins:", 'origins:\n  average: {source: convention, note: ""}'
    ))  # fmt: skip
    page = privet("reproduce", short, "--seeds", 1, "--epsilon", 3, "--out", tmp_path / "out")
    assert page.exit_code == 0, page.output
    kept = json.loads((tmp_path / "out" / "dpsgd-epsilon-3-seed-0.json").read_text())["quantities"]
    assert kept["last"] != kept["accuracy"]
    assert "| accuracy % | published | difference | last parameters % | seeds |" in page.stdout
    assert f"| {100 * kept['last']:.2f} | 1 |" in page.stdout


def test_what_is_there_is_not_computed_again_unless_the_recipe_changed(short, tmp_path, monkeypatch):
    asked = ["reproduce", short, "--seeds", 1, "--epsilon", 3, "--out", tmp_path / "out", "--json"]
    first = json.loads(privet(*asked).stdout)

    def fails(*_: object, **__: object) -> None:
        raise AssertionError("it was computed again")

    own = tmp_path / "recipe.yaml"
    with monkeypatch.context() as patch:
        patch.setattr("privet.methods.dpsgd.train", fails)
        assert json.loads(privet(*asked).stdout) == first
        own.write_text(own.read_text().replace("learning_rate: 2", "learning_rate: 1"))
        assert isinstance(privet(*asked).exception, AssertionError)
    (tmp_path / "out" / "dpsgd-epsilon-3-seed-0.json").write_text("{")
    again = json.loads(privet(*asked).stdout)
    assert again[0]["quantities"] != first[0]["quantities"]


def test_results_of_other_tables_are_left_alone(short, tmp_path):
    results = tmp_path / "results.json"
    mine = {
        "table": "short",
        "line": "dpsgd",
        "epsilon": 3.0,
        "delta": 1e-5,
        "quantities": {"accuracy": 0.1},
        "seeds": 3,
    }
    results.write_text(json.dumps([mine | {"table": "another"}, mine]))
    asked = ["reproduce", short, "--seeds", 1, "--epsilon", 3, "--out", tmp_path / "out", "--results", results]
    assert privet(*asked).exit_code == 0
    rows = json.loads(results.read_text())
    assert [(row["table"], row["seeds"]) for row in rows] == [("another", 3), ("short", 1)]


def test_a_recipe_is_run_as_a_table(tmp_path):
    page = privet("reproduce", "digits-linear", "--seeds", 1, "--out", tmp_path / "out", "--results", tmp_path)
    assert page.exit_code == 0, page.output
    (row,) = json.loads((tmp_path / "digits-linear.json").read_text())
    assert row["command"] == "privet reproduce digits-linear --seeds 1"
    assert row["quantities"]["accuracy"] > 0.6


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nope"], "There is no table 'nope': there are"),
        (["digits-linear", "--epsilon", "-1"], "--epsilon must be a number above 0"),
        (["triastcyn-mnist", "--epsilon", "5"], "no line at epsilon 5"),
        (["triastcyn-mnist", "--line", "99"], "and not 99"),
        (["wang-idc"], "give them with --data folder:PATH"),
        (["digits-linear", "--data", "digits"], "--data is not used by digits-linear"),
        (["wang-cifar10", "--method", "dpsgd"], "--method is not used by wang-cifar10"),
        (["triastcyn-mnist", "--method", "dpsgd"], "--method is not used by triastcyn-mnist"),
        (["wang-reversal", "--epsilon", "1"], "--epsilon is not used by wang-reversal"),
        (["wang-theorem", "--seeds", "1"], "--seeds is not used by wang-theorem"),
        (["wang-cifar10", "--line", "99"], "has the lines 1 to"),
        (["abadi-mnist", "--all"], "--all takes no TABLE"),
        (["abadi-mnist", "--no-run"], "--no-run belongs to --all"),
        (["--all", "--epsilon", "3"], "--epsilon is not used by --all"),
        ([], "Name a table, or use --all"),
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


def test_several_methods_beside_each_other_and_what_is_only_claimed_says_so(short, tmp_path):
    own = tmp_path / "recipe.yaml"
    own.write_text(own.read_text().replace("epochs: 1", "steps: 4").replace("  epochs: {", "  steps: {"))
    methods = [
        each for each in dict.fromkeys(line.method for line in load("xiang-mnist").lines) if "isotropic" not in each
    ]
    chosen = [
        word for method in methods for word in ("--method", method)
    ]  # without isotropic, whose privacy loss takes a while
    page = privet("reproduce", short, "--seeds", 1, "--epsilon", 2, *chosen, "--out", tmp_path / "out")
    assert page.exit_code == 0, page.output
    rows = [line for line in page.stdout.splitlines() if "| 2 |" in line]
    assert len(rows) == 5
    said = (*rows, *page.stderr.splitlines(), *(line for line in page.stdout.splitlines() if line.startswith("- ")))
    claimed = [line for line in said if "as published" in line]
    assert len(claimed) == 3
    assert all("as published, by advanced composition: only claimed" in line for line in claimed)


def test_a_method_that_the_table_does_not_name(short, tmp_path):
    method, results = "optimized-noise-elliptical", tmp_path / "results.json"
    arguments = [short, "--seeds", 1, "--epsilon", 3, "--out", tmp_path / "out", "--results", results]
    page = privet("reproduce", *arguments, "--method", method)
    assert page.exit_code == 0, page.output
    (row,) = json.loads(results.read_text())
    assert (row["line"], row["command"].split()[-2:]) == (method, ["--method", method])
    wrong = privet("reproduce", *arguments, "--method", "magic")
    assert wrong.exit_code == 2
    assert "There is no method 'magic'" in wrong.stderr


def test_formulas_are_printed_at_once():
    page = privet("reproduce", "wang-theorem")
    assert page.exit_code == 0, page.output
    assert "| 108,883 | 110,000 | -1,117 | equal, to the digits that are published |" in page.stdout
    assert "(claimed, not proved)" in page.stdout


# --- quarters ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def patches(tmp_path_factory):
    """Patches of 50x50 in two classes, darker and brighter, as a folder."""
    folder = tmp_path_factory.mktemp("patches")
    generator = torch.Generator().manual_seed(0)
    for label, count in (("0", 70), ("1", 26)):
        (folder / label).mkdir()
        for number in range(count):
            pixels = torch.randint(60 + 120 * int(label), (50, 50, 3), generator=generator, dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(folder / label / f"{number}.png")
    return folder


@pytest.fixture
def quick(tmp_path):
    """The table of the paper with two epochs."""
    text = resources.files("privet.papers").joinpath("tables", "wang-idc.yaml").read_text(encoding="utf-8")
    path = tmp_path / "quick.yaml"
    path.write_text(text.replace("epochs: 100", "epochs: 2").replace("batch_size: 128", "batch_size: 8"))
    return path


def test_quarters_on_a_folder_of_patches(quick, patches, tmp_path):
    out, results = tmp_path / "out", tmp_path / "results.json"
    asked = ["reproduce", quick, "--data", f"folder:{patches}", "--out", out]
    page = privet(*asked, "--line", 1, "--line", 2, "--line", 5, "--results", results)
    assert page.exit_code == 0, page.output
    rows = [line for line in page.stdout.splitlines() if line.startswith("| ")][1:]
    assert [row.split(" | ")[0].strip("| ").partition(" (claimed")[0] for row in rows] == [
        "ResNet8",
        "En1 ResNet8, gamma 0.3",
        "DP-SGD, ResNet8",
    ]
    assert "quarters of 11 records, 2 epochs" in page.stdout  # 33 + 12 of 96 patches, in the proportions of the paper
    assert (out / "roc.svg").stat().st_size > 1000
    statements = [line for line in page.stdout.splitlines() if line.startswith("- ")]
    assert "epsilon = inf" in statements[0]
    assert "only claimed by Theorem 1" in statements[1] and "replace one record" in statements[1]
    assert "Poisson sampling; PLD; proved" in statements[2]
    found = json.loads(results.read_text())
    assert [row["guarantee"].startswith("proved") for row in found] == [False, False, True]
    assert found[0]["spent"] is None and found[0]["infinite"] == ["spent"]
    assert all(row["attack"]["members"] == 11 and 0 <= row["quantities"]["auc"] <= 1 for row in found)


def test_quarters_that_are_there_are_not_computed_again(quick, patches, tmp_path, monkeypatch):
    asked = ["reproduce", quick, "--data", f"folder:{patches}", "--out", tmp_path / "out", "--line", 1, "--json"]
    first = json.loads(privet(*asked).stdout)

    def fails(*_: object) -> None:
        raise AssertionError("it was computed again")

    monkeypatch.setattr(measure, "quarters", fails)
    assert json.loads(privet(*asked).stdout) == first
    quick.write_text(quick.read_text().replace("clip: 1", "clip: 2"))  # of DP-SGD, which this line does not use
    assert json.loads(privet(*asked).stdout) == first
    quick.write_text(quick.read_text().replace("learning_rate: 0.1", "learning_rate: 0.2"))
    assert isinstance(privet(*asked).exception, AssertionError)


def test_the_reversal_writes_its_figure(tmp_path):
    page = privet("reproduce", "wang-reversal", "--out", tmp_path / "out", "--json")
    assert page.exit_code == 0, page.output
    facts = json.loads(page.stdout)
    assert facts["rmse"]["ODE"] < 0.02 < 1 < facts["rmse"]["SDE, strategy I, gamma 1"]
    assert (tmp_path / "out" / "reversal.jpg").stat().st_size > 10_000
    stored = resources.files("privet").joinpath("../../benchmarks/results/wang-reversal.json")
    known = {one["line"]: one["quantities"]["error"] for one in json.loads(Path(str(stored)).read_text())}
    assert facts["rmse"] == pytest.approx(known, rel=1e-3)
    assert privet("reproduce", "wang-reversal", "--image", tmp_path / "no.png").exit_code == 2


# --- all papers -------------------------------------------------------------------------------------------------------


def test_one_failure_stops_nothing_and_what_is_kept_is_not_computed_again(monkeypatch, tmp_path):
    made = (Paper("T", "B", ("digits-linear", "ellipse-mnist")),)  # runs in a second; fails
    monkeypatch.setattr("privet.papers.page.papers", lambda: made)
    real = PaperData.load

    def load_records(self, source="", progress=None):
        if self.source == "mnist":
            raise PrivetError("No source could give mnist.")
        return real(self, source, progress)

    monkeypatch.setattr(PaperData, "load", load_records)
    page = privet("reproduce", "--all", "--seeds", 1, "--out", tmp_path)
    assert page.exit_code == 0, page.output
    assert "1/7 digits-linear: dpsgd, epsilon 3" in page.stderr
    assert "ellipse-mnist: dpsgd, epsilon 0.3 failed: No source could give mnist." in page.stderr
    assert page.stdout.count("failed: No source could give mnist.") == 6
    kept = (tmp_path / "digits-linear.json").read_text()
    monkeypatch.setattr("privet.methods.dpsgd.train", None)  # calling it would fail
    again = privet("reproduce", "--all", "--seeds", 1, "--out", tmp_path, "--json")
    assert (tmp_path / "digits-linear.json").read_text() == kept
    first = json.loads(again.stdout)["sources"][0]["sections"][0]["rows"][0]
    assert first["seeds"] == 1 and first["state"] == "" and first["figures"][0]["ours"] > 60
