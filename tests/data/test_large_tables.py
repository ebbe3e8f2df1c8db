"""Large tables: read in blocks, by pyarrow or by Python with the same result, with progress, in little memory."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.data import Categorical, Dataset, Numeric, Schema, load, tables
from privet.errors import InputError

SCHEMA = Schema(
    (Numeric("age", -1e6, 1e6), Categorical("work", ("", "a", "b c")), Categorical("rich", ("no", "yes"))),
    "rich",
    ignore=("note",),
    clip=True,
)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROWS", 4)
    monkeypatch.setattr(tables, "COLUMNAR_ROWS", 4)


@pytest.fixture(params=["pyarrow", "own"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read CSV files of any size with pyarrow, or with Python."""
    monkeypatch.setattr(tables, "ARROW_FROM_BYTES", 0 if request.param == "pyarrow" else 1 << 60)
    return str(request.param)


def rows(count: int) -> Iterator[str]:
    draw = random.Random(0)
    for _ in range(count):
        yield f"{draw.uniform(-9, 9):.3f},{draw.choice(['', 'a', ' b c '])},x,{draw.choice(['no', 'yes'])}"


def write(path: Path, lines: list[str], end: str = "\n") -> Path:
    path.write_bytes((end.join(["age,work,note,rich", *lines]) + end).encode())
    return path


def test_both_ways_read_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list(rows(20_000))
    found = []
    for end in ("\n", "\r\n"):
        path = write(tmp_path / "t.csv", lines, end)
        for least in (0, 1 << 60):
            monkeypatch.setattr(tables, "ARROW_FROM_BYTES", least)
            found.append(load(f"csv:{path}", schema=SCHEMA))
    assert len({one.fingerprint for one in found}) == 1
    assert len(found[0].train) == 20_000


def test_a_row_is_found_wherever_it_is(way: str, small_blocks: None, tmp_path: Path) -> None:
    lines = list(rows(30))
    for place, line, message in (
        (20, "old,a,x,no", "row 22, column 'age': the cell is not a number"),
        (7, ",a,x,no", "row 9, column 'age': the cell is empty"),
        (29, "nan,a,x,no", "row 31, column 'age': the cell is NaN"),
        (13, "1,d,x,no", "row 15, column 'work': the cell has no category"),
        (0, "1,a,x,", "row 2, column 'rich': the cell has no category"),
        (9, "1,a,x", "row 11: 3 cells, but the first row has 4"),
        (9, "1,a,x,no,more", "row 11: 5 cells, but the first row has 4"),
        (10, "", "row 12: the row is blank: remove it"),
        (17, '1,"a,x,no', "row 19: not valid CSV"),
        (17, '1,"a"b,x,no', "row 19: not valid CSV"),
    ):
        path = write(tmp_path / "t.csv", [*lines[:place], line, *lines[place + 1 :]])
        with pytest.raises(InputError, match=message):
            load(f"csv:{path}", schema=SCHEMA)


def test_a_column_that_is_empty_throughout(way: str, small_blocks: None, tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", [",a,x,no"] * 30)
    with pytest.raises(InputError, match="the column 'age' is empty throughout"):
        load(f"csv:{path}", schema=SCHEMA)
    path = write(tmp_path / "t.csv", [",a,x,no"] * 29 + ["1,a,x,no"])
    with pytest.raises(InputError, match="row 2, column 'age': the cell is empty"):
        load(f"csv:{path}", schema=SCHEMA)


CELLS = st.text(st.sampled_from("19.,e-+_ \t\u00a0\u0661nifaINx\"'\r\n\0\x1c\x85\u2028ü#"), max_size=6)
NUMBERS = st.one_of(st.floats(-10, 10).map(repr), st.integers(-9, 9).map(str), CELLS)
TEXTS = st.one_of(st.sampled_from(["a", "b c", "", " a "]), CELLS)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(NUMBERS, TEXTS, CELLS, st.sampled_from(["no", "yes", "no "])), min_size=1, max_size=9),
    st.sampled_from(["\n", "\r\n", "\r", "\n\n"]),
    st.booleans(),
)
def test_both_ways_agree_on_every_file(
    tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[str, ...]], end: str, mark: bool
) -> None:
    """Whatever the file: both give the same records, or the same message."""
    path = tmp_path_factory.mktemp("t") / "t.csv"
    text = end.join(["age,work,note,rich", *(",".join(row) for row in cells)]) + end
    path.write_bytes((b"\xef\xbb\xbf" if mark else b"") + text.encode())
    results: list[Dataset | str] = []
    for least in (0, 1 << 60):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables, "ARROW_FROM_BYTES", least)
            patch.setattr(tables, "ROWS", 3)
            try:
                results.append(load(f"csv:{path}", schema=SCHEMA))
            except InputError as error:
                results.append(str(error))
    first, second = results
    if isinstance(first, Dataset) and isinstance(second, Dataset):
        assert first.fingerprint == second.fingerprint
    else:
        assert first == second


