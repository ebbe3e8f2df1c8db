"""`privet synthesize`: the release folder, what it prints, and what it refuses by name."""

import csv
import json
import random
import zipfile

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from privet import data
from privet.cli import app
from privet.privacy import Ledger
from privet.report import RunRecord


def privet(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "b"
    page = privet(
        "synthesize", "--data", "digits", "--epsilon", 3, "--seed", 0, "--out", folder, "--student", "logistic"
    )
    assert page.exit_code == 0, page.output
    return folder, page.stdout


def test_it_says_why_what_it_cost_and_where_the_release_is(run):
    folder, said = run
    assert "Method moments, because" in said
    assert "at delta = 1e-05 (add/remove one record; no sampling; PLD; proved; the number of records is public)" in said
    assert f"Seeded, so not for release: {folder / 'release'}" in said


def test_the_release_holds_the_data_its_card_and_a_ledger_within_the_budget(run):
    folder, _ = run
    release = folder / "release"
    arrays = np.load(release / "synthetic.npz")
    assert arrays["inputs"].shape == (1437, 8, 8)
    again = data.load(f"idx:{release}")
    assert (again.train.inputs.numpy() == arrays["inputs"]).all()
    spent = Ledger.open(release / "ledger.jsonl", read_only=True).spent(1e-5)
    assert 2.9 < spent.epsilon <= 3.0
    card = (release / "README.md").read_text()
    assert str(spent) in card and "Generator: a Gaussian for each class" in card
    assert sum(RunRecord.read(folder).synthetic.counts) == 1437
    assert {path.name for path in release.iterdir()} == {
        name.removeprefix("release/") for name in RunRecord.read(folder).synthetic.files
    }
    record = RunRecord.read(folder)
    assert record.synthetic.rows == 1437
    assert (folder / record.synthetic.picture).stat().st_size > 1000


def test_released_images_are_png_files_with_their_labels(run):
    release = run[0] / "release"
    arrays = np.load(release / "synthetic.npz")
    with zipfile.ZipFile(release / "train.zip") as archive:
        names, *rows = csv.reader(archive.read("metadata.csv").decode().splitlines())
        assert names == ["file_name", "label"] and [int(label) for _, label in rows] == arrays["labels"].tolist()
        for (name, _), image in zip(rows[:20], arrays["inputs"], strict=False):
            assert (np.asarray(Image.open(archive.open(name))) == image).all()


@pytest.mark.slow
def test_hugging_face_loads_released_images_in_one_line(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    release = run[0] / "release"
    found = datasets.load_dataset(str(release), split="train", cache_dir=str(tmp_path))
    arrays = np.load(release / "synthetic.npz")
    assert np.bincount(found["label"]).tolist() == np.bincount(arrays["labels"]).tolist()
    pairs = {(image.tobytes(), label) for image, label in zip(arrays["inputs"], arrays["labels"].tolist(), strict=True)}
    for row in found.select(range(10)):
        assert (np.asarray(row["image"]).tobytes(), row["label"]) in pairs


def test_the_page_can_be_made_again(run):
    folder, _ = run
    before = (folder / "report.html").read_bytes()
    assert privet("report", folder).exit_code == 0
    assert (folder / "report.html").read_bytes() == before


def test_labels_by_votes_are_part_of_the_budget_and_of_the_card(tmp_path):
    out = tmp_path / "v"
    asked = [
        "--labels",
        "votes",
        "--epsilon",
        8,
        "--set",
        "teachers=20",
        "--set",
        "components=20",
        "--student",
        "GaussianNB",
    ]
    page = privet("synthesize", "--data", "digits", "--seed", 0, "--out", out, *asked)
    assert page.exit_code == 0, page.output
    assert "One-shot class moments, labeled by noisy votes" in page.stdout
    assert RunRecord.read(out).method == "One-shot class moments, labeled by noisy votes"
    assert 7.95 < RunRecord.read(out).spent(Ledger.open(out / "ledger.jsonl", read_only=True)).epsilon <= 8
    card = (out / "release" / "README.md").read_text()
    assert "Labels: by vote of 20 teachers" in card and "votes" in card.split("## Every access")[1]
    assert "Teachers of disjoint parts" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--method", "mystery"], "There is no method 'mystery'"),
        (["--method", "moments", "--as-published"], "use it with --method noise-layer-gan"),
        (["--set", "components"], "NAME=VALUE"),
        (["--set", "colour=3"], "--set colour is not a setting of --method moments"),
        (["--set", "components=few"], "components is a whole number, and 'few' is not"),
        (["--set", "teachers=20"], "The setting teachers is used for labels by votes"),
        (["--labels", "votes", "--set", "teachers=1"], "at least two teachers"),
        (["--labels", "votes", "--set", "queries=2000"], "2,000 queries cannot be asked"),
        (["--labels", "votes", "--method", "noise-layer-gan", "--as-published"], "takes the labels as public"),
        (["--size", 3], "too few for 10 classes"),
        (["--student", "Oracle"], "There is no student 'Oracle'"),
    ],
)
def test_bad_options_are_refused_by_name(tmp_path, options, words):
    page = privet("synthesize", "--data", "digits", "--seed", 0, "--out", tmp_path / "b", *options)
    assert page.exit_code == 2
    assert words in " ".join(page.output.split())


