"""Every number of the sources on one page: from results that exist, with a reason for each difference, and past failures."""

import dataclasses
import json
import shutil
from importlib import resources

import pytest
from typer.testing import CliRunner

from privet.cli import app
from privet.errors import InputError, PrivetError
from privet.recipes.table import Row
from privet.reproduction import Entry, Part, Source, gather, run, sources
from privet.reproduction.formulas import FORMULAS
from privet.reproduction.page import difference, markdown, write_reproduction
from privet.reproduction.results import Results
from tests.report.test_browser import BROWSER, look

DIGITS = Part("digits-linear", "digits")


def privet(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


def row(**changes) -> Row:
    made = Row("mnist", "dpsgd", 2.0, 1e-5, 0.943, 0.001, 3, 9.0, "abadi-mnist", "privet reproduce abadi-mnist", ())
    return dataclasses.replace(made, **changes)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with two results in it."""
    folder = tmp_path_factory.mktemp("results")
    Results(folder).add_rows([row(), row(method="moments-3.45/cnn", epsilon=3.45, recipe="triastcyn-mnist")])
    made = privet("reproduce", "--all", "--no-run", "--results", folder, "--out", folder)
    assert made.exit_code == 0, made.output
    return folder, made


def entries(chapters) -> list[Entry]:
    return [entry for chapter in chapters for section in chapter.sections for entry in section.entries]


def test_every_source_and_every_part_is_there_and_says_where_its_number_is(page):
    _, made = page
    for source in sources():
        assert f"## {source.by}: {source.title}" in made.stdout
        for part in source.parts:
            assert f"(`{part.name}`)" in made.stdout
        for absent in source.absent:
            assert f"| {absent.what} | {absent.published} | {absent.why} |" in made.stdout
    assert "| 2 | 95 (Abadi et al. 2016) | 94.30 ± 0.10 | -0.70 | 3 | the clipping norm is that" in made.stdout
    assert "not run yet" in made.stdout
    assert "privet reproduce wang-cifar10 --line 3" in made.stdout


def test_the_formulas_give_the_numbers_of_the_sources():
    for source in sources():
        for check in source.checks:
            assert FORMULAS[check.compute](**check.arguments) == pytest.approx(check.published, rel=0.011)


def test_every_published_number_with_a_difference_has_a_reason():
    """Of what is committed: a number that differs without a reason is a question that nobody asked."""
    for entry in entries(gather(resources.files("privet").joinpath("../../benchmarks/results"))):
        assert entry.why != "no reason is known", entry


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ours": 95.4, "std": 0.1}, "equal, to the digits that are published"),
        ({"ours": 94.0, "std": 0.6}, "within two deviations over seeds"),
        ({"ours": 94.0, "std": 0.1}, "it is smaller"),
        ({"ours": 94.0, "differs": ""}, "no reason is known"),
        ({"state": "not run yet"}, "not run yet"),
        ({"state": "failed", "reason": "it broke"}, "failed: it broke"),
        ({"published": None, "ours": 94.0}, ""),
        ({"published": 110_000, "ours": 108_883}, "equal, to the digits that are published"),
        ({"published": 9.34, "ours": 9.353}, "it is smaller"),
    ],
)
def test_the_reason_follows_from_the_numbers_and_else_from_the_recipe(changes, why):
    assert (
        Entry(**{"what": "a", "quantity": "accuracy %", "published": 95, "differs": "it is smaller"} | changes).why
        == why
    )


def test_a_difference_of_nothing_has_no_sign_of_its_own():
    assert difference(Entry("a", "accuracy %", published=98.7, ours=98.6999)) == "+0.00"


@pytest.fixture
def two_parts(monkeypatch):
    """Sources with a part that runs in a second, and one that fails."""
    made = (Source("T", "B", parts=(DIGITS, Part("ellipse-mnist", "fails"))),)
    for module in ("run", "chapters"):
        monkeypatch.setattr(f"privet.reproduction.{module}.sources", lambda: made)
    return made


def test_one_failure_stops_nothing_and_what_is_kept_is_not_computed_again(two_parts, monkeypatch, tmp_path):
    from privet import data

    real = data.load

    def load(name, **rest):
        if name == "mnist":
            raise PrivetError("No source could give mnist.")
        return real(name, **rest)

    monkeypatch.setattr(run.data, "load", load)
    made = privet("reproduce", "--all", "--seeds", 1, "--out", tmp_path)
    assert made.exit_code == 0, made.output
    assert "1/7 digits-linear: dpsgd 3" in made.stderr
    assert "ellipse-mnist: dpsgd 0.3 failed: No source could give mnist." in made.stderr
    assert made.stdout.count("failed: No source could give mnist.") == 6
    kept = (tmp_path / "accuracy.json").read_text()
    monkeypatch.setattr("privet.recipes.table.fit", None)  # calling it would fail
    again = privet("reproduce", "--all", "--seeds", 1, "--out", tmp_path, "--json")
    assert (tmp_path / "accuracy.json").read_text() == kept
    first = json.loads(again.stdout)["sources"][0]["sections"][0]["entries"][0]
    assert first["seeds"] == 1 and first["state"] == "" and first["ours"] > 60


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on the PATH (Debian: apt install chromium)")
@pytest.mark.parametrize("width", [320, 1280])
def test_the_page_fits_in_a_browser(page, width, tmp_path):
    folder, _ = page
    seen, log = look(folder / "reproduced.html", width, tmp_path)
    assert seen["overflow"] <= 0 and seen["wide"] == [] and seen["requests"] == []
    assert ":CONSOLE" not in log


def test_the_figure_of_the_reversal_is_on_the_page(tmp_path):
    shutil.copy(resources.files("privet").joinpath("../../docs/images/reversal.jpg"), tmp_path / "reversal.jpg")
    (tmp_path / "reversal.json").write_text('{"ODE": 0.01}')
    chapters = gather(tmp_path)
    text = write_reproduction(chapters, tmp_path, tmp_path).read_text()
    assert "data:image/jpeg;base64," in text
    assert "| ODE | error of the recovered picture |" in markdown(chapters)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["abadi-mnist", "--all"], "--all takes no RECIPE"),
        (["abadi-mnist", "--no-run"], "--no-run belongs to --all"),
        (["--all", "--epsilon", "3"], "--epsilon is not used by --all"),
        ([], "Name what to reproduce, or take --all"),
    ],
)
def test_bad_usage_is_said(arguments, sentence):
    made = privet("reproduce", *arguments)
    assert made.exit_code == 2
    assert sentence in made.stderr


def test_results_that_are_none_are_said(tmp_path):
    (tmp_path / "accuracy.json").write_text('[{"a": 1}]')
    with pytest.raises(InputError, match="does not hold rows of results"):
        gather(tmp_path)
    (tmp_path / "accuracy.json").write_text("{")
    with pytest.raises(InputError, match="is not a file of results"):
        gather(tmp_path)
