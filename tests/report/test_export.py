"""Results as CSV, LaTeX and pandas."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.testing import CliRunner

from privet.cli.program import app
from privet.errors import InputError
from privet.report.export import export, flattened, to_frame

ROWS = [
    {"method": "a_1 & 50 %", "spent": {"epsilon": 1.5, "conditions": ["x", "y"]}, "internal": {"auc": 0.51234567}},
    {"method": "=cmd", "spent": {"epsilon": float("inf"), "conditions": []}, "more": [{"deep": 1}], "none": None},
]


def test_nested_values_become_columns() -> None:
    assert flattened(ROWS[0]) == {
        "method": "a_1 & 50 %", "spent_epsilon": 1.5, "spent_conditions": "x; y", "internal_auc": 0.51234567
    }  # fmt: skip
    assert flattened(ROWS[1]) == {"method": "=cmd", "spent_epsilon": float("inf"), "none": None}


def test_a_csv_file_has_every_column_and_no_formula(tmp_path: Path) -> None:
    rows = list(csv.DictReader(export(ROWS, tmp_path / "new" / "t.csv").read_text().splitlines()))
    assert [row["method"] for row in rows] == ["a_1 & 50 %", "'=cmd"]
    assert rows[0]["internal_auc"] == "0.51234567" and rows[1]["internal_auc"] == ""


def test_a_latex_table_is_escaped_and_leaves_empty_columns_out(tmp_path: Path) -> None:
    text = export(ROWS, tmp_path / "t.tex", "All of {it}").read_text()
    assert r"\caption{All of \{it\}}" in text and r"a\_1 \& 50 \% & 1.5 & x; y & 0.5123 \\" in text
    assert r"=cmd & $\infty$ &  &  \\" in text and "none" not in text
    assert text.count("{") == text.count("}")


def test_a_file_with_internal_figures_is_for_its_owner(tmp_path: Path) -> None:
    assert export(ROWS, tmp_path / "in.csv").stat().st_mode & 0o777 == 0o600
    assert export([{"method": "a"}], tmp_path / "out.csv").stat().st_mode & 0o777 == 0o644


def test_another_ending_is_refused_before_anything_is_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"writes \.csv and \.tex files"):
        export(ROWS, tmp_path / "t.xlsx")
    for verb in (["compare", "--data", "digits", "--out", str(tmp_path / "c")], ["reproduce", "abadi-mnist"]):
        done = CliRunner().invoke(app, [*verb, "--export", str(tmp_path / "t.pdf")])
        assert done.exit_code == 2 and "writes .csv and .tex" in " ".join(done.output.split())
    assert not (tmp_path / "c").exists()


def test_a_table_of_formulas_is_exported(tmp_path: Path) -> None:
    from privet.papers import load, names

    name = next(one for one in names() if load(one).protocol == "formulas")
    done = CliRunner().invoke(app, ["reproduce", name, "--export", str(tmp_path / "t.csv")])
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert rows and any(column.startswith("quantities_") for column in rows[0])


@pytest.mark.slow
def test_a_comparison_is_exported(tmp_path: Path) -> None:
    words = ["compare", "--data", "digits", "--methods", "dpsgd", "--set", "epochs=1", "--out", str(tmp_path / "c")]
    for ending in ("csv", "tex"):
        done = CliRunner().invoke(app, [*words, "--export", str(tmp_path / f"t.{ending}")])
        assert done.exit_code == 0, done.output
    (row,) = csv.DictReader((tmp_path / "t.csv").read_text().splitlines())
    assert row["method"] == "dpsgd" and 0 < float(row["spent_epsilon"]) <= 3
    assert "dpsgd" in (tmp_path / "t.tex").read_text()


@pytest.mark.slow
def test_a_frame_of_pandas() -> None:
    pytest.importorskip("pandas")
    frame = to_frame(ROWS)
    assert list(frame["spent_epsilon"]) == [1.5, float("inf")]
