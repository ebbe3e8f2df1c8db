"""The column of users in a table."""

from pathlib import Path

import pytest

from privet.data import load
from privet.errors import InputError

SCHEMA = """
label: sick
columns:
  age: {low: 0, high: 100}
  sick: {categories: ["yes", "no"]}
user: patient
"""
ROWS = ["patient,age,sick", "ann,3,yes", "bob,4,no", "ann,5,no", "cid,6,yes"]


def table(tmp_path: Path, rows: list[str] = ROWS, schema: str = SCHEMA) -> Path:
    (tmp_path / "schema.yaml").write_text(schema)
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    return tmp_path / "t.csv"


def test_a_table_knows_whose_its_rows_are(tmp_path: Path) -> None:
    split = load(f"csv:{table(tmp_path)}", schema=tmp_path / "schema.yaml").train
    assert split.users is not None and split.users.tolist() == [0, 1, 0, 2]
    assert split.inputs.shape == (4, 1) and split.units == 3 and split.unit == "user"
    assert split.select([0, 2]).units == 1


def test_a_parquet_table_does_too(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table(tmp_path)
    columns = {"patient": ["ann", "bob", "ann"], "age": [1.0, 2.0, 3.0], "sick": ["yes", "no", "no"]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    split = load(f"parquet:{tmp_path / 't.parquet'}", schema=tmp_path / "schema.yaml").train
    assert split.users is not None and split.users.tolist() == [0, 1, 0]


def test_a_row_without_a_user_is_refused_without_its_values(tmp_path: Path) -> None:
    path = table(tmp_path, [*ROWS, ",7,yes"])
    with pytest.raises(InputError, match="row 6, column 'patient'") as caught:
        load(f"csv:{path}", schema=tmp_path / "schema.yaml")
    assert "ann" not in str(caught.value)


def test_a_missing_column_of_users_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path, schema=SCHEMA.replace("patient", "person") + "ignore: [patient]\n")
    with pytest.raises(InputError, match="no column of users"):
        load(f"csv:{path}", schema=tmp_path / "schema.yaml")


@pytest.mark.parametrize("name", ["age", "sick"])
def test_a_column_of_users_is_no_input(tmp_path: Path, name: str) -> None:
    path = table(tmp_path, schema=SCHEMA.replace("user: patient", f"user: {name}\nignore: [patient]"))
    with pytest.raises(InputError, match="second time"):
        load(f"csv:{path}", schema=tmp_path / "schema.yaml")
