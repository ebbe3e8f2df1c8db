"""Students: who learns from what."""

import pytest
import torch

from privet.data import load
from privet.errors import InputError
from privet.methods import DataSpec, Task, method_named
from privet.runs.runner import Measuring, fitting_attacks
from privet.runs.students import check_students, train_student


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


def test_synthetic_data_is_attacked_itself_and_not_only_its_student():
    """Asked for attacks on models, a comparison once left the data itself without any attack."""
    task = Task.of(DataSpec("digits"), load("digits"), 3.0, 1e-5)
    moments, dpsgd = method_named("moments"), method_named("dpsgd")

    def chosen(method, *keys: str, students: tuple[str, ...] = ()) -> tuple[str, ...]:
        return fitting_attacks(keys, method, task, Measuring(students=students))

    assert chosen(moments, "loss", "rmia") == ("loss", "rmia", "distance")
    assert chosen(moments, "loss", "density") == ("loss", "density")
    assert chosen(moments, "loss", students=("GaussianNB",)) == chosen(moments) == ("distance",)
    assert chosen(dpsgd, "loss", "density") == chosen(dpsgd) == ("loss",)
