"""Nothing that the user reads about broken data holds the data: canaries in every kind of file, broken in many ways.

A canary is a text, a number or a count that is in the file and nowhere else. It must be in no message, in no part of the
chain of errors that Python shows, in no output of the command, and in no file that the command leaves.
"""

import gzip
import json
import pickle
import re
import struct
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from typer.testing import CliRunner

from privet.cli import app
from privet.data import load, with_test_records
from privet.data.idx import write_idx
from privet.errors import PrivetError, PrivetWarning
from privet.report import RunRecord

TEXT = "Zyxwvut"
NUMBER = 918273645
SHORT = 7177
ROWS = 1237
CANARIES = re.compile(rf"{TEXT}|918,?273,?645|\b7,?177\b|\b1,?237\b|36bbaded|36 bb ad ed", re.IGNORECASE)
SCHEMA = {
    "label": "rich",
    "columns": {
        "age": {"low": 0, "high": 100},
        "work": {"categories": ["a", "b"]},
        "rich": {"categories": ["no", "yes"]},
    },
}

Make = Callable[[Path], str]
"""Writes a broken file into a folder and gives the text by which the data is named."""


def csv(*lines: str, name: str = "t.csv") -> Make:
    def make(at: Path) -> str:
        (at / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return f"csv:{at / name}"

    return make


def raw(content: bytes, spec: str) -> Make:
    def make(at: Path) -> str:
        (at / "file").write_bytes(content)
        return f"{spec}:{at / 'file'}"

    return make


def many(first: str) -> Make:
    return csv("age,work,rich", first, *(f"{n % 90},a,no" for n in range(ROWS - 2)), f"{TEXT},a,no")


def parquet(columns: dict[str, list[object]], *, cut: bool = False) -> Make:
    def make(at: Path) -> str:
        pyarrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        files.write_table(pyarrow.table(columns), at / "t.parquet")
        if cut:
            (at / "t.parquet").write_bytes((at / "t.parquet").read_bytes()[:-9])
        return f"parquet:{at / 't.parquet'}"

    return make


def idx(images: np.ndarray | bytes, labels: np.ndarray | bytes) -> Make:
    def make(at: Path) -> str:
        for name, content in (("train-images-idx3-ubyte", images), ("train-labels-idx1-ubyte", labels)):
            if isinstance(content, bytes):
                (at / name).write_bytes(content)
            else:
                write_idx(at / name, content)
        return f"idx:{at}"

    return make


def cifar(batch: object) -> Make:
    def make(at: Path) -> str:
        (at / "data_batch_1").write_bytes(pickle.dumps(batch))
        return f"cifar:{at}"

    return make


def svhn(**content: np.ndarray) -> Make:
    def make(at: Path) -> str:
        savemat(at / "train_32x32.mat", content)
        return f"svhn:{at / 'train_32x32.mat'}"

    return make


def folder(*files: tuple[str, object]) -> Make:
    def make(at: Path) -> str:
        for name, content in files:
            (at / name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, tuple):
                Image.new("L", content).save(at / name, format="png")
            elif content is None:
                (at / name).mkdir()
            else:
                (at / name).write_bytes(bytes(content))
        return f"folder:{at}"

    return make


PIXELS = np.zeros((2, 3, 3), dtype=np.uint8)
TWO = np.array([0, 1], dtype=np.uint8)
BIG = np.array([0, NUMBER], dtype=np.int32)

BROKEN: dict[str, Make] = {
    "csv without a header": csv(f"{TEXT},a,no", f"{NUMBER},a,no"),
    "csv without a header, of numbers": csv(f"{NUMBER},1,2", f"{NUMBER},1,2"),
    "csv with another header": csv(f"age,{TEXT},rich", "1,a,no"),
    "csv with several other columns": csv(f"age,{TEXT},work,{NUMBER},rich", "1,2,a,3,no"),
    "csv with a column twice": csv(f"age,work,rich,{TEXT},{TEXT}", "1,a,no,1,1"),
    "csv with a text for a number": csv("age,work,rich", f"{TEXT},a,no"),
    "csv with a number out of bounds": csv("age,work,rich", f"{NUMBER},a,no"),
    "csv with an underscore": csv("age,work,rich", f"{SHORT}_{SHORT},a,no"),
    "csv with another category": csv("age,work,rich", f"1,{TEXT},no"),
    "csv with another class": csv("age,work,rich", f"1,a,{TEXT}"),
    "csv with a short row": csv("age,work,rich", "1,a,no", f"{TEXT},{NUMBER}"),
    "csv with a long row": csv("age,work,rich", f"{TEXT},{NUMBER},a,no"),
    "csv with a blank row": csv("age,work,rich", f"{TEXT},a,no", "", f"{NUMBER},a,no"),
    "csv with a broken quote": csv("age,work,rich", f'"{TEXT}"{NUMBER},a,no'),
    "csv with an open quote": csv("age,work,rich", f'"{TEXT},a,no'),
    "csv with a NUL": csv("age,work,rich", f"{TEXT}\0,a,no"),
    "csv with a huge cell": csv("age,work,rich", f"{TEXT * 30000},a,no"),
    "csv that is not UTF-8": raw(f"age,work,rich\n{TEXT}".encode() + b"\xff,a,no\n", "csv"),
    "csv with NaN": csv("age,work,rich", f"{NUMBER},a,no", "nan,a,no"),
    "csv with one row": csv(f"{TEXT},{NUMBER},no"),
    "csv with many rows": many("1,a,no"),
    "csv of records that are all alike": csv("age,work,rich", *["1,a,no"] * ROWS),
    "a csv as idx": raw(f"{TEXT},{NUMBER}\n".encode(), "idx"),
    "a csv as parquet": raw(f"{TEXT},{NUMBER}\n".encode(), "parquet"),
    "a csv as svhn": raw(f"{TEXT},{NUMBER}\n".encode(), "svhn"),
    "a csv as cifar": raw(f"{TEXT},{NUMBER}\n".encode(), "cifar"),
    "parquet with another column": parquet({TEXT: [1], "age": [1], "work": ["a"], "rich": ["no"]}),
    "parquet with other columns only": parquet({TEXT: [NUMBER], "x": [1]}),
    "parquet with a text for a number": parquet({"age": [TEXT], "work": ["a"], "rich": ["no"]}),
    "parquet with a number out of bounds": parquet({"age": [NUMBER], "work": ["a"], "rich": ["no"]}),
    "parquet with another class": parquet({"age": [1], "work": ["a"], "rich": [TEXT]}),
    "parquet with an empty cell": parquet({"age": [NUMBER, None], "work": ["a", "a"], "rich": ["no", "no"]}),
    "parquet that is cut": parquet({"age": [NUMBER], "work": [TEXT], "rich": ["no"]}, cut=True),
    "idx with another magic": idx(struct.pack(">I", NUMBER) + TEXT.encode(), TWO),
    "idx with a large label": idx(PIXELS, BIG),
    "idx with more labels": idx(PIXELS, np.zeros(ROWS, dtype=np.uint8)),
    "idx with more records": idx(np.zeros((ROWS, 3, 3), dtype=np.uint8), TWO),
    "idx that is cut": idx(struct.pack(">HBBIII", 0, 8, 3, ROWS, 3, 3) + bytes(50), TWO),
    "idx that is longer": idx(struct.pack(">HBBIII", 0, 8, 3, 2, 3, 3) + bytes(SHORT), TWO),
    "idx that promises too much": idx(struct.pack(">HBBIII", 0, 8, 3, NUMBER, SHORT, 3), TWO),
    "idx with values for labels": idx(PIXELS, np.zeros((ROWS, 3), dtype=np.uint8)),
    "idx with labels for values": idx(np.full(ROWS, 1, dtype=np.uint8), TWO),
    "idx with NaN": idx(np.array([[float(NUMBER)], [np.nan]], dtype=np.float32), TWO),
    "idx in a cut gzip": idx(gzip.compress(struct.pack(">HBBIII", 0, 8, 3, 2, 3, 3) + TEXT.encode())[:-4], TWO),
    "cifar with other keys": cifar({TEXT: NUMBER, b"labels": [1]}),
    "cifar with no dictionary": cifar([TEXT, NUMBER]),
    "cifar with a text for labels": cifar({b"data": np.zeros((1, 3072), np.uint8), b"labels": [TEXT]}),
    "cifar with a large label": cifar({b"data": np.zeros((1, 3072), np.uint8), b"labels": [NUMBER]}),
    "cifar with other shapes": cifar({b"data": np.zeros((SHORT, 2), np.uint8), b"labels": [1]}),
    "svhn with a large label": svhn(X=np.zeros((32, 32, 3, 2), np.uint8), y=np.array([1, SHORT])),
    "svhn with other shapes": svhn(X=np.zeros((32, 32, 3, 1), np.uint8), y=np.zeros(ROWS)),
    "svhn with other names": svhn(**{TEXT: np.zeros(NUMBER % 7)}),
    "folder with a broken image": folder(("a/1.png", (4, 4)), (f"a/{TEXT}.png", TEXT.encode())),
    "folder with another size": folder(("a/1.png", (4, 4)), (f"b/{TEXT}.png", (5, 4))),
    "folder with a stray file": folder(("a/1.png", (4, 4)), (f"{TEXT}.txt", b"x")),
    "folder with an empty file": folder(("a/1.png", (4, 4)), (f"a/{TEXT}.png", b"")),
    "folder with a folder for an image": folder(("a/1.png", (4, 4)), (f"a/{TEXT}.png", None)),
    "folder with another test class": folder(("train/a/1.png", (4, 4)), (f"test/{TEXT}/1.png", (4, 4))),
}


def found(text: str) -> list[str]:
    return CANARIES.findall(text)


def test_the_search_finds_canaries() -> None:
    for planted in (f"a column {TEXT.lower()}", f"{NUMBER:,}", str(NUMBER), f"of {ROWS} rows", f"{ROWS:,}", f"{SHORT}"):
        assert found(planted), planted
    assert not found("row 3, column 'age': 71770 and 12371")


@pytest.mark.parametrize("make", BROKEN.values(), ids=BROKEN)
def test_no_error_of_the_library_holds_a_canary(make: Make, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "at").mkdir()
    spec = make(tmp_path / "at")
    schema = tmp_path / "schema.json" if spec.startswith(("csv", "parquet")) else None
    with pytest.raises(PrivetError) as caught:
        with_test_records(load(spec, schema=schema), spec)
    shown = "".join(traceback.format_exception(caught.value)).replace(str(tmp_path), "")
    assert not found(shown), shown


@pytest.mark.parametrize("make", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("verb", ["train", "synthesize"])
def test_no_output_of_the_command_holds_a_canary(make: Make, verb: str, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "at").mkdir()
    spec, out = make(tmp_path / "at"), tmp_path / "out"
    asked = [verb, "--data", spec, "--out", str(out)]
    if spec.startswith(("csv", "parquet")):
        asked += ["--schema", str(tmp_path / "schema.json")]
    page = CliRunner().invoke(app, asked, env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert page.exit_code == 2, page.output
    assert not found((page.stdout + page.stderr).replace(str(tmp_path), "")), page.output
    assert not any(found(file.read_bytes().decode("latin-1")) for file in out.rglob("*") if file.is_file())


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good file of private records: canaries in a column that is ignored, and as the number of records."""
    at = tmp_path_factory.mktemp("private")
    schema = SCHEMA | {"columns": SCHEMA["columns"] | {"money": {"low": 0, "high": 10**9}}, "ignore": ["name"]}
    (at / "schema.json").write_text(json.dumps(schema))
    draw = np.random.default_rng(0)
    lines = ["name,age,work,rich,money"]
    lines += [
        f"{TEXT}{n},{draw.uniform(0, 100):.9f},{'ab'[n % 2]},{('no', 'yes')[n % 3 == 0]},{NUMBER}" for n in range(ROWS)
    ]
    (at / "people.csv").write_text("\n".join(lines) + "\n")
    return at


@pytest.fixture(scope="module", params=["train", "synthesize"])
def run(request: pytest.FixtureRequest, table: Path, tmp_path_factory: pytest.TempPathFactory):
    out = tmp_path_factory.mktemp("runs") / "a"
    asked = [request.param, "--data", f"csv:{table / 'people.csv'}", "--schema", str(table / "schema.json")]
    asked += ["--public-size", "1200", "--out", str(out)]
    page = CliRunner().invoke(app, asked, env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert page.exit_code == 0, page.output
    return out, page


def published(out: Path) -> list[Path]:
    """What everybody may read."""
    return [file for file in out.rglob("*") if file.is_file() and file.stat().st_mode & 0o004]


def test_a_stated_size_hides_the_true_one(table, run):
    out, page = run
    whole = load(f"csv:{table / 'people.csv'}", schema=table / "schema.json")
    parts = with_test_records(whole, "people.csv")
    counts = [ROWS, len(parts.train), len(parts.test)]
    secret = re.compile("|".join(rf"(?<![\w.]){count:,}(?![\w.])|(?<![\w.]){count}(?![\w.])" for count in counts))
    shown = page.stdout + page.stderr + (out / "report.html").read_text()
    texts = {"shown": shown} | {str(file): file.read_bytes().decode("latin-1") for file in published(out)}
    names = {file.name for file in published(out)}
    assert {"CARD.md", "card.json", "ledger.jsonl"} <= names
    assert not {"record.json", "report.html", "steps.csv", "quality.md", "distances.png", "data.key"} & names
    for name, text in texts.items():
        if not name.endswith((".safetensors", "train.csv")):
            assert not secret.findall(text), name
        assert TEXT not in text and str(NUMBER) not in text, name


def test_a_stated_size_is_the_one_that_everything_follows_from(run):
    out, _ = run
    record = RunRecord.read(out)
    assert record.data.training_records == 960  # four fifths of the 1,200 that were stated
    assert record.open_ledger(out).spent(record.delta).conditions == ()


def test_no_exact_figure_of_private_records_is_published(run):
    out, page = run
    record = RunRecord.read(out)
    assert record.utility is not None and record.utility.noise > 0
    exact = [f"{record.test_accuracy:.6f}", f"{100 * record.test_accuracy:.2f} %", f"{record.attack.auc:.4f}"]
    for file in published(out):
        text = file.read_bytes().decode("latin-1")
        assert not [figure for figure in exact if figure in text], file
    internal = (out / "report.html").read_text()
    assert "This page is internal" in internal
    assert "NOT PROTECTED" not in internal + page.output


@pytest.mark.parametrize(
    "content", [f"{TEXT} {NUMBER}".encode(), b"", b"\x93NUMPY\x01\x00\x76\x00" + f"{{{TEXT}: ({ROWS},".encode()]
)
def test_damaged_features_are_not_quoted(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from privet.data import compute_features

    monkeypatch.setenv("PRIVET_DATA", str(tmp_path))
    digits = load("digits")
    whole = compute_features(digits, lambda rows: rows.flatten(1), "flat")
    expected = whole.train.tensors[0].clone()
    for file in tmp_path.rglob("*.npy"):
        file.write_bytes(content)
    with pytest.warns(PrivetWarning, match="damaged: they are computed again") as caught:
        again = compute_features(digits, lambda rows: rows.flatten(1), "flat")
    assert not any(found(str(warning.message).replace(str(tmp_path), "")) for warning in caught)
    assert again.train.tensors[0].equal(expected)


@pytest.mark.parametrize("name", ["synthetic.npz", "train.csv"])
def test_a_damaged_release_is_not_quoted(name: str, tmp_path: Path) -> None:
    from privet.runs.release import read_release

    (tmp_path / "release").mkdir()
    (tmp_path / "release" / name).write_text(f"{TEXT},{NUMBER}\n{TEXT},{NUMBER}\n")
    (tmp_path / "release" / "schema.json").write_text(json.dumps(SCHEMA))
    with pytest.raises(PrivetError) as caught:
        read_release(tmp_path)
    assert not found("".join(traceback.format_exception(caught.value)).replace(str(tmp_path), ""))
