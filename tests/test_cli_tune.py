"""`privet tune` from the command to the folder: the preview, the choice, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from privet.cli import app
from privet.cli import tune as verb
from privet.report import RunRecord
from privet.runs.tune import WORKING, Drawn

GRID = ["--set", "learning_rate=0.5,2", "--set", "epochs=1"]
FILES = [
    "CARD.md",
    "card.json",
    "ledger.jsonl",
    "model.py",
    "model.safetensors",
    "record.json",
    "report.html",
    "steps.csv",
]


def privet(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


def drawing(monkeypatch: pytest.MonkeyPatch, *order: int) -> None:
    ties = tuple((n + 1) / (len(order) + 2) for n in range(len(order)))
    monkeypatch.setattr(Drawn, "of", classmethod(lambda cls, *_: Drawn(order, ties)))


def test_the_preview_says_what_it_costs_and_does_nothing(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "tuned"
    page = privet("tune", "--data", "digits", "--epsilon", 3, *GRID, "--set", "clip=0.5,1", "--out", out, "--dry-run")
    assert page.exit_code == 0, page.output
    assert not out.parent.exists()
    lines = page.stdout.splitlines()
    assert lines[0] == "4 candidates:"
    assert lines[1] == "  learning_rate=0.5, clip=0.5"
    assert "Each trial is scored by its accuracy on about 50 % of the test records, which are public." in lines[5]
    assert "The number of trials is random (poisson with mean 5) and stays secret" in lines[6]
    assert "With probability 0.0067 there is none" in lines[6]
    assert "One run with the noise of a trial, without a choice: epsilon = " in lines[7]
    for way in ("poisson, mean 5", "geometric, mean 5", "logarithmic, mean 5", "each candidate once"):
        assert sum(line.startswith(f"  {way}") for line in lines) == 1
    assert lines[-4].startswith("Cost: epsilon = 3 at delta = 1e-05 (add/remove one record; Poisson sampling; RDP;")
    assert lines[-1].endswith("Nothing was spent, and nothing was written.")


def test_the_preview_for_programs(tmp_path: Path) -> None:
    arguments = ["--data", "digits", "--epsilon", 3, *GRID, "--trials", "geometric", "--mean", 4, "--dry-run", "--json"]
    page = privet("tune", *arguments, "--out", tmp_path / "a")
    assert page.exit_code == 0, page.output
    facts = json.loads(page.stdout)
    assert facts["dry_run"] is True
    assert facts["candidates"] == ["learning_rate=0.5", "learning_rate=2"]
    assert (facts["trials"], facts["mean"]) == ("geometric", 4.0)
    assert facts["at_most"] == {"0.5": 3, "0.9": 9, "0.999": 25}
    assert facts["one_run"] < facts["spent"]["epsilon"] <= 3
    assert facts["tried"] == pytest.approx(1 - (0.5 * 0.25) / (1 - 0.75 * 0.5))
    assert {each["trials"] for each in facts["alternatives"]} == {"poisson", "logarithmic", "once"}
    assert not (tmp_path / "a").exists()


def test_the_best_trial_is_the_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawing(monkeypatch, 0, 1, 1)
    out = tmp_path / "tuned"
    command = ["tune", "--data", "digits", "--epsilon", 3, *GRID, "--trials", "geometric", "--out", out]
    page = privet(*command)
    assert page.exit_code == 0, page.output
    assert sorted(path.name for path in out.iterdir()) == FILES
    record = RunRecord.read(out)
    assert record.tuning is not None
    lines = page.stdout.splitlines()
    assert lines[0] == f"A private classifier of digits: {record.tuning.chosen}"
    assert lines[1] == str(record.spent(record.open_ledger(out)))
    assert lines[1].startswith("epsilon = 3 at delta = 1e-05")
    assert "The trained model is the best of a random number of trials (geometric with mean 5)" in page.stdout
    assert "Randomness: secret keys" in lines
    for said in ("3 trials", "trial 1", "trial-"):
        assert said not in page.output
    for again in (command, [*command, "--resume"]):
        refused = privet(*again)
        assert refused.exit_code == 2, refused.output
    assert privet("report", out).exit_code == 0
    # Another run beside it counts it.
    other = privet(
        "train", "--data", "digits", "--epsilon", 1, "--seed", 1, "--set", "epochs=1", "--out", tmp_path / "other"
    )
    assert other.exit_code == 0, other.output
    card = json.loads((tmp_path / "other" / "card.json").read_text())
    assert [run["name"] for run in card["other_runs"]["runs"]] == ["tuned"]
    assert "chosen among a random number of trials" in card["other_runs"]["together"]


def test_for_programs_and_with_few_candidates_each_is_tried_once(tmp_path: Path) -> None:
    page = privet("tune", "--data", "digits", "--epsilon", 3, *GRID, "--seed", 2, "--out", tmp_path / "a", "--json")
    assert page.exit_code == 0, page.output
    facts = json.loads(page.stdout)
    assert facts["tuning"]["trials"] == ""  # of two candidates, both are cheaper than five trials
    assert facts["spent"]["accountant"] == "PLD"
    assert facts["tuning"]["one"] < facts["spent"]["epsilon"] <= 3
    assert facts["randomness"] == "reproducible, not for release"
    assert "seconds" not in facts


def test_recipes_are_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVET_DATA", str(tmp_path / "cache"))
    arguments = ["--data", "digits", "--recipes", "digits-linear,vectors", "--set", "epochs=1", "--trials", "once"]
    page = privet("tune", *arguments, "--epsilon", 3, "--seed", 1, "--out", tmp_path / "a", "--json")
    assert page.exit_code == 0, page.output
    assert json.loads(page.stdout)["tuning"]["candidates"] == ["recipe=digits-linear", "recipe=vectors"]


def test_a_tuning_that_was_stopped_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawing(monkeypatch, 0, 1)
    ticks = [0]

    def stop() -> None:
        ticks[0] += 1
        if ticks[0] == 8:
            raise KeyboardInterrupt

    class Stopping:
        def __enter__(self) -> Any:
            return stop

        def __exit__(self, *_: object) -> None:
            pass

    command = ["tune", "--data", "digits", "--epsilon", 3, *GRID, "--trials", "geometric", "--out", tmp_path / "a"]
    with monkeypatch.context() as patched:
        patched.setattr(verb, "_waiting", Stopping)
        page = privet(*command)
    assert page.exit_code == 130, page.output
    assert "--resume" in page.stderr
    assert (tmp_path / "a" / WORKING).exists()
    refused = privet(*command)
    assert refused.exit_code == 2
    assert "resume it" in refused.stderr
    other = privet(*command[:4], 2, *command[5:], "--resume")
    assert other.exit_code == 2
    assert "was made with" in other.stderr
    page = privet(*command, "--resume")
    assert page.exit_code == 0, page.output
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == FILES


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    at = tmp_path_factory.mktemp("people")
    draw = np.random.default_rng(0)
    rows = [f"{age:.9f},{height:.9f},{'yes' if age > 0.5 else 'no'}" for age, height in draw.random((1500, 2))]
    (at / "people.csv").write_text("\n".join(["age,height,sick", *rows]) + "\n")
    columns = {"age": {"low": 0, "high": 1}, "height": {"low": 0, "high": 1}, "sick": {"categories": ["no", "yes"]}}
    (at / "schema.json").write_text(json.dumps({"label": "sick", "columns": columns}))
    return ["--data", f"csv:{at / 'people.csv'}", "--schema", at / "schema.json"]


def test_a_private_file_is_scored_with_noise(
    tmp_path: Path, people: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing(monkeypatch, 1, 0)
    page = privet("tune", *people, "--epsilon", 3, *GRID, "--trials", "geometric", "--out", tmp_path / "a", "--json")
    assert page.exit_code == 0, page.output
    facts = json.loads(page.stdout)
    assert "with Gaussian noise of" in facts["tuning"]["score"]
    assert facts["accuracy"]["noise"] > 0
    assert facts["spent"]["epsilon"] <= 3
    card = json.loads((tmp_path / "a" / "card.json").read_text())
    kinds = json.dumps(card["accesses"])
    assert kinds.count("RepeatAndSelect") == 1
    assert "NotPrivate" not in kinds
    exact = RunRecord.read(tmp_path / "a").test_accuracy
    assert f"{exact}" not in (tmp_path / "a" / "card.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "There is nothing to choose"),
        (["--set", "clip=1"], "There is nothing to choose"),
        (["--set", "clip=1,1"], "different values separated by commas"),
        (["--set", "clip=1,,2"], "different values separated by commas"),
        (["--set", "clip=1,x"], "clip is a number, and 'x' is not"),
        (["--set", "clap=1,2"], "--set clap is not a setting of --method dpsgd: did you mean clip?"),
        (["--set", "clip=1,2", "--trials", "uniform"], "--trials is auto, poisson"),
        (["--set", "clip=1,2", "--trials", "negative-binomial:-1"], "with a shape of at least 0"),
        (["--set", "clip=1,2", "--trials", "once", "--mean", "4"], "--mean is not used with --trials once"),
        (["--set", "clip=1,2", "--mean", "1e9"], "between 1 and 500"),
        (["--method", "moments", "--set", "components=5,6"], "chooses among models"),
        (["--recipes", "digits-linear,nowhere"], "There is no recipe 'nowhere'"),
        (["--recipes", "abadi-mnist", "--set", "clip=1,2"], "states its noise"),
        (["--set", "clip=1,2", "--epsilon", "0"], "--epsilon must be"),
        (["--set", "clip=1,2", "--resume"], "Give the folder of the run to continue"),
    ],
)
def test_what_cannot_be_tuned_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    page = privet("tune", "--data", "digits", *arguments)
    assert page.exit_code == 2, page.output
    assert said in page.stderr
    assert page.stderr.count("\n") == 1
    assert "Traceback" not in page.output
    assert list(tmp_path.iterdir()) == []


def test_waiting_tells_nothing_about_the_trials(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(verb.time, "monotonic", lambda: now[0])
    with verb._waiting() as tick:
        for _ in range(300):
            now[0] += 1.0
            tick()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"Tuning for {minutes} min 00 s; the number of trials is secret." for minutes in range(1, 6)]
