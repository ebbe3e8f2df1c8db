"""How a line is measured: accuracies, students and quarters on small records, and formulas against the published numbers."""

from dataclasses import replace

import pytest
import torch

from privet.data import load as load_data
from privet.errors import InputError
from privet.methods.recipe import Origin
from privet.papers import Reproduction, load, papers, section
from privet.papers import measure as measuring
from privet.papers.measure import FORMULAS, Trial, computed, fingerprint
from privet.papers.table import Line, PaperData, PaperTable, Published, StudentsProtocol
from privet.privacy import PublicRecords

STUDENTS = PaperTable(
    "short",
    "Students of digits",
    "students",
    (
        Line(seeds=1, published=(Published({"logistic": 50.0}),)),
        Line("moments", epsilons=(8.0,), title="Class moments"),
    ),
    PaperData("digits"),
    students=StudentsProtocol(("GaussianNB", "logistic"), 400, 1),
    origins={"moments": Origin("convention", "for a test")},
)


@pytest.fixture(scope="module")
def digits():
    return load_data("digits")


def test_a_table_over_seeds_is_kept_run_by_run(digits, tmp_path, monkeypatch):
    work = Reproduction(tmp_path, seeds=2)
    found = work.run(STUDENTS, STUDENTS.cases, digits)
    assert [(one.line, one.seed) for one in found] == [("none", 0), ("moments", 0), ("moments", 1)]
    assert found[0].spent is None and found[0].guarantee == "nothing is protected"
    assert all(7.9 < one.spent <= 8 and one.guarantee == "proved" for one in found[1:])
    assert "at delta = 1e-05 (add/remove one record" in found[1].statement
    monkeypatch.setattr(measuring, "train_student", lambda *_, **__: pytest.fail("it was computed again"))
    # What a process that was killed in its last moment has left goes; what another seed has saved stays.
    left, other = (tmp_path / f".moments-epsilon-8-seed-{seed}-{'0' * 16}" for seed in ("1", "10"))
    assert (tmp_path / "moments-epsilon-8-seed-1.json").exists()
    left.mkdir(), other.mkdir()
    assert work.run(STUDENTS, STUDENTS.cases, digits) == found
    assert other.exists() and not left.exists()
    other.rmdir()
    rows = section(STUDENTS, found).markdown().splitlines()
    assert rows[0] == (
        "| what | epsilon at delta 1e-05 | student GaussianNB % | student logistic % | published | difference | seeds | "
        "CPU seconds | why they differ |"
    )
    assert "| 50 |" in rows[2] and rows[3].startswith("| Class moments | 8 |") and " ± " in rows[3]


def test_public_records_with_labels_by_vote_are_not_tested_on(digits, tmp_path, monkeypatch):
    origins = STUDENTS.origins | {"pate": Origin("convention", "for a test")}
    lines = (Line("pate", epsilons=(8.0,)), Line("moments", settings={"labels": "votes"}, epsilons=(8.0,)))
    table = replace(STUDENTS, lines=lines, origins=origins, students=replace(STUDENTS.students, names=("GaussianNB",)))
    ledgers = []
    real = measuring.label_all
    monkeypatch.setattr(measuring, "label_all", lambda *a, **k: (ledgers.append(k["context"].ledger), real(*a, **k))[1])
    found = Reproduction(tmp_path, seeds=1).run(table, table.cases, digits)
    assert all(7.9 < one.spent <= 8 and one.guarantee == "proved" for one in found)
    assert PublicRecords(180, "180 of the test records of digits") in [event for event, _ in ledgers[0]]
    public, labels, test, _ = measuring._voted(Trial(table, table.cases[0], 1e-5, 0, digits))
    assert len(public) == len(labels) == len(test) == 180
    known = {row.numpy().tobytes() for row in public}
    assert not any(row.numpy().tobytes() in known for row in test.tensors[0])


def test_the_same_settings_have_the_same_fingerprint_whatever_the_seed(digits):
    (none, moments) = STUDENTS.cases
    trial = Trial(STUDENTS, moments, 1e-5, 0, digits)
    assert fingerprint(trial) == fingerprint(replace(trial, seed=1))
    changed = [
        replace(trial, line=none),
        replace(trial, delta=1e-6),
        replace(trial, line=replace(moments, epsilons=(4.0,))),
        replace(trial, line=replace(moments, settings={"labels": "votes"})),
        replace(trial, table=replace(STUDENTS, students=replace(STUDENTS.students, epochs=2))),
    ]
    assert len({fingerprint(trial), *map(fingerprint, changed)}) == 6


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (Line("moments", epsilons=(3.0,)), "makes data, which this table does not measure"),
        (Line("pate", epsilons=(3.0,)), "learns from public records"),
        (Line("dpsgd"), "needs an epsilon"),
        (Line("residual", epsilons=(3.0,)), "it follows from its settings"),
        (Line("dpsgd", settings={"magic": 1}, epsilons=(3.0,)), "no setting 'magic'"),
    ],
)
def test_a_line_that_cannot_be_measured_is_refused(digits, line, sentence, tmp_path):
    table = PaperTable("own", "Own", "accuracy", (line,), PaperData("digits"))
    with pytest.raises(InputError, match=sentence):
        Reproduction(tmp_path, seeds=1).run(table, table.cases, digits)


def test_students_learn_from_data_alone(digits, tmp_path):
    table = replace(STUDENTS, lines=(Line("dpsgd", epsilons=(3.0,)),), origins={"dpsgd": Origin("convention", "")})
    with pytest.raises(InputError, match="makes model, which this table does not measure"):
        Reproduction(tmp_path, seeds=1).run(table, table.cases, digits)


def test_a_method_without_a_budget_is_measured_too(digits, tmp_path):
    line = Line("residual", settings={"epochs": 1})
    table = PaperTable("own", "Own", "accuracy", (line,), PaperData("digits"), seeds=1)
    (found,) = Reproduction(tmp_path).run(table, table.cases, digits)
    assert 0 <= found.quantities["accuracy"] <= 1 and found.epsilon is None
    assert "only claimed" in found.statement


def test_the_formulas_give_the_published_numbers():
    tables = [load(name) for paper in papers() for name in paper.tables]
    checked = [table for table in tables if table.protocol == "formulas"]
    assert len(checked) == 2
    for table in checked:
        for line, found in zip(table.cases, computed(table), strict=True):
            assert found.quantities["epsilon"] == FORMULAS[line.method](**line.settings)
            assert found.quantities["epsilon"] == pytest.approx(line.published[0].figures["epsilon"], rel=0.011)


def test_records_that_are_no_images_are_refused_by_quarters(tmp_path):
    from privet.data import Dataset, Split

    rows = Split(torch.rand(20, 5), torch.arange(20) % 2)
    table = load("wang-cifar10")
    with pytest.raises(InputError, match="for images"):
        Reproduction(tmp_path).run(table, table.cases[:1], Dataset("rows", ("0", "1"), {"train": rows, "test": rows}))
