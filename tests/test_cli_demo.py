"""The demo end to end on digits, and the verbs that go on from its folder."""

import dataclasses
import json
from importlib import resources

import pytest
from typer.testing import CliRunner

from privet.cli import app
from privet.cli import demo as verb
from privet.errors import PrivetError
from privet.report import RunRecord, load_model

FILES = ["CARD.md", "card.json", "ledger.jsonl", "model.safetensors", "record.json", "report.html", "steps.csv"]


@pytest.fixture(scope="session")
def short(tmp_path_factory):
    """The recipe of digits with two epochs."""
    text = resources.files("privet.recipes").joinpath("digits-linear.yaml").read_text(encoding="utf-8")
    path = tmp_path_factory.mktemp("recipes") / "short.yaml"
    path.write_text(text.replace("epochs: 10", "epochs: 2"), encoding="utf-8")
    return str(path)


def privet(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.fixture(autouse=True)
def short_training(monkeypatch, short):
    monkeypatch.setitem(verb.RECIPES, "digits", short)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, short):
    """A demo of two epochs with a seed, which tests only read."""
    folder = tmp_path_factory.mktemp("runs") / "demo"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(verb.RECIPES, "digits", short)
        page = privet("demo", "--data", "digits", "--seed", 3, "--out", folder)
    assert page.exit_code == 0, page.output
    return folder, page


def test_it_says_the_statement_the_accuracy_the_attack_and_where_the_page_is(finished):
    folder, page = finished
    record = RunRecord.read(folder)
    spent = record.open_ledger(folder).spent(1e-5)
    assert spent.epsilon <= 3.0
    lines = page.stdout.splitlines()
    assert lines[1] == str(spent)
    assert lines[2] == "Randomness: reproducible, not for release"
    assert lines[3] == f"{100 * record.test_accuracy:.2f} % of 360 test records right"
    assert lines[5].startswith(f"AUC {record.attack.auc:.4f}, 95 % interval")
    assert lines[-1] == f"The page: {folder / 'report.html'}"


def test_it_leaves_exactly_the_files_of_a_run(finished):
    folder, _ = finished
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert [path.name for path in folder.parent.iterdir()] == ["demo"]


def test_the_model_learned_something_and_the_record_tells_the_run(finished):
    folder, _ = finished
    record = RunRecord.read(folder)
    assert record.test_accuracy > 0.6
    assert record.history[-1].step == 20
    assert [epoch.epsilon for epoch in record.history] == sorted(epoch.epsilon for epoch in record.history)
    assert all(epoch.accuracy is not None for epoch in record.history)
    assert record.seeds["noise"] == "3"
    assert record.data.training_records == 1437
    assert "Whoever knows the seed" in (folder / "report.html").read_text()


def test_a_seed_repeats_the_run_and_no_seed_does_not(finished, tmp_path):
    folder, _ = finished
    for name, arguments in {"same": ["--seed", 3], "secure": []}.items():
        assert privet("demo", "--data", "digits", "--out", tmp_path / name, *arguments).exit_code == 0
    weights = {
        path: (path / "model.safetensors").read_bytes() for path in (folder, tmp_path / "same", tmp_path / "secure")
    }
    assert weights[tmp_path / "same"] == weights[folder]
    assert weights[tmp_path / "secure"] != weights[folder]
    assert RunRecord.read(tmp_path / "secure").seeds["noise"] == "secure"


def test_the_saved_model_is_the_one_that_was_measured(finished):
    from privet import data
    from privet.methods.dpsgd import accuracy

    folder, _ = finished
    record = RunRecord.read(folder)
    assert accuracy(load_model(record, folder), data.load("digits").test) == record.test_accuracy


def test_without_mnist_it_takes_digits_and_says_so(monkeypatch, tmp_path):
    from privet import data

    real = data.get

    def offline(name, **rest):
        if name == "mnist":
            raise PrivetError("No source could give mnist.")
        return real(name, **rest)

    monkeypatch.setattr(data, "get", offline)
    page = privet("demo", "--out", tmp_path / "demo")
    assert page.exit_code == 0, page.output
    assert page.stderr.splitlines() == [
        "privet: No source could give mnist.",
        "privet: MNIST cannot be had, so the demo uses the small digits data set instead.",
    ]
    assert RunRecord.read(tmp_path / "demo").data.note == "MNIST could not be had, so this small data set was taken."
    wanted = privet("demo", "--data", "mnist", "--out", tmp_path / "demo")
    assert (wanted.exit_code, wanted.stderr) == (1, "privet: No source could give mnist.\n")


