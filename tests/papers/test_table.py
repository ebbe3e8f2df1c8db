"""Every table that comes with Privet: it loads, says where its settings came from, and names lines that can be run."""

from importlib import resources
from pathlib import Path

import pytest
import torch
import yaml

from privet.data import Dataset, Split
from privet.errors import InputError
from privet.methods import METHODS
from privet.papers import load, names, papers
from privet.papers.table import NONE, Line, PaperData, PaperTable, Published

QUARTERS = load("wang-cifar10").quarters


@pytest.mark.parametrize("name", names())
def test_it_loads_and_its_methods_are_registered(name):
    table = load(name)
    assert table.name == name
    assert table.title
    if table.protocol in ("accuracy", "students", "quarters"):
        assert {line.method for line in table.lines} - {NONE} <= set(METHODS)
    assert table.why or table.protocol in ("reversal", "formulas")
    assert len({line.label for line in table.cases}) == len(table.cases)
    assert all(len(origin.note) > 5 for origin in table.origins.values())
    assert table.origins or table.protocol in ("accuracy", "reversal", "formulas")


def test_every_table_of_every_paper_is_there():
    listed = [name for paper in papers() for name in paper.tables]
    assert len(set(listed)) == len(listed)
    assert set(listed) <= set(names())


def test_lines_are_resolved_for_each_budget():
    table = load("mnist-cnn")
    one, three = table.cases
    assert (one.key, one.epsilon, one.settings, one.published) == ("dpsgd", 1, {"recipe": "mnist-cnn"}, ())
    assert three.title == METHODS["dpsgd"].title
    assert three.published[0].figures == {"accuracy": 98.1}  # published at 2.93, within a tenth of 3
    assert table.command(three) == "privet reproduce mnist-cnn --epsilon 3"
    assert load("ellipse-mnist").command(load("ellipse-mnist").cases[-1], 2) == (
        "privet reproduce ellipse-mnist --seeds 2 --epsilon 3 --method optimized-noise-elliptical"
    )


def test_the_nearest_published_figure_within_a_tenth_is_taken():
    line = Line("dpsgd", published=tuple(Published({"accuracy": at}, epsilon=at) for at in (1.0, 1.05, 2.0)))
    assert line.at(1.04).published[0].epsilon == 1.05
    assert line.at(1.5).published == ()


def test_some_lines():
    table = load("triastcyn-mnist")
    assert [line.key for line in table.some(numbers=[3, 8])] == ["moments-3.45", "pate-3.45"]
    assert [line.key for line in table.some(epsilons=[8])] == ["moments-8", "pate-8"]
    with pytest.raises(InputError, match="no line at epsilon 5"):
        table.some(epsilons=[5])
    with pytest.raises(InputError, match="has the lines 1 to 10, and not 99"):
        table.some(numbers=[99])
    (other,) = load("mnist-cnn").some(epsilons=[2.8], methods=["optimized-noise"])
    assert (other.method, other.epsilon, other.settings) == ("optimized-noise", 2.8, {"recipe": "mnist-cnn"})
    (same,) = load("mnist-cnn").some(epsilons=[2.8])
    assert same.published[0].figures == {"accuracy": 98.1}
    with pytest.raises(InputError, match="There is no method 'magic'"):
        load("mnist-cnn").some(methods=["magic"])


def test_titles_say_what_was_trained():
    assert QUARTERS.title(Line()) == "ResNet8"
    of = Line("residual", settings={"gamma": 2, "strategy": "II", "ensemble": 5})
    assert QUARTERS.title(of) == "En5 ResNet8, gamma 2 (II)"
    private = Line("residual-dpsgd", settings={"gamma": 0.5, "skips": False})
    assert QUARTERS.title(private) == "DP-SGD, En1 ResNet8 without skips, gamma 0.5"


def test_what_is_only_claimed_is_known():
    claimed = [line.claimed for line in load("wang-cifar10").cases]
    assert [
        not line.settings.get("gamma") or line.method == "residual-dpsgd" for line in load("wang-cifar10").cases
    ] == [not each for each in claimed]
    assert [line.method for line in load("xiang-mnist").cases if line.claimed] == ["optimized-noise-published"] * 6


@pytest.fixture
def plain():
    return {
        "name": "own",
        "title": "Own",
        "protocol": "accuracy",
        "data": {"source": "digits"},
        "epsilons": [1, 2],
        "lines": [{"method": "dpsgd"}],
    }


