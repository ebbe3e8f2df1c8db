"""CSV and Parquet, which must agree, and the schema that both need."""

import csv
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privet.data import Categorical, Numeric, Schema, load, read_schema
from privet.errors import InputError

PEOPLE = Schema(
    columns=(
        Numeric("age", 0, 100),
        Categorical("work", ("private", "public")),
        Categorical("rich", ("no", "yes")),
    ),
    label="rich",
)
YAML = """
label: rich
columns:
  age: {low: 0, high: 100}
  work: {categories: [private, public]}
  rich: {categories: ["no", "yes"]}
"""
ROWS = "age,work,rich\n25,public,no\n 100 , private,yes\n"
EXPECTED = torch.tensor([[0.25, 0.0, 1.0], [1.0, 1.0, 0.0]])


def test_csv_is_encoded_by_the_schema(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text(ROWS)
    dataset = load(f"csv:{tmp_path}/people.csv", schema=PEOPLE)
    assert dataset.classes == ("no", "yes")
    assert torch.equal(dataset.train.inputs, EXPECTED)
    assert dataset.train.labels.tolist() == [0, 1]
    assert PEOPLE.inputs == ("age", "work=private", "work=public")


def test_parquet_gives_the_same_data_set(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text(ROWS)
    work = pa.array(["public", "private"]).dictionary_encode()
    pq.write_table(pa.table({"age": [25, 100], "work": work, "rich": ["no", "yes"]}), tmp_path / "people.parquet")
    from_csv = load(f"csv:{tmp_path}/people.csv", schema=PEOPLE)
    from_parquet = load(f"parquet:{tmp_path}/people.parquet", schema=PEOPLE)
    assert from_csv.fingerprint == from_parquet.fingerprint


def test_a_folder_has_train_and_test(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(ROWS)
    (tmp_path / "test.csv").write_text(ROWS)
    assert list(load(f"csv:{tmp_path}", schema=PEOPLE).splits) == ["train", "test"]


def test_bytes_of_spreadsheets_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf" + ROWS.replace("\n", "\r\n").encode())
    assert torch.equal(load(f"csv:{tmp_path}/a.csv", schema=PEOPLE).train.inputs, EXPECTED)


def test_clipping_is_done_only_when_asked(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,work,rich\n130,public,no\n-5,public,no\n")
    with pytest.raises(InputError, match="outside the bounds 0 to 100"):
        load(f"csv:{tmp_path}/a.csv", schema=PEOPLE)
    clipped = load(f"csv:{tmp_path}/a.csv", schema=replace(PEOPLE, clip=True))
    assert clipped.train.inputs[:, 0].tolist() == [1.0, 0.0]


def test_nothing_about_the_encoding_comes_from_the_rows(tmp_path: Path) -> None:
    """Adding a record never changes how another one is encoded."""
    (tmp_path / "a.csv").write_text("age,work,rich\n25,public,no\n")
    (tmp_path / "b.csv").write_text("age,work,rich\n25,public,no\n99,private,yes\n")
    alone, together = (load(f"csv:{tmp_path}/{name}.csv", schema=PEOPLE) for name in "ab")
    assert torch.equal(alone.train.inputs[0], together.train.inputs[0])
    assert alone.classes == together.classes


def test_messages_do_not_show_private_values(tmp_path: Path) -> None:
    for row in ("secret,public,no", "25,secret,no", "25,public,secret", "4242424242,public,no"):
        (tmp_path / "a.csv").write_text(f"age,work,rich\n{row}\n")
        with pytest.raises(InputError) as caught:
            load(f"csv:{tmp_path}/a.csv", schema=PEOPLE)
        assert "secret" not in str(caught.value)
        assert "4242424242" not in str(caught.value)


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda text: text == text.strip())


@st.composite
def tables(draw: st.DrawFn) -> tuple[Schema, list[list[Any]]]:
    low = draw(st.floats(-1e6, 1e6))
    high = low + draw(st.floats(1e-3, 1e6))
    kinds = tuple(draw(st.lists(words, min_size=1, max_size=4, unique=True)))
    classes = tuple(draw(st.lists(words, min_size=1, max_size=4, unique=True)))
    schema = Schema((Categorical("kind", kinds), Numeric("value", low, high), Categorical("y", classes)), "y")
    row = st.tuples(st.sampled_from(kinds), st.floats(low, high), st.sampled_from(classes)).map(list)
    return schema, draw(st.lists(row, min_size=1, max_size=6))


@given(tables())
def test_csv_round_trip(table: tuple[Schema, list[list[Any]]]) -> None:
    schema, rows = table
    with tempfile.TemporaryDirectory() as folder:
        with (Path(folder) / "a.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["kind", "value", "y"])
            writer.writerows([kind, repr(value), y] for kind, value, y in rows)
        split = load(f"csv:{folder}/a.csv", schema=schema).train
    kinds, number = schema.features
    assert isinstance(kinds, Categorical)
    assert isinstance(number, Numeric)
    for record, (kind, value, y) in enumerate(rows):
        inputs = split.inputs[record].tolist()
        assert inputs[:-1] == [float(kind == category) for category in kinds.categories]
        assert inputs[-1] * (number.high - number.low) + number.low == pytest.approx(
            value, abs=1e-6 * (number.high - number.low), rel=1e-9
        )
        assert schema.classes[split.labels[record]] == y


@pytest.mark.parametrize("suffix", ["json", "yaml", "yml"])
def test_schema_files(tmp_path: Path, suffix: str) -> None:
    people = {"age": {"low": 0, "high": 100}, "work": {"categories": ["private", "public"]}}
    written = {"label": "rich", "columns": {**people, "rich": {"categories": ["no", "yes"]}}}
    (tmp_path / f"schema.{suffix}").write_text(json.dumps(written) if suffix == "json" else YAML)
    assert read_schema(tmp_path / f"schema.{suffix}") == PEOPLE
    (tmp_path / "a.csv").write_text(ROWS)
    assert len(load(f"csv:{tmp_path}/a.csv", schema=tmp_path / f"schema.{suffix}")) == 2


def test_schema_can_ignore_columns(tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(YAML + "ignore: [id]\nclip: true\n")
    (tmp_path / "a.csv").write_text("id,age,work,rich\nx,250,public,no\n")
    assert load(f"csv:{tmp_path}/a.csv", schema=tmp_path / "schema.yaml").train.inputs[0, 0] == 1


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("[1, 2]", "The schema is not a table of names: write it as 'name: value'."),
        ('{"columns": {}}', "The schema lacks label: add it."),
        ('{"label": "y", "columns": {}}', "The label 'y' is not among the schema's columns: describe it there."),
        ('{"label": "y", "columns": {"y": {"low": 0, "high": 1}}}', "The schema has no column except the label: "),
        ('{"label": "y", "columns": {"y": {"categories": ["a"]}}}', "The schema has no column except the label: "),
        ('{"label": "y", "columns": {"x": {"low": 1, "high": 1}}}', "Column 'x' has bounds 1.0 to 1.0: "),
        ('{"label": "y", "columns": {"x": {"low": 1}}}', "Column 'x' lacks high: add it."),
        ('{"label": "y", "columns": {"x": {"low": "1", "high": 2}}}', "Column 'x': low and high must be numbers: "),
        ('{"label": "y", "columns": {"x": {"categories": []}}}', "Column 'x' needs categories, each listed once: "),
        (
            '{"label": "y", "columns": {"x": {"categories": [true]}}}',
            "Column 'x': categories must be a list of names: ",
        ),
        ('{"label": "y", "columns": {}, "clop": true}', "The schema has the unknown entry 'clop': allowed are clip, "),
        ('{"label": 3, "columns": {}}', "The label must be a column's name and clip true or false: fix them."),
    ],
)
def test_bad_schemas(tmp_path: Path, written: str, message: str) -> None:
    path = tmp_path / "schema.json"
    path.write_text(written)
    with pytest.raises(InputError) as caught:
        read_schema(path)
    assert str(caught.value).startswith(f"{path}: {message}")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"needs pyarrow: install it with 'pip install privet\[tables\]'"):
        load(f"parquet:{tmp_path}/a.parquet", schema=PEOPLE)


def test_yaml_without_pyyaml_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text(YAML)
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(InputError, match="needs PyYAML"):
        read_schema(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"age": [1, None], "work": ["public"] * 2, "rich": ["no"] * 2}, "row 2, column 'age': the cell is empty"),
        ({"age": ["x"], "work": ["public"], "rich": ["no"]}, "row 1, column 'age': the cell is not a number"),
        ({"age": [float("nan")], "work": ["public"], "rich": ["no"]}, "row 1, column 'age': the cell is NaN"),
        ({"age": [1.0], "work": ["public"]}, "lacks the column 'rich' .the label. of the schema"),
        ({"age": pa.array([], pa.int64()), "work": pa.array([], pa.string())}, "has no records"),
    ],
)
def test_bad_parquet(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=message):
        load(f"parquet:{tmp_path}/a.parquet", schema=PEOPLE)


def test_one_hot_matches_a_loop(tmp_path: Path) -> None:
    rows = "".join(f"{n},{'public' if n % 3 else 'private'},{'yes' if n % 2 else 'no'}\n" for n in range(50))
    (tmp_path / "a.csv").write_text("age,work,rich\n" + rows)
    split = load(f"csv:{tmp_path}/a.csv", schema=PEOPLE).train
    for n in range(50):
        np.testing.assert_allclose(split.inputs[n], [n / 100, float(n % 3 == 0), float(n % 3 != 0)], rtol=1e-6)
    assert split.labels.tolist() == [n % 2 for n in range(50)]