def test_pyarrow_is_used_where_it_should_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the tests above compare Python with itself."""
    path = write(tmp_path / "t.csv", list(rows(20)))
    monkeypatch.setattr(tables, "ARROW_FROM_BYTES", 0)

    def refuse(*_: object) -> None:
        raise AssertionError("Python's reader was used")

    monkeypatch.setattr(tables.CsvTable, "_text_blocks", refuse)
    assert len(load(f"csv:{path}", schema=SCHEMA)) == 20


def test_without_pyarrow_large_files_are_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t.csv", list(rows(20)))
    monkeypatch.setattr(tables, "ARROW_FROM_BYTES", 0)
    monkeypatch.setitem(sys.modules, "pyarrow.csv", None)
    assert len(load(f"csv:{path}", schema=SCHEMA)) == 20


def test_progress_is_in_hundredths(way: str, tmp_path: Path) -> None:
    """The number of rows, and of bytes, may be private, and bars end up in logs."""
    path = write(tmp_path / "t.csv", list(rows(40_000)))
    told: list[tuple[str, int, int | None]] = []
    load(f"csv:{path}", schema=SCHEMA, progress=lambda *one: told.append(one))
    assert len(told) >= 4
    assert {(what, total) for what, _, total in told} == {("Reading t.csv", 100)}
    done = [one for _, one, _ in told]
    assert done == sorted(done)
    assert all(0 <= one <= 100 for one in done)


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path, small_blocks: None) -> None:
    path = write(tmp_path / "t.csv", list(rows(8)))
    table = tables.open_csv(path)
    write(path, list(rows(100)))
    with pytest.raises(InputError, match="changed while it was read"):
        tables.to_split(table, SCHEMA)


def test_a_line_without_an_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"age,work,rich\n" + b"x" * (5 << 20))
    with pytest.raises(InputError, match="line 2: longer than 4 MiB, the limit for a row"):
        load(f"csv:{tmp_path}/t.csv", schema=SCHEMA)


def test_a_table_that_cannot_fit_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    wide = Schema((Categorical("x", tuple(map(str, range(2_000_000)))), Categorical("y", ("0", "1"))), "y")
    (tmp_path / "t.csv").write_text("x,y\n" + "1,0\n" * 200_000)
    with pytest.raises(
        InputError, match=r"may need more than the .* of memory of this machine .* describe fewer categories"
    ):
        load(f"csv:{tmp_path}/t.csv", schema=wide)


def test_the_unused_rows_are_given_back(tmp_path: Path) -> None:
    """The bound of the rows is too high where a cell has line ends; a copy for another process has the true size."""
    lines = [f'1,a,"{chr(10) * 50}",no' for _ in range(20)]
    path = write(tmp_path / "t.csv", lines)
    found = load(f"csv:{path}", schema=SCHEMA).train
    assert found.inputs.untyped_storage().nbytes() == 20 * 4 * 4
    assert torch.equal(found.labels, torch.zeros(20, dtype=torch.int64))


PARTS = {"age": [1, 2, 3, 4, 5, 6], "work": ["a", "", "b c", "a", "a", "a"], "rich": ["no", "yes"] * 3}


def test_parquet_with_all_kinds_of_columns(tmp_path: Path, small_blocks: None) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    kinds = [
        pa.int8(),
        pa.uint64(),
        pa.float32(),
        pa.float64(),
        pa.decimal128(9, 2),
        pa.dictionary(pa.int8(), pa.int64()),
    ]
    seen = set()
    for kind in kinds:
        column = (
            pa.array(PARTS["age"]).dictionary_encode() if "dictionary" in str(kind) else pa.array(PARTS["age"], kind)
        )
        table = pa.table({"age": column, "work": PARTS["work"], "rich": pa.array(PARTS["rich"]).dictionary_encode()})
        pq.write_table(table, tmp_path / "t.parquet")
        seen.add(load(f"parquet:{tmp_path}/t.parquet", schema=SCHEMA).fingerprint)
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"age": [[1], [2]]}, "row 1, column 'age': the cell is not a number"),
        ({"work": [["a"], ["b"]]}, "row 1, column 'work': the cell has several parts"),
        ({"work": [{"a": 1}, {"a": 2}]}, "row 1, column 'work': the cell has several parts"),
        ({"work": ["a", None]}, "row 2, column 'work': the cell is empty"),
        ({"work": [1.5, float("nan")]}, "row 2, column 'work': the cell is NaN"),
        ({"age": [None, None]}, "the column 'age' is empty throughout"),
        ({"age": [b"1", b"2"]}, "row 1, column 'age': the cell is not a number"),
    ],
)
def test_bad_cells_of_parquet(tmp_path: Path, column: dict[str, list[object]], message: str) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"age": [1, 2], "work": ["a", "a"], "rich": ["no", "no"]} | column), tmp_path / "t.parquet")
    with pytest.raises(InputError, match=message):
        load(f"parquet:{tmp_path}/t.parquet", schema=SCHEMA)


def test_a_small_parquet_file_that_claims_many_rows(tmp_path: Path) -> None:
    """Equal values take no space in Parquet: the records are counted before memory is taken."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    wide = Schema((Categorical("x", tuple(map(str, range(1_000_000)))), Categorical("y", ("0", "1"))), "y")
    pq.write_table(pa.table({"x": ["1"] * 200_000, "y": ["0"] * 200_000}), tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").stat().st_size < 10_000
    with pytest.raises(InputError, match=r"may need more than the .* of memory"):
        load(f"parquet:{tmp_path}/t.parquet", schema=wide)


MEASURE = """
import json, sys, time
from pathlib import Path
if sys.argv[1] == "own":
    sys.modules["pyarrow"] = None
from privet.data import load
def status(field):
    return next(1024 * int(l.split()[1]) for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(field))
load(f"csv:{sys.argv[2]}/small.csv", schema=f"{sys.argv[2]}/schema.json")
if sys.argv[1] == "pyarrow":
    import pyarrow.csv
Path("/proc/self/clear_refs").write_text("5")
before, begin = status("VmRSS"), time.process_time()
found = load(f"csv:{sys.argv[2]}/large.csv", schema=f"{sys.argv[2]}/schema.json")
assert "pandas" not in sys.modules, "it takes as much memory as the file"
print(json.dumps([len(found), time.process_time() - begin, status("VmHWM") - before]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is counted anew on Linux only")
@pytest.mark.parametrize("way", ["pyarrow", "own"])
def test_a_million_rows_in_ten_seconds_and_four_times_the_file(way: str, tmp_path: Path) -> None:
    for name, count in (("small", 100), ("large", 1_000_000)):
        draw = random.Random(0)
        with (tmp_path / f"{name}.csv").open("w") as file:
            file.write("age,hours,work,rich\n")
            for _ in range(count):
                work, rich = draw.choice(("none", "public", "own")), draw.choice(("no", "yes"))
                file.write(f"{draw.randrange(100)},{100 * draw.random():.2f},{work},{rich}\n")
    columns = {"age": {"low": 0, "high": 100}, "hours": {"low": 0, "high": 100}}
    columns |= {"work": {"categories": ["none", "public", "own"]}, "rich": {"categories": ["no", "yes"]}}
    (tmp_path / "schema.json").write_text(json.dumps({"label": "rich", "columns": columns}))
    command = [sys.executable, "-c", MEASURE, way, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    count, seconds, memory = json.loads(done.stdout)
    assert count == 1_000_000
    assert seconds < 10
    assert memory < 4 * (tmp_path / "large.csv").stat().st_size
