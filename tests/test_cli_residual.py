"""Residual perturbation on the command line."""

import json
import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from privet.cli import app
from privet.cli.records import free_folder
from privet.report import RunRecord, load_model


def privet(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_a_run_keeps_its_noise_and_can_be_attacked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("privet.cli.train.LONG", 0.01)
    asked = ("train", "--method", "residual", "--data", "digits")
    page = privet(*asked, "--set", "gamma=0.5", "--set", "ensemble=2", "--set", "epochs=1", "--seed", 0)
    assert page.exit_code == 0, page.output
    assert re.match(r"This will take about \d+ s here; --set epochs=\.\.\. makes it shorter.\n", page.stderr)
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
    base = ["train", "--method", "residual", "--data", "digits", "--set", "epochs=1", "--json"]
    proved = privet(*base, "--set", "pi=30", "--set", "radius=4", "--out", tmp_path / "a")
    assert json.loads(proved.stdout)["spent"]["guarantee"] == "proved"
    assert json.loads(proved.stdout)["spent"]["epsilon"] < 1
    open_ = privet(*base, "--set", "strategy=II", "--set", "gamma=1", "--out", tmp_path / "b")
    assert open_.exit_code == 0, open_.output
    assert "No protection" in (tmp_path / "b" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--set gamma=1", "use it with --method residual or residual-dpsgd"),
        ("--method residual --set gamma=0", "there is no noise"),
        ("--method residual --set gamma=-1", "gamma"),
        ("--method residual --set ensemble=0", "The setting ensemble is a finite number at least 1"),
        ("--method residual --set epochs=-1", "The setting epochs is a finite number at least 0"),
        ("--method residual --set radius=3", "give pi too"),
        ("--method residual --set strategy=III", "is 'I' or 'II', not 'III'"),
        (
            "--method residual --recipe images",
            "--recipe is not used by --method residual. Leave it out, or use it with",
        ),
        ("--method residual --set strategy=II --set pi=1", "of strategy I"),
        (
            "--method residual-dpsgd --set pi=1",
            "--set pi is not used by --method residual-dpsgd. Leave it out, or use it with",
        ),
    ],
)
def test_bad_usage_gets_one_sentence(arguments, sentence, tmp_path):
    page = privet("train", "--data", "digits", *arguments.split(), "--out", tmp_path / "out")
    assert page.exit_code == 2
    assert sentence in page.stderr
    assert page.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