SCHEMA = """
label: income
columns:
  age: {low: 17, high: 90, whole: true}
  work: {categories: [private, public, none]}
  hours: {low: 0, high: 100}
  income: {categories: [low, high]}
ignore: [id]
"""


@pytest.fixture
def census(tmp_path):
    draw = random.Random(0)
    lines = ["id,income,age,work,hours"]
    for number in range(2000):
        rich = draw.random() < 0.4
        age = min(90, max(17, round(draw.gauss(55 if rich else 35, 8))))
        work = draw.choices(["private", "public", "none"], [5, 4 if rich else 1, 1])[0]
        lines.append(f"{number},{'high' if rich else 'low'},{age},{work},{draw.uniform(20, 60):.2f}")
    (tmp_path / "census.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    return tmp_path


def asked(folder, *options: object):
    source = ["--data", f"csv:{folder / 'census.csv'}", "--schema", folder / "schema.yaml"]
    return privet("synthesize", *source, "--seed", 0, "--out", folder / "b", *options)


def test_a_table_comes_out_with_the_columns_and_types_that_it_has(census):
    page = asked(census, "--student", "logistic", "--student", "DecisionTreeClassifier", "--baseline", "--size", 1000)
    assert page.exit_code == 0, page.output
    assert "because these are rows of a table" in page.stdout
    rows = list(csv.DictReader((census / "b" / "release" / "train.csv").read_text().splitlines()))
    assert len(rows) == 1000
    assert list(rows[0]) == ["age", "work", "hours", "income"]
    assert all(17 <= int(row["age"]) <= 90 and row["work"] in ("private", "public", "none") for row in rows)
    assert any("." in row["hours"] for row in rows)
    assert RunRecord.read(census / "b").test_accuracy > 0.8
    assert "without privacy" in (census / "b" / "internal" / "quality.md").read_text()
    assert not any("without privacy" in said for said in RunRecord.read(census / "b").settings.values())
    # What was released is itself a data set that every verb reads.
    release = census / "b" / "release"
    assert len(data.load(f"csv:{release / 'train.csv'}", schema=release / "schema.json").train) == 1000
    assert privet("attack", census / "b").exit_code == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda text, schema: (text, schema.replace("[low, high]", "[low]")),
            "column 'income': the cell has no category",
        ),
        (lambda text, schema: (text, schema.replace("high: 90", "high: 17")), "Column 'age' has bounds"),
        (lambda text, schema: (blank(text, 3), schema), "the column 'work' is empty throughout"),
        (lambda text, schema: (blank(text, 4), schema), "the column 'hours' is empty throughout"),
    ],
)
def test_a_bad_table_is_refused_by_name(census, change, words):
    text, schema = change((census / "census.csv").read_text(), SCHEMA)
    (census / "census.csv").write_text(text)
    (census / "schema.yaml").write_text(schema)
    page = asked(census)
    assert page.exit_code == 2
    assert words in " ".join(page.output.split())