SHORT = {"names": ["cnn"], "size": 9, "epochs": 1}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"protocol": "magic"}, "should be one of accuracy, students"),
        ({"protocol": "students"}, "'students' belongs to the protocol 'students'"),
        ({"students": SHORT}, "'students' belongs to the protocol 'students'"),
        ({"data": {"source": "digits", "shrink": 2}}, "only the protocol 'quarters' uses"),
        ({"lines": [{}]}, "need a method"),
        ({"lines": []}, "at least one line"),
        ({"lines": [{"method": "dpsgd"}, {"method": "dpsgd"}]}, "each its own 'key'"),
        ({"lines": [{"method": "dpsgd", "epsilon": 3}]}, "'lines\\[0\\].epsilon' is not a field"),
        ({"protocol": "students", "students": SHORT, "lines": [{"method": "moments"}]}, "does not say where 'moments'"),
        ({"origins": {"magic": {"source": "paper", "note": ""}}}, "no setting has this name"),
        ({"title": 3}, "'title' is a whole number and should be text"),
        (
            {"data": {"source": "py:os:getcwd"}},
            "'source' names code to import, py:os:getcwd: give these records with --data",
        ),
        ({"settings": {"model": "py:os:getcwd"}}, "names code to import as 'model'"),
    ],
)
def test_a_table_that_does_not_fit_gets_one_sentence(plain, change, sentence, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(plain))
    assert [line.epsilon for line in load(str(path)).cases] == [1, 2]
    path.write_text(yaml.safe_dump(plain | change))
    with pytest.raises(InputError, match=sentence):
        load(str(path))


@pytest.mark.parametrize(
    "line",
    [{"method": "dpsgd"}, {"method": "residual", "settings": {"pi": 3}}, {"method": "residual", "epsilons": [3]}],
)
def test_quarters_refuse_what_they_do_not_use(line, tmp_path):
    text = (tmp_path / "own.yaml").as_posix()
    whole = yaml.safe_load(resources.files("privet.papers").joinpath("tables", "wang-idc.yaml").read_text())
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(whole | {"lines": [line]}))
    with pytest.raises(InputError, match="of the protocol 'quarters' have"):
        load(text)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("nope", "There is no table 'nope': there are"), ("no.yaml", "no.yaml does not exist")],
)
def test_a_table_that_is_not_there_is_named(name, sentence):
    with pytest.raises(InputError, match=sentence):
        load(name)


def test_a_recipe_is_a_table_of_dpsgd():
    table = load("digits-linear")
    assert (table.protocol, table.data, table.why[:4]) == ("accuracy", PaperData("digits"), "With")
    assert [(line.method, line.epsilon) for line in table.cases] == [("dpsgd", 3)]


def test_the_papers_sizes_are_kept_where_there_are_enough_records():
    table = load("wang-idc")
    counts = (40_000 + 29_164 + 31_825, 11_595 + 10_788)
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    whole = Dataset("idc", ("0", "1"), {"train": Split(torch.arange(len(labels))[:, None], labels)})
    divided = table.data._by_classes(whole)
    assert torch.bincount(divided.train.labels).tolist() == [29_164, 10_788]
    assert torch.bincount(divided.test.labels).tolist() == [31_825, 11_595]
    together = torch.cat([divided.train.inputs, divided.test.inputs]).flatten()
    assert len(together.unique()) == len(together)
    rates = [table.quarters.schedule.rate(epoch) for epoch in (0, 20, 40, 60, 80, 99)]
    assert rates == [0.1 / 4**n for n in (0, 1, 2, 3, 4, 4)]


def test_the_table_of_the_documentation_loads(tmp_path):
    page = Path(str(resources.files("privet").joinpath("../../docs/reproduced.md"))).read_text(encoding="utf-8")
    path = tmp_path / "my-table.yaml"
    path.write_text(page.partition("```yaml\n")[2].partition("```")[0], encoding="utf-8")
    assert [line.label for line in load(str(path)).cases] == [
        f"{method}, epsilon {epsilon}" for method in ("dpsgd", "dpsgd-automatic") for epsilon in (1, 3)
    ]


def test_a_table_is_checked_when_it_is_made():
    with pytest.raises(ValueError, match="'protocol' is 'x'"):
        PaperTable("a", "b", "x", (Line("dpsgd"),))
