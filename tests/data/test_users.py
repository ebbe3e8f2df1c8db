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
    assert split.users is not None and split.users.unique(return_inverse=True)[1].bincount().tolist().count(2) == 1
    assert split.users[0] == split.users[2]
    assert split.inputs.shape == (4, 1) and split.units == 3 and split.unit == "user"
    assert split.select([0, 2]).units == 1


def test_a_parquet_table_does_too(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table(tmp_path)
    columns = {"patient": ["ann", "bob", "ann"], "age": [1.0, 2.0, 3.0], "sick": ["yes", "no", "no"]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    split = load(f"parquet:{tmp_path / 't.parquet'}", schema=tmp_path / "schema.yaml").train
    assert split.users is not None and split.users[0] == split.users[2] != split.users[1]


@pytest.mark.parametrize(("cells", "says"), [([1.0, float("nan"), 1.0], "NaN"), ([[1], [1, 2], [1]], "several parts")])
def test_a_cell_that_names_nobody_or_several_is_refused(tmp_path: Path, cells: list[object], says: str) -> None:
    """As a text, "nan" would be one user with all rows that have none."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table(tmp_path)
    columns = {"patient": cells, "age": [1.0, 2.0, 3.0], "sick": ["yes", "no", "no"]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=says):
        load(f"parquet:{tmp_path / 't.parquet'}", schema=tmp_path / "schema.yaml")


def test_a_row_without_a_user_is_refused_without_its_values(tmp_path: Path) -> None:
    path = table(tmp_path, [*ROWS, ",7,yes"])
    with pytest.raises(InputError, match="row 6, column 'patient'") as caught:
        load(f"csv:{path}", schema=tmp_path / "schema.yaml")
    assert "ann" not in str(caught.value)


def test_a_missing_column_of_users_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path, schema=SCHEMA.replace("patient", "person") + "ignore: [patient]\n")
    with pytest.raises(InputError, match="lacks the column of users"):
        load(f"csv:{path}", schema=tmp_path / "schema.yaml")


@pytest.mark.parametrize("name", ["age", "sick"])
def test_a_column_of_users_is_no_input(tmp_path: Path, name: str) -> None:
    path = table(tmp_path, schema=SCHEMA.replace("user: patient", f"user: {name}\nignore: [patient]"))
    with pytest.raises(InputError, match="second time"):
        load(f"csv:{path}", schema=tmp_path / "schema.yaml")


def test_a_users_number_does_not_depend_on_who_else_is_there(tmp_path: Path) -> None:
    """A hold-out goes by it: one more user must move nobody else from one part to the other."""
    load_again = lambda rows: load(f"csv:{table(tmp_path, rows)}", schema=tmp_path / "schema.yaml").train.users  # noqa: E731
    few, more = load_again(ROWS), load_again([ROWS[0], "zoe,9,no", *ROWS[1:]])
    assert few is not None and more is not None and few.tolist() == more.tolist()[1:]
