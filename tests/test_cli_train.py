"""`privet train` from the command to the folder, and the verbs that go on from there."""

import json
from html import unescape

import pytest
import torch
from typer.testing import CliRunner

from privet.cli import app
from privet.methods import Task, method_for
from privet.privacy import Ledger
from privet.report import RunRecord

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


def privet(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "a"
    page = privet("train", "--data", "digits", "--epsilon", 3, "--seed", 1, "--out", folder)
    assert page.exit_code == 0, page.output
    return folder, page


def test_it_says_what_it_picked_and_why_and_trains_past_ninety_percent(finished):
    folder, page = finished
    lines = page.stdout.splitlines()
    assert (
        lines[0] == "Recipe digits-linear, because it was made for digits: Softmax regression on the pixels of digits."
    )
    record = RunRecord.read(folder)
    assert record.test_accuracy > 0.9
    spent = record.open_ledger(folder).spent(1e-5)
    assert spent.epsilon <= 3
    assert str(spent) in lines
    assert "Randomness: reproducible, not for release" in lines
    assert sorted(path.name for path in folder.iterdir()) == FILES


def test_attack_and_report_go_on_from_its_folder(finished):
    folder, _ = finished
    before = (folder / "report.html").read_bytes()
    assert privet("report", folder).exit_code == 0
    assert (folder / "report.html").read_bytes() == before
    auc = RunRecord.read(folder).attack.auc
    page = privet("attack", folder)
    assert page.exit_code == 0, page.output
    assert f"AUC {auc:.4f}" in page.stdout


def test_scattering_features_from_recipe_to_attack(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVET_DATA", str(tmp_path / "cache"))
    arguments = ["--data", "digits", "--recipe", "images", "--epsilon", 3, "--seed", 1, "--json"]
    page = privet("train", *arguments, "--out", tmp_path / "a")
    assert page.exit_code == 0, page.output
    facts = json.loads(page.stdout)
    assert facts["recipe"] == "images"
    assert facts["test_accuracy"] > 0.7
    assert facts["spent"]["epsilon"] <= 3
    assert "Released before training" in (tmp_path / "a" / "report.html").read_text()
    attacked = json.loads(privet("attack", tmp_path / "a", "--json").stdout)
    assert attacked["auc"] == pytest.approx(facts["attack"]["auc"], abs=1e-9)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--epsilon", "0"], "--epsilon must be a number above 0, and is 0.0."),
        (["--delta", "1"], "--delta must lie between 0 and 1, and is 1.0."),
        (["--recipe", "nope"], "There is no recipe 'nope'"),
        (["--data", "nothing"], "There is no data set 'nothing'"),
        (["--set", "epochs=0"], "The setting epochs is a finite number above 0"),
        (["--set", "accountant=nope"], "nope"),
        (["--model", "nope"], "There is no model 'nope'"),
        (["--model", "py:nope:Net"], "There is no module 'nope'"),
    ],
)
def test_bad_usage_is_said_before_anything_is_written(arguments, sentence, tmp_path):
    given = {"--data": "digits", "--out": tmp_path / "runs" / "a"} | dict(
        zip(arguments[::2], arguments[1::2], strict=True)
    )
    page = privet("train", *(word for pair in given.items() for word in pair))
    assert page.exit_code == 2
    assert page.stderr.startswith("privet: ")
    assert sentence in page.stderr
    assert not (tmp_path / "runs").exists()


def test_a_table_of_ones_own_from_schema_to_attack(tmp_path):
    generator = torch.Generator().manual_seed(0)
    rows = [
        f"{float(x):.3f},{float(y):.3f},{'yes' if x + y > 1 else 'no'}"
        for x, y in torch.rand(600, 2, generator=generator)
    ]
    (tmp_path / "mine.csv").write_text("\n".join(["height,width,fits", *rows]) + "\n")
    columns = {"height": {"low": 0, "high": 1}, "width": {"low": 0, "high": 1}, "fits": {"categories": ["no", "yes"]}}
    schema = {"label": "fits", "columns": columns}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    asked = ["train", "--data", f"csv:{tmp_path / 'mine.csv'}", "--schema", tmp_path / "schema.json", "--seed", 1]
    page = privet(*asked, "--epsilon", 8, "--out", tmp_path / "a")
    assert page.exit_code == 0, page.output
    assert page.stdout.startswith(
        "Recipe vectors, because no recipe was made for mine.csv, and records of 2 are vectors"
    )
    record = RunRecord.read(tmp_path / "a")
    assert (record.data.training_records, record.data.test_records) == (480, 0)  # from the public 600 alone
    assert record.test_accuracy > 0.7
    attacked = privet("attack", tmp_path / "a")
    assert attacked.exit_code == 0, attacked.output
    assert f"AUC {record.attack.auc:.4f}" in attacked.stdout


def test_a_run_is_never_written_over(finished):
    folder, _ = finished
    page = privet("train", "--data", "digits", "--out", folder)
    assert (page.exit_code, page.stderr) == (
        2,
        f"privet: {folder} holds a run already: give another folder with --out.\n",
    )


def test_a_method_that_does_not_exist_is_a_usage_error(tmp_path):
    assert privet("train", "--method", "magic", "--data", "digits", "--out", tmp_path / "a").exit_code == 2


