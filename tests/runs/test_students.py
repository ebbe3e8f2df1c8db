"""Students and their table: who learns from what, and that what is kept is not computed again."""

import dataclasses

import pytest
import torch
from privet.runs.students import check_students, train_student
from typer.testing import CliRunner

from privet.cli import app
from privet.cli.student_tables import shown_students
from privet.data import load
from privet.errors import InputError
from privet.methods.synthetic import Order
from privet.privacy import Ledger, PublicRecords
from privet.synthesis import table
from privet.synthesis.public_records import VotedRecords

COMPARISON = table.Comparison(
    name="short",
    title="Students of digits",
    why="",
    data="digits",
    size=400,
    epochs=1,
    students=("GaussianNB", "logistic"),
    lines=(
        table.Line("none", "The records themselves", "none", seeds=1, published={"logistic": 50.0}),
        table.Line("moments-8", "Class moments", "moments", 8.0),
    ),
)


@pytest.fixture
def digits():
    return load("digits")


@pytest.mark.parametrize("name", ["cnn", "logistic", "KNeighborsClassifier"])
def test_a_student_learns_from_the_examples_alone(digits, name):
    x, y = digits.train.tensors
    student = train_student(name, x[:400], y[:400], 10, epochs=5)
    assert student.accuracy(digits.test) > 0.8


def test_a_student_of_wrong_labels_is_wrong(digits):
    x, y = digits.train.tensors
    wrong = train_student("logistic", x[:400], (y[:400] + 1) % 10, 10)
    assert wrong.accuracy(digits.test) < 0.2


def test_probabilities_teach_what_the_labels_would(digits):
    x, y = digits.train.tensors
    soft = torch.nn.functional.one_hot(y, 10).float()
    first, second = (train_student("logistic", x[:300], targets[:300], 10, epochs=1) for targets in (y, soft))
    assert torch.allclose(first.model[1].weight, second.model[1].weight, atol=1e-4)


def test_students_are_asked_for_before_the_budget_is_spent():
    assert check_students(["cnn", "logistic", "RandomForestClassifier"], (1, 28, 28))
    with pytest.raises(InputError, match="for images"):
        check_students(["cnn"], (12,))
    with pytest.raises(InputError, match="no student 'LinearRegression'"):
        check_students(["LinearRegression"], (12,))
    with pytest.raises(InputError, match="arguments of its own"):
        check_students(["VotingClassifier"], (12,))


def test_a_table_over_seeds_is_kept_run_by_run(digits, tmp_path, monkeypatch):
    found = table.reproduce(COMPARISON, digits, tmp_path, seeds=2, delta=1e-5)
    assert {key: len(results) for key, results in found.items()} == {"none": 1, "moments-8": 2}
    assert all(7.9 < result.spent <= 8 and result.guarantee == "proved" for result in found["moments-8"])
    monkeypatch.setattr(table, "train_student", lambda *_, **__: pytest.fail("it was computed again"))
    again = table.reproduce(COMPARISON, digits, tmp_path, seeds=2, delta=1e-5)
    assert again == found
    rows = table.rows(COMPARISON, found, 1e-5, "privet reproduce short --seeds 2")
    assert [(row.method, row.seeds) for row in rows][2:] == [("moments-8/GaussianNB", 2), ("moments-8/logistic", 2)]
    shown = shown_students(COMPARISON, rows).splitlines()
    assert shown[2] == (
        "| artificial data by | epsilon | GaussianNB % | the source % | logistic % | the source % | seeds | CPU seconds |"
    )
    assert "| 50.00 | 1 |" in shown[4]
    assert shown[5].startswith("| Class moments | 8 |")


def test_public_records_with_labels_by_vote_are_not_tested_on(digits, tmp_path):
    lines = (table.Line("pate-8", "PATE", "pate", 8.0), table.Line("votes-8", "Votes", "moments", 8.0, labels="votes"))
    comparison = dataclasses.replace(COMPARISON, students=("GaussianNB",), lines=lines)
    found = table.reproduce(comparison, digits, tmp_path, seeds=1, delta=1e-5)
    assert all(7.9 < results[0].spent <= 8 and results[0].guarantee == "proved" for results in found.values())
    voted = VotedRecords(180, 28)
    order = Order(classes=10, size=400, epsilon=8.0, delta=1e-5, seed=0, records=len(digits.train))
    public, labels, test = voted.label(digits, order, ledger := Ledger())
    assert len(public) == len(labels) == len(test) == 180
    known = {row.numpy().tobytes() for row in public}
    assert not any(row.numpy().tobytes() in known for row in test.tensors[0])
    assert PublicRecords(180, "180 of the test records of digits") in [event for event, _ in ledger]


def test_some_lines_only(digits, tmp_path):
    assert list(table.reproduce(COMPARISON, digits, tmp_path, seeds=1, delta=1e-5, keys=["none"])) == ["none"]
    assert not table.reproduce(COMPARISON, digits, tmp_path, seeds=1, delta=1e-5, epsilons=[5.0])


@pytest.mark.parametrize("name", table.names())
def test_the_tables_that_come_with_privet_load(name):
    comparison = table.load(name)
    assert comparison.name == name
    assert len({line.key for line in comparison.lines}) == len(comparison.lines)
    assert comparison.settings


@pytest.mark.parametrize(
    ("options", "words"), [(["--epsilon", 5], "no line at epsilon 5"), (["--line", 99], "and not 99")]
)
def test_a_line_that_is_not_there_is_refused_by_name(options, words):
    page = CliRunner().invoke(app, ["reproduce", "triastcyn-mnist", *map(str, options)])
    assert page.exit_code == 2
    assert words in " ".join(page.output.split())