def test_an_interrupted_demo_leaves_the_last_one_as_it_was(finished, monkeypatch):
    folder, _ = finished
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("privet.methods.dpsgd._loop", interrupted)
    page = privet("demo", "--data", "digits", "--out", folder)
    assert page.exit_code == 130
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == ["demo"]


def test_it_never_replaces_a_run_of_another_kind(finished, tmp_path):
    record = RunRecord.read(finished[0])
    dataclasses.replace(record, command=("privet", "train", "--method", "dpsgd")).write(tmp_path)
    page = privet("demo", "--data", "digits", "--out", tmp_path)
    assert page.exit_code == 2
    assert "holds a run that is not a demo" in page.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--epsilon", "0"], "--epsilon must be a number above 0, and is 0.0."),
        (["--epsilon", "nan"], "--epsilon must be a number above 0, and is nan."),
        (["--delta", "1"], "--delta must lie between 0 and 1, and is 1.0."),
        (["--data", "cifar10"], "The demo has no recipe for 'cifar10'"),
    ],
)
def test_what_the_demo_cannot_do_is_said_before_anything_is_written(arguments, sentence, tmp_path):
    page = privet("demo", *arguments, "--out", tmp_path / "runs" / "demo")
    assert page.exit_code == 2
    assert page.stderr.startswith(f"privet: {sentence}")
    assert not (tmp_path / "runs").exists()


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "demo").write_text("mine")
    page = privet("demo", "--data", "digits", "--out", tmp_path / "demo")
    assert page.exit_code == 2
    assert "is a file: give a folder" in page.stderr


@pytest.fixture
def copied(finished, tmp_path):
    for name in FILES:
        (tmp_path / name).write_bytes((finished[0] / name).read_bytes())
    return tmp_path


def test_attack_repeats_the_demos_attack_on_the_saved_model(copied):
    before = RunRecord.read(copied)
    page = privet("attack", copied)
    assert page.exit_code == 0, page.output
    assert RunRecord.read(copied) == before
    assert f"AUC {before.attack.auc:.4f}" in page.stdout
    result = json.loads(privet("attack", copied, "--signal", "confidence", "--json").stdout)
    assert result["name"].startswith("Confidence threshold")
    assert RunRecord.read(copied).attack.auc == result["auc"]
    assert "Confidence threshold" in (copied / "report.html").read_text()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda run: (run / "model.safetensors").unlink(), "the weights of the run are missing"),
        (lambda run: (run / "model.safetensors").write_bytes(b"junk" * 9), "the weights do not fit the record"),
        (lambda run: altered(run, "data", fingerprint="0" * 64), "the run used other records than digits holds now"),
        (lambda run: altered(run, "model", name="os.system"), "there is no model 'os.system'"),
        (lambda run: altered(run, "model", weights=""), "this run kept no weights"),
        (lambda run: altered(run, "model", arguments={"features": 9}), "the weights do not fit the record"),
    ],
)
def test_a_run_that_cannot_be_attacked_gets_one_sentence(copied, damage, sentence):
    damage(copied)
    page = privet("attack", copied)
    assert page.exit_code == 2
    assert sentence in page.stderr
    assert page.stderr.count("\n") == 1


def altered(run, part, **changes):
    record = RunRecord.read(run)
    dataclasses.replace(record, **{part: dataclasses.replace(getattr(record, part), **changes)}).write(run)


def test_json_for_a_program(tmp_path):
    page = privet("demo", "--data", "digits", "--seed", 1, "--json", "--out", tmp_path / "demo")
    facts = json.loads(page.stdout)
    assert facts["spent"]["epsilon"] <= 3
    assert facts["spent"]["guarantee"] == "proved"
    assert facts["attack"]["low"] <= facts["attack"]["auc"] <= facts["attack"]["high"]