def blank(text: str, column: int) -> str:
    head, *lines = (line.split(",") for line in text.splitlines())
    emptied = [[*cells[:column], "", *cells[column + 1 :]] for cells in lines]
    return "\n".join(",".join(cells) for cells in [head, *emptied]) + "\n"


def test_one_class_only_is_refused_by_name(census):
    text = (census / "census.csv").read_text().replace(",low,", ",high,")
    (census / "census.csv").write_text(text)
    (census / "schema.yaml").write_text(SCHEMA.replace("[low, high]", "[high]"))
    page = asked(census)
    assert page.exit_code == 2
    assert "has one class only" in " ".join(page.output.split())


def test_json(tmp_path):
    page = privet(
        "synthesize", "--data", "digits", "--seed", 0, "--out", tmp_path / "b", "--student", "GaussianNB", "--json"
    )
    assert page.exit_code == 0, page.output
    facts = json.loads(page.stdout)
    assert facts["method"] == "moments"
    assert facts["spent"]["guarantee"] == "proved"
    assert "GaussianNB" in facts["students"]


def test_the_artificial_data_can_be_attacked(run):
    folder, _ = run
    page = privet("attack", folder)
    assert page.exit_code == 0, page.output
    assert "Distance to the closest synthetic example: 1,437 training records against 360 others" in page.stdout
    assert "synthetic rows are closer to a training record" in page.stdout
    assert privet("attack", folder, "--attack", "density", "--records", 300).exit_code == 0
    page = privet("attack", folder, "--attack", "loss")  # the student, as any model
    assert page.exit_code == 0, page.output
    assert "precision / recall" in page.stdout
    names = [attack.name for attack in RunRecord.read(folder).attacks]
    assert names == [
        "Distance to the closest synthetic example",
        "Distance to the closest synthetic example",
        "Density of the synthetic examples",
        "Loss threshold, on the student softmax_regression",
    ]
    assert all(name in (folder / "CARD.md").read_text().replace("\\", "") for name in names)


def test_what_looked_at_records_is_kept_apart(run):
    folder, _ = run
    assert (folder / "internal" / "quality.md").read_text().startswith("# Internal, not for release")
    assert (folder / "internal" / "neighbors.png").stat().st_size > 1000
    assert not (folder / "release" / "internal").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["noise-layer-gan", "--as-published", "--set", "epochs=0.2", "--set", "width=2"], "only claimed by"),
        (["noise-layer-gan", "--set", "epochs=1", "--set", "steps=5"], "padded Poisson sampling; PLD; proved"),
        (
            ["noise-layer-gan", "--set", "sampling=fixed", "--set", "steps=5"],
            "replace one record; fixed-size sampling",
        ),
        (["dpgan", "--set", "steps=5"], "Poisson sampling; PLD; proved"),
    ],
)
def test_the_gans_say_what_stands_behind_their_epsilon(tmp_path, options, said):
    out = tmp_path / "g"
    page = privet(
        "synthesize", "--data", "digits", "--seed", 0, "--out", out, "--student", "GaussianNB", "--method", *options
    )
    assert page.exit_code == 0, page.output
    stated = [line for line in page.stdout.splitlines() if "epsilon = " in line]
    assert stated and all(said in line for line in stated)
    card = (out / "release" / "README.md").read_text()
    assert said in card
    if "--as-published" in options:  # the claim's own accountant, which calibrated the noise, everywhere
        assert all("epsilon = 3 " in line and "moments accountant" in line for line in stated)
        assert "moments accountant, which calibrated the noise" in card
    assert ("a draw from noisy values" in card) is ("--as-published" not in options)
    assert RunRecord.read(out).place in ("embedding layer", "critic")
