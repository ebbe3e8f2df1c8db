"""The demo end to end on digits, and the verbs that go on from the runs in its folder."""

import dataclasses
import json
import shutil
from importlib import resources

import pytest
from typer.testing import CliRunner

from privet.cli import app
from privet.cli import demo as verb
from privet.errors import PrivetError
from privet.methods import Power, method_named
from privet.report import RunRecord, load_model
from privet.runs import race
from privet.runs.comparison import read_result
from privet.runs.job import Job, Row

METHODS = ["dpsgd", "moments", "optimized-noise-elliptical", "residual"]
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


@pytest.fixture(scope="session")
def short(tmp_path_factory):
    """The recipe of digits with two epochs."""
    file = resources.files("privet.methods").joinpath("recipes", "digits-linear.yaml")
    text = file.read_text(encoding="utf-8")
    path = tmp_path_factory.mktemp("recipes") / "short.yaml"
    path.write_text(text.replace("epochs: 10", "epochs: 2"), encoding="utf-8")
    return str(path)


def privet(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


def one_after_the_other(methods, out, **_):
    """The methods in this process: that each has one of its own is tested with the comparison."""
    rows = []
    for key in methods:
        race.compete(Job.read(out), key, out / key, lambda _: None)
        rows.append(Row(key, method_named(key).title, "done", seconds=1.0))
        rows[-1].write(out / key)
    return rows


def shorten(patch, recipe: str) -> None:
    patch.setitem(verb.RECIPES, "digits", recipe)
    patch.setattr(verb, "_sizes", lambda _: {"moments": {"size": 200}, "residual": {"epochs": 2}})
    patch.setattr(verb, "STUDENT_EPOCHS", 1)
    patch.setattr("privet.runs.race.race", one_after_the_other)
    patch.setattr(race, "POWER", Power(draws=400, canaries=40))


@pytest.fixture(autouse=True)
def short_training(monkeypatch, short):
    """One method in place of four, where a test is not about them."""
    shorten(monkeypatch, short)
    monkeypatch.setattr(verb, "METHODS", ("dpsgd",))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, short):
    """A demo of all four methods with a seed, which tests only read."""
    folder = tmp_path_factory.mktemp("runs") / "demo"
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch, short)
        page = privet("demo", "--data", "digits", "--seed", 3, "--out", folder)
    assert page.exit_code == 0, page.output
    return folder, page


def test_it_says_every_method_the_statement_that_holds_and_where_the_page_is(finished):
    folder, page = finished
    rows = [line.split("│")[1:-1] for line in page.stdout.splitlines() if line.startswith("│")]
    assert [row[0].strip() for row in rows] == METHODS
    assert [row[1].strip() for row in rows] == ["✓ proved", "✓ proved", "✓ proved", "✗ claimed, vacuous"]
    result = read_result(folder)
    lines = page.stdout.splitlines()
    assert any(line.endswith(f"{result.best.row.title}, with {result.best.spent}") for line in lines)
    assert lines[-1] == f"The page: {folder / 'report.html'}"
    for outcome in result.outcomes:
        assert outcome.record.attack is not None
        if outcome.holds:
            assert outcome.spent.epsilon <= 3.0


def test_it_leaves_one_page_and_a_run_for_each_method(finished):
    folder, _ = finished
    assert [path.name for path in folder.parent.iterdir()] == ["demo"]
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == sorted(METHODS)
    assert {path.name for path in (folder / "dpsgd").iterdir()} >= set(FILES)
    page = (folder / "report.html").read_text()
    assert all(title in page for title in ("DP-SGD", "elliptical", "Residual perturbation", "One-shot class moments"))
    assert "batch norm" in page


def test_the_model_learned_something_and_the_record_tells_the_run(finished):
    record = RunRecord.read(finished[0] / "dpsgd")
    assert record.test_accuracy > 0.6
    assert record.history[-1].step == 20
    assert [epoch.epsilon for epoch in record.history] == sorted(epoch.epsilon for epoch in record.history)
    assert all(epoch.accuracy is not None for epoch in record.history)
    assert record.seeds["noise"] == "3"
    assert record.data.training_records == 1437
    assert "Anybody who knows the seed" in (finished[0] / "dpsgd" / "report.html").read_text()


def test_a_seed_repeats_the_run_and_a_program_gets_json(finished, tmp_path):
    page = privet("demo", "--data", "digits", "--seed", 3, "--json", "--out", tmp_path / "demo")
    weights = [(folder / "dpsgd" / "model.safetensors").read_bytes() for folder in (finished[0], tmp_path / "demo")]
    assert weights[0] == weights[1]
    (row,) = json.loads(page.stdout)["rows"]
    assert row["spent"]["epsilon"] <= 3
    assert row["spent"]["guarantee"] == "proved"
    assert row["attack"]["low"] <= row["attack"]["auc"] <= row["attack"]["high"]
    assert page.stderr == ""


@pytest.mark.parametrize("method", ["dpsgd", "residual"])
def test_the_saved_model_is_the_one_that_was_measured(finished, method):
    from privet import data
    from privet.methods.dpsgd import accuracy

    folder = finished[0] / method
    record = RunRecord.read(folder)
    loaded = load_model(record, folder)
    again = accuracy(loaded, data.load("digits").test)
    assert again == record.test_accuracy if method == "dpsgd" else abs(again - record.test_accuracy) < 0.1


