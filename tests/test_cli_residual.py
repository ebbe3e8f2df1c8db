"""Residual perturbation on the command line: training, the comparison on a folder of patches, the reversal."""

import dataclasses
import json
import re
from importlib import resources
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from privet.attacks import Roc
from privet.cli import app
from privet.cli.comparisons import shown
from privet.cli.train import free_folder
from privet.recipes import comparison
from privet.recipes.comparison import Line, Measured
from privet.report import AttackResult, RunRecord, load_model


def privet(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


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
def short(tmp_path):
    """The comparison of the paper with two epochs and three lines."""
    text = resources.files("privet.recipes").joinpath("comparisons", "wang-idc.yaml").read_text(encoding="utf-8")
    for before, after in {"epochs: 100": "epochs: 2", "batch_size: 128": "batch_size: 8"}.items():
        text = text.replace(before, after)
    path = tmp_path / "short.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_comparison_on_a_folder_of_patches(short, patches, tmp_path):
    out, results = tmp_path / "out", tmp_path / "results.json"
    asked = ["reproduce", short, "--data", f"folder:{patches}", "--out", out]
    page = privet(*asked, "--line", 1, "--line", 2, "--line", 5, "--results", results)
    assert page.exit_code == 0, page.output
    rows = [line for line in page.stdout.splitlines() if line.startswith("| ")][1:]
    assert [row.split(" | ")[0].strip("| ") for row in rows] == ["ResNet8", "En1 ResNet8, gamma 0.3", "DP-SGD, ResNet8"]
    assert "quarters of 11 records, 2 epochs" in page.stdout  # 33 + 12 of 96 patches, in the proportions of the paper
    assert (out / "roc.svg").stat().st_size > 1000
    statements = [line for line in page.stdout.splitlines() if line.startswith("- ")]
    assert "epsilon = inf" in statements[0]
    assert "only claimed by Theorem 1" in statements[1] and "replace one record" in statements[1]
    assert "Poisson sampling; PLD; proved" in statements[2]
    found = json.loads(results.read_text())
    assert [row["line"]["dpsgd"] for row in found] == [False, False, True]
    assert all(row["records"] == 11 and 0 <= row["attack"]["auc"] <= 1 for row in found)


def test_what_is_there_is_not_computed_again(short, patches, tmp_path, monkeypatch):
    asked = ["reproduce", short, "--data", f"folder:{patches}", "--out", tmp_path / "out", "--line", 1, "--json"]
    results = tmp_path / "results.json"
    results.write_text(
        '[{"title": "ResNet8", "seed": 0}, {"title": "ResNet8", "seed": 1}, {"title": "En1 ResNet8, gamma 0.3", "seed": 0}]'
    )
    first = json.loads(privet(*asked, "--results", results).stdout)
    kept = json.loads(results.read_text())
    assert kept[0] == first[0]  # in the place of the row of the same line and seed, the others staying
    assert [(row["title"], row["seed"]) for row in kept[1:]] == [("ResNet8", 1), ("En1 ResNet8, gamma 0.3", 0)]

    def fails(*_: object) -> None:
        raise AssertionError("it was computed again")

    monkeypatch.setattr(comparison, "_measure", fails)
    assert json.loads(privet(*asked).stdout) == first
    short.write_text(short.read_text().replace("learning_rate: 0.1", "learning_rate: 0.2"))
    assert isinstance(privet(*asked).exception, AssertionError)


def test_the_papers_sizes_are_kept_where_there_are_enough_records():
    chosen = comparison.load("wang-idc")
    counts = (40_000 + 29_164 + 31_825, 11_595 + 10_788)
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    from privet.data import Dataset, Split

    whole = Dataset("idc", ("0", "1"), {"train": Split(torch.arange(len(labels))[:, None], labels)})
    divided = chosen.divided(whole)
    assert torch.bincount(divided.train.labels).tolist() == [29_164, 10_788]
    assert torch.bincount(divided.test.labels).tolist() == [31_825, 11_595]
    together = torch.cat([divided.train.inputs, divided.test.inputs]).flatten()
    assert len(together.unique()) == len(together)
    assert [chosen.schedule.rate(epoch) for epoch in (0, 20, 40, 60, 80, 99)] == [
        0.1 / 4**n for n in (0, 1, 2, 3, 4, 4)
    ]


@pytest.mark.parametrize("name", comparison.names())
def test_a_comparison_says_where_its_settings_came_from(name):
    chosen = comparison.load(name)
    assert chosen.name == name and chosen.depth == 8
    assert all(len(origin.note) > 5 for origin in chosen.origins.values())
    assert any(line.dpsgd for line in chosen.lines)


def test_several_seeds_are_shown_as_mean_and_spread():
    chosen = comparison.load("wang-cifar10")
    attack = AttackResult.of("", Roc.of(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, 2.5])))
    made = Measured(Line(), "ResNet8", 0, 9, 1.0, 0.4, attack, "", 1.0, "")
    table = shown(chosen, "cifar10", [[made, dataclasses.replace(made, seed=1, test_accuracy=0.5)]])
    assert "| ResNet8 | 2 |" in table
    assert "| 100.0 ± 0.0 | 45.0 ± 7.1 | +55.0 |" in table