def test_a_stopped_run_goes_on_and_ends_as_if_it_had_not_been_stopped(finished, tmp_path, monkeypatch):
    from privet.training.step import Step

    whole, _ = finished
    folder, arguments = tmp_path / "a", ["train", "--data", "digits", "--epsilon", 3, "--seed", 1]
    release, done = Step.release, 0

    def stopping(*given, **named):
        nonlocal done
        done += 1
        if done == 47:
            raise KeyboardInterrupt
        return release(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Step, "release", stopping)
        assert privet(*arguments, "--out", folder).exit_code == 130
    assert not (folder / "record.json").exists()
    refused = privet(*arguments, "--out", folder)
    assert refused.exit_code == 2
    assert "holds a run already" in refused.stderr
    page = privet(*arguments, "--out", folder, "--resume")
    assert page.exit_code == 0, page.output
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    ledgers = [Ledger.open(place / "ledger.jsonl", read_only=True) for place in (folder, whole)]
    assert list(ledgers[0]) == list(ledgers[1])
    assert ledgers[0].head != ledgers[1].head  # no two runs share the hash by which they are recognized
    assert RunRecord.read(folder).history == RunRecord.read(whole).history
    again = privet(*arguments, "--out", folder, "--resume")
    assert again.exit_code == 2
    assert f"The run in {folder} is finished" in again.stderr


def test_releases_of_a_stopped_run_are_not_made_again(tmp_path, monkeypatch):
    from privet import data
    from privet.runs import run
    from privet.training.step import Step

    monkeypatch.setenv("PRIVET_DATA", str(tmp_path / "cache"))
    task = Task(data.load("digits"), 3.0, 1e-5)
    method = method_for("dpsgd", task, {"recipe": "images"})

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Step, "release", stopped)
        run(method, task, tmp_path / "a")
    monkeypatch.setattr("privet.methods.preparation.private_mean", stopped)
    record = run(method, task, tmp_path / "a", resume=True)
    ledger = record.open_ledger(tmp_path / "a")
    assert len(ledger) == 1 + record.how.steps
    assert ledger.spent(1e-5).epsilon <= 3


SHORT = ("--set", "epochs=0.6")  # six steps


@pytest.mark.parametrize(
    ("form", "said"), [("", "grouped"), ("-elliptical", "elliptical clipping with Gaussian noise")]
)
def test_optimized_noise_is_proved(form, said, tmp_path):
    folder = tmp_path / "a"
    page = privet(
        "train", "--method", f"optimized-noise{form}", "--data", "digits", *SHORT, "--seed", 1, "--out", folder
    )
    assert page.exit_code == 0, page.output
    assert "; PLD; proved; the number of records is public)" in page.stdout
    record = RunRecord.read(folder)
    assert record.method == f"Optimized additive noise (Xiang et al. 2019), {said}"
    assert record.open_ledger(folder).spent(1e-5).epsilon <= 3


def test_as_published_every_sentence_with_an_epsilon_says_that_it_is_claimed(tmp_path, monkeypatch):
    folder = tmp_path / "a"
    arguments = ["--method", "optimized-noise-published", "--data", "digits", *SHORT, "--seed", 1]
    monkeypatch.setattr("privet.cli.progress.SECONDS_BETWEEN_LINES", 0.0)
    page = privet("train", *arguments, "--out", folder)
    assert page.exit_code == 0, page.output
    said = [line for line in page.output.splitlines() if "epsilon" in line and not line.startswith("Calibrating")]
    assert len(said) > 2
    assert all("only claimed by Xiang et al. 2019" in line for line in said), said
    # A claim is stated by the accountant of the claim, and by no other.
    assert any(line.startswith("epsilon = 3 at") and "strong composition" in line for line in said), said
    html = (folder / "report.html").read_text()
    assert "Claimed, not proved" in html
    assert "as published, by advanced composition: only claimed" in html
    facts = json.loads(privet("train", *arguments, "--json", "--out", tmp_path / "b").stdout)
    assert facts["spent"]["guarantee"] == "claimed" and facts["spent"]["accountant"] == "strong composition"
    assert "calibrated" not in facts


def test_a_run_calibrated_by_another_accountant_says_what_each_of_them_states(tmp_path):
    folder = tmp_path / "a"
    page = privet("train", "--data", "digits", "--method", "dpsgd-advanced", "--seed", 1, "--out", folder)
    assert page.exit_code == 0, page.output
    spent = RunRecord.read(folder).open_ledger(folder).spent(1e-5)
    assert spent.epsilon < 2
    html = unescape((folder / "report.html").read_text())
    assert "The noise was calibrated by strong composition, which says: epsilon = 3 at delta = 1e-05" in html
    assert "The statement above is that of PLD" in html
    said = privet("report", folder).stdout
    assert "; PLD; proved; the number of records is public)" in said
    assert "The noise was calibrated by strong composition: epsilon = 3 at" in said
    assert json.loads(privet("report", folder, "--json").stdout)["calibrated"]["epsilon"] == pytest.approx(
        3.0, rel=1e-3
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--as-published"],
        ["--form", "elliptical"],
        ["--method", "optimized-noise", "--as-published", "--form", "isotropic"],
    ],
)
def test_options_of_another_method_are_refused(arguments, tmp_path):
    page = privet("train", *arguments, "--data", "digits", "--out", tmp_path / "a")
    assert page.exit_code == 2
    assert arguments[-2 if "--form" in arguments else -1] in page.stderr