def test_without_mnist_it_takes_digits_and_says_so(monkeypatch, tmp_path):
    from privet import data

    real = data.get

    def offline(name, **rest):
        if name == "mnist":
            raise PrivetError("No source could give mnist.")
        return real(name, **rest)

    monkeypatch.setattr(data, "get", offline)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "notes.txt").write_text("mine")
    page = privet("demo", "--out", tmp_path / "demo")
    assert page.exit_code == 0, page.output
    assert page.stderr.splitlines()[:2] == [
        "privet: No source could give mnist.",
        "privet: MNIST is not available, so the demo uses the small digits data set instead.",
    ]
    said = "MNIST is not available, so this small data set was used."
    assert RunRecord.read(tmp_path / "demo" / "dpsgd").data.note == said
    assert said in (tmp_path / "demo" / "report.html").read_text()
    assert (tmp_path / "demo" / "notes.txt").read_text() == "mine"
    wanted = privet("demo", "--data", "mnist", "--out", tmp_path / "demo")
    assert (wanted.exit_code, wanted.stderr) == (1, "privet: No source could give mnist.\n")


def test_an_interrupted_demo_leaves_the_last_one_as_it_was(finished, monkeypatch):
    folder, _ = finished
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("privet.runs.race.race", interrupted)
        page = privet("demo", "--data", "digits", "--out", folder)
    assert page.exit_code == 130
    assert "this goes on: privet" in page.stderr and page.stderr.rstrip().endswith("--resume")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    other = privet("demo", "--data", "digits", "--epsilon", 2, "--out", folder)
    assert (other.exit_code, "holds another comparison" in other.stderr) == (2, True)
    shutil.rmtree(folder.parent / ".demo.unfinished")


def test_two_demos_on_one_folder_are_refused(tmp_path):
    from privet.training.folder import alone_in

    stage = tmp_path / ".demo.unfinished"
    stage.mkdir()
    with alone_in(stage):
        page = privet("demo", "--data", "digits", "--out", tmp_path / "demo")
    assert page.exit_code == 1 and "being continued by another process" in page.stderr


def test_a_demo_that_was_stopped_while_it_was_put_into_its_place_is_finished(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / ".demo.finished")
    (tmp_path / "demo").mkdir()
    (tmp_path / ".demo.finished" / "dpsgd").rename(tmp_path / "demo" / "dpsgd")
    page = privet("demo", "--data", "digits", "--seed", 3, "--out", tmp_path / "demo", "--resume")
    assert page.exit_code == 0, page.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo"]
    assert len(read_result(tmp_path / "demo").outcomes) == 4


def test_it_never_replaces_a_run_of_another_kind(finished, tmp_path):
    record = RunRecord.read(finished[0] / "dpsgd")
    dataclasses.replace(record, command=("privet", "train", "--method", "dpsgd")).write(tmp_path)
    page = privet("demo", "--data", "digits", "--out", tmp_path)
    assert page.exit_code == 2
    assert "holds a run that is not a demo" in page.stderr


def test_without_a_seed_it_takes_the_place_of_a_demo_that_was_one_run(finished, tmp_path):
    for name in FILES:
        (tmp_path / name).write_bytes((finished[0] / "dpsgd" / name).read_bytes())
    assert privet("demo", "--data", "digits", "--out", tmp_path).exit_code == 0
    assert not (tmp_path / "record.json").exists()
    assert RunRecord.read(tmp_path / "dpsgd").seeds["noise"] == "secure"
    weights = [(folder / "dpsgd" / "model.safetensors").read_bytes() for folder in (finished[0], tmp_path)]
    assert weights[0] != weights[1]


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


def test_the_folder_of_the_demo_is_no_run_and_names_those_in_it(finished):
    page = privet("attack", finished[0])
    assert page.exit_code == 2
    assert f"give one of the runs in it: {finished[0] / 'dpsgd'}" in page.stderr


@pytest.fixture
def copied(finished, tmp_path):
    for name in FILES:
        (tmp_path / name).write_bytes((finished[0] / "dpsgd" / name).read_bytes())
    return tmp_path


def test_attack_repeats_the_demos_attack_on_the_saved_model(copied):
    before = RunRecord.read(copied)
    page = privet("attack", copied)
    assert page.exit_code == 0, page.output
    after = RunRecord.read(copied)
    first, again = after.attacks  # the demo's own, and the same one again
    assert dataclasses.replace(after, attacks=(first,)) == before
    # The same figures; when and by which command they were computed may differ.
    told = {name: getattr(first, name) for name in ("date", "command")}
    assert dataclasses.replace(again, **told) == first
    assert again.key == "loss" and again.command[:2] != first.command[:2]
    assert f"AUC {before.attack.auc:.4f}" in page.stdout
    result = json.loads(privet("attack", copied, "--attack", "confidence", "--json").stdout)
    assert result["name"].startswith("Confidence threshold")
    assert RunRecord.read(copied).attacks[-1].auc == result["auc"]
    assert "Confidence threshold" in (copied / "report.html").read_text()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda run: (run / "model.safetensors").unlink(), "the weights of the run are missing"),
        (lambda run: (run / "model.safetensors").write_bytes(b"junk" * 9), "the weights do not fit the record"),
        (lambda run: altered(run, "data", fingerprint="0" * 64), "the run used other records than digits holds now"),
        (lambda run: altered(run, "model", name="os.system"), "There is no model 'os.system'"),
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