def test_titles_say_what_was_trained():
    assert Line().title(8) == "ResNet8"
    assert Line(gamma=2, strategy="II", members=5).title(8) == "En5 ResNet8, gamma 2 (II)"
    assert Line(gamma=0.5, skips=False, dpsgd=True).title(14) == "DP-SGD, En1 ResNet14 without skips, gamma 0.5"


def test_the_reversal_writes_its_figure(tmp_path):
    page = privet("reproduce", "wang-reversal", "--out", tmp_path / "out", "--json")
    assert page.exit_code == 0, page.output
    facts = json.loads(page.stdout)
    assert facts["rmse"]["ODE"] < 0.02 < 1 < facts["rmse"]["SDE, strategy I, gamma 1"]
    assert (tmp_path / "out" / "reversal.jpg").stat().st_size > 10_000
    assert privet("reproduce", "wang-reversal", "--image", tmp_path / "no.png").exit_code == 2


def test_a_run_keeps_its_noise_and_can_be_attacked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("privet.cli.residual.LONG", 0.01)
    asked = ("train", "--method", "residual", "--gamma", 0.5, "--ensemble", 2, "--data", "digits", "--epochs", 1)
    page = privet(*asked, "--seed", 0)
    assert page.exit_code == 0, page.output
    assert re.match(r"This will take about \d+ s here; --epochs makes it shorter.\n", page.stderr)
    run = tmp_path / "runs" / "digits-residual"
    assert free_folder("digits-residual") == Path("runs", "digits-residual-2")
    assert "only claimed by Theorem 1 of the residual-perturbation paper" in page.stdout
    record = RunRecord.read(run)
    model = load_model(record, run).eval()
    x = torch.rand(2, 1, 8, 8)
    assert not torch.equal(model(x), model(x))
    assert record.model.arguments["members"] == 2
    assert record.settings["Optimizer"] == "SGD, learning rate 0.1, momentum 0.9"
    attacked = privet("attack", run)
    assert attacked.exit_code == 0, attacked.output
    assert "Claimed, not proved" in (run / "report.html").read_text()


def test_noise_on_the_input_is_proved_and_weights_of_strategy_two_are_not(tmp_path):
    base = ["train", "--method", "residual", "--data", "digits", "--epochs", 1, "--json"]
    proved = privet(*base, "--pi", 30, "--radius", 4, "--out", tmp_path / "a")
    assert json.loads(proved.stdout)["spent"]["guarantee"] == "proved"
    assert json.loads(proved.stdout)["spent"]["epsilon"] < 1
    open_ = privet(*base, "--strategy", "II", "--gamma", 1, "--out", tmp_path / "b")
    assert open_.exit_code == 0, open_.output
    assert "No protection" in (tmp_path / "b" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "--data", "digits", "--gamma", "1"], "use it with --method residual or residual-dpsgd"),
        (["train", "--data", "digits", "--method", "residual", "--gamma", "0"], "there is no noise"),
        (
            ["train", "--data", "digits", "--method", "residual", "--recipe", "images"],
            "it has a schedule of its own. Leave it out",
        ),
        (["train", "--data", "digits", "--method", "residual", "--strategy", "II", "--pi", "1"], "of strategy I"),
        (
            ["train", "--data", "digits", "--method", "residual-dpsgd", "--pi", "1"],
            "its proof and its length are those of DP-SGD",
        ),
        (["reproduce", "wang-idc"], "give them with --data folder:PATH"),
        (["reproduce", "digits-linear", "--data", "digits"], "--data is not used by the recipe digits-linear"),
        (["reproduce", "wang-cifar10", "--method", "dpsgd"], "--method is not used by wang-cifar10"),
        (["reproduce", "triastcyn-mnist", "--method", "dpsgd"], "--method is not used by triastcyn-mnist"),
        (["reproduce", "wang-reversal", "--epsilon", "1"], "--epsilon is not used by wang-reversal"),
        (["reproduce", "wang-cifar10", "--line", "99"], "has the lines 1 to"),
    ],
)
def test_bad_usage_gets_one_sentence(arguments, sentence, tmp_path):
    page = privet(*arguments, "--out", tmp_path / "out")
    assert page.exit_code == 2
    assert sentence in page.stderr
