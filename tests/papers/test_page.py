"""Every figure of the papers on one page: from results that exist, with a reason for each difference."""

import dataclasses
import shutil
from importlib import resources
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privet.attacks import AttackResult, Roc
from privet.cli import app
from privet.errors import InputError
from privet.papers import Measurement, gather, load, markdown, merge, papers, section, write_reproduction
from privet.papers.page import Beside, TableRow
from tests.report.test_browser import BROWSER, look

RESULTS = Path(str(resources.files("privet").joinpath("../../benchmarks/results")))
ONE = Measurement(
    "abadi-mnist", "dpsgd", 2.0, 1e-5, {"accuracy": 0.943}, "mnist", 0, 3, {"accuracy": 0.001}, seconds=9.0
)


def privet(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with two results in it."""
    folder = tmp_path_factory.mktemp("results")
    merge(folder / "abadi-mnist.json", [ONE])
    other = dataclasses.replace(
        ONE, table="triastcyn-mnist", line="moments-3.45", epsilon=3.45, quantities={"cnn": 0.9}
    )
    merge(folder / "triastcyn-mnist.json", [other])
    made = privet("reproduce", "--all", "--no-run", "--results", folder, "--out", folder)
    assert made.exit_code == 0, made.output
    return folder, made


def test_every_paper_and_every_table_is_there_and_says_where_its_figure_is(page):
    _, made = page
    for paper in papers():
        assert f"## {paper.by}: {paper.title}" in made.stdout
        for name in paper.tables:
            assert f"(`{name}`)" in made.stdout
        for absent in paper.absent:
            assert f"| {absent.what} | {absent.published} | {absent.why} |" in made.stdout
    assert "| 2 | 94.30 ± 0.10 | 95 (Abadi et al. 2016) | -0.70 | 3 | 9 | the clipping norm is that" in made.stdout
    assert "not run yet" in made.stdout
    assert "privet reproduce wang-cifar10 --line 3" in made.stdout


def test_every_published_figure_with_a_difference_has_a_reason():
    """Of what is committed: a figure that differs without a reason is a question that nobody asked."""
    rows = [row for chapter in gather(RESULTS) for each in chapter.sections for row in each.rows]
    assert len(rows) > 80 and not any(row.state for row in rows)
    for row in rows:
        assert "no reason is known" not in row.why, row


def test_the_committed_results_say_what_they_always_said():
    text = markdown(gather(RESULTS))
    for line in (
        "| DP-SGD (Abadi et al. 2016) | 8 | 96.78 ± 0.03 | 97 (Abadi et al. 2016) | -0.22 | 96.77 ± 0.02 | 3 | 790 |",
        "| Class moments | 3.45 | 97.91 ± 0.10 | 98.19 | -0.28 | 86.91 ± 0.35 | 88.96 | -2.05 | 3 | 98 |",
        "| ResNet8 | 41.08 ± 0.45 | 66.9 | -25.82 | 0.830 ± 0.009 | 0.757 | +0.073 | 98.93 ± 0.24 | 3 | 42 |",
        "| SDE, strategy II, gamma 1 | 1.729 |",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ours": 95.4, "std": 0.1}, "equal, to the digits that are published"),
        ({"ours": 94.0, "std": 0.6}, "within two deviations over seeds"),
        ({"ours": 94.0, "std": 0.1}, "it is smaller"),
        ({"ours": 94.0, "differs": ""}, "no reason is known"),
        ({"published": None, "ours": 94.0}, ""),
        ({"published": 110_000, "ours": 108_883}, "equal, to the digits that are published"),
        ({"published": 9.34, "ours": 9.353}, "it is smaller"),
    ],
)
def test_the_reason_follows_from_the_figures_and_else_from_the_table(changes, why):
    figure = Beside(**{"quantity": "accuracy", "published": 95, "differs": "it is smaller"} | changes)
    assert figure.why == why
    assert TableRow("a", 3.0, (figure,)).why == why


def test_a_row_joins_the_reasons_of_its_figures():
    first = Beside("accuracy", 94.0, published=95, differs="it is smaller")
    second = Beside("auc", 0.5, published=0.5)
    assert TableRow("a", 3.0, (first, second)).why == (
        "accuracy: it is smaller; AUC of the attack: equal, to the digits that are published"
    )
    assert TableRow("a", 3.0, (first,), state="not run yet").why == "not run yet"
    assert TableRow("a", 3.0, (first,), state="failed", reason="it broke").why == "failed: it broke"


def test_a_difference_of_nothing_has_no_sign_of_its_own():
    assert Beside("accuracy", 98.6999, published=98.7).cells() == ("98.70", "98.7", "+0.00")


def test_several_seeds_are_shown_as_mean_and_spread_and_one_with_its_interval():
    table = load("wang-cifar10")
    attack = AttackResult.of("", Roc.of([1.0, 2.0, 3.0], [0.0, 1.0, 2.5]))
    quantities = {"accuracy": 0.4, "auc": attack.auc, "training": 1.0}
    made = Measurement("wang-cifar10", "ResNet8", None, 1e-5, quantities, attack=attack, seconds=1.0)
    one = section(table, [made], lines=table.cases[:1])
    assert f"{attack.auc:.3f} ({attack.low:.3f} to {attack.high:.3f})" in one.markdown()
    other = dataclasses.replace(made, seed=1, quantities=quantities | {"accuracy": 0.5})
    text = section(table, [made, other], lines=table.cases[:1]).markdown()
    assert "| ResNet8 | 45.00 ± 7.07 |" in text
    assert "| 100.00 ± 0.00 | 2 | 1 |" in text


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on the PATH (Debian: apt install chromium)")
@pytest.mark.parametrize("width", [320, 1280])
def test_the_page_fits_in_a_browser(page, width, tmp_path):
    folder, _ = page
    seen, log = look(folder / "reproduced.html", width, tmp_path)
    assert seen["overflow"] <= 0 and seen["wide"] == [] and seen["requests"] == []
    assert ":CONSOLE" not in log


def test_the_figure_of_the_reversal_is_on_the_page(tmp_path):
    shutil.copy(RESULTS / ".." / ".." / "docs" / "images" / "reversal.jpg", tmp_path / "reversal.jpg")
    merge(tmp_path / "wang-reversal.json", [Measurement("wang-reversal", "ODE", None, 1e-5, {"error": 0.01})])
    chapters = gather(tmp_path)
    text = write_reproduction(chapters, tmp_path, tmp_path).read_text()
    assert "data:image/jpeg;base64," in text
    assert "| ODE | 0.01 |" in markdown(chapters)


def test_results_that_are_none_are_said(tmp_path):
    (tmp_path / "abadi-mnist.json").write_text('[{"a": 1}]')
    with pytest.raises(InputError, match="does not hold measurements"):
        gather(tmp_path)
    (tmp_path / "abadi-mnist.json").write_text("{")
    with pytest.raises(InputError, match="is not a file of results"):
        gather(tmp_path)
