"""No class of bad input is a traceback, or runs on: each is one sentence with the way out.

Files of every format are damaged at random, from fixed seeds, and pipes, devices, links and odd names stand where files should.
"""

import gzip
import json
import os
import pickle
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from privet.data import DATA, get, load, read_schema
from privet.data.idx import write_idx
from privet.errors import InputError, PrivetError
from tests.limits import seconds

SCHEMA = {
    "label": "rich",
    "columns": {
        "age": {"low": 0, "high": 100},
        "work": {"categories": ["a", "b"]},
        "rich": {"categories": ["no", "yes"]},
    },
}
YAML = "label: rich\ncolumns:\n  age: {low: 0, high: 100}\n  work: {categories: [a, b]}\n  rich: {categories: ['no', 'yes']}\n"
FORMATS = ("idx", "cifar", "svhn", "folder", "csv", "parquet")


def written(at: Path, kind: str) -> tuple[str, list[Path]]:
    """A good data set of one format: how it is named, and its files."""
    draw = np.random.default_rng(0)
    pixels, labels = draw.integers(0, 256, (6, 32, 32), dtype=np.uint8), np.arange(6, dtype=np.uint8)
    at.mkdir(parents=True)
    if kind == "idx":
        write_idx(at / "train-images-idx3-ubyte", pixels)
        write_idx(at / "train-labels-idx1-ubyte", labels)
    elif kind == "idx.gz":
        write_idx(at / "plain", pixels)
        (at / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress((at / "plain").read_bytes()))
        (at / "plain").unlink()
        write_idx(at / "train-labels-idx1-ubyte", labels)
    elif kind == "cifar":
        batch = {b"data": draw.integers(0, 256, (6, 3072), dtype=np.uint8), b"labels": labels.tolist()}
        (at / "batch").write_bytes(pickle.dumps(batch, protocol=2))
        return f"cifar:{at}/batch", [at / "batch"]
    elif kind == "svhn":
        colors = np.ascontiguousarray(np.broadcast_to(pixels.transpose(1, 2, 0)[:, :, None], (32, 32, 3, 6)))
        savemat(at / "train_32x32.mat", {"X": colors, "y": labels + 1}, do_compression=True)
    elif kind == "folder":
        for name in ("a/1.png", "b/1.png"):
            (at / name).parent.mkdir()
            Image.fromarray(pixels[0]).save(at / name)
    elif kind == "csv":
        (at / "train.csv").write_text("age,work,rich\n" + "".join(f"{n},{'ab'[n % 2]},no\n" for n in range(30)))
    elif kind == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({"age": range(30), "work": ["a"] * 30, "rich": ["no"] * 30}), at / "train.parquet")
    return f"{kind.partition('.')[0]}:{at}", sorted(path for path in at.rglob("*") if path.is_file())


def damaged(raw: bytes, draw: random.Random) -> bytes:
    """The content of a file after something went wrong, or after somebody tried."""
    way, place = draw.randrange(8), draw.randrange(max(len(raw), 1))
    size = draw.choice((1, 2, 4, 16))
    if way == 0:
        return raw[:place]
    if way == 1:
        return raw[place:]
    if way == 2:
        return raw + draw.randbytes(draw.randrange(1, 200))
    if way == 3:
        return draw.randbytes(draw.randrange(1, 2000))
    if way == 4:
        return raw[:place] + draw.randbytes(size) + raw[place + size :]
    if way == 5:
        return raw[:place] + draw.choice((b"\xff", b"\0")) * size + raw[place + size :]
    if way == 6:
        return raw[:place] + raw[place // 2 : place] + raw[place:]
    return bytes(byte ^ (1 << draw.randrange(8)) if draw.random() < 0.02 else byte for byte in raw)


def attempt(call: Callable[[], object], limit: float = 20.0) -> str:
    """Empty where it works; otherwise the sentence. Everything else that is raised fails the test."""
    with seconds(limit):
        try:
            call()
        except PrivetError as error:
            return str(error)
    return ""


def check(said: str) -> None:
    """A sentence for a person: one line, a way out, and not the net under the reader."""
    assert not said or (said.endswith(".") and ":" in said and "\n" not in said), said
    assert "report it" not in said, said
    assert len(said) < 1200, said


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    return tmp_path / "schema.json"


@pytest.mark.parametrize("kind", ["idx", "idx.gz", "cifar", "svhn", "folder", "csv", "parquet"])
def test_damaged_files(kind: str, tmp_path: Path, schema: Path) -> None:
    spec, files = written(tmp_path / "good", kind)
    options = {"schema": schema} if kind in ("csv", "parquet") else {}
    load(spec, **options)  # type: ignore[arg-type]
    draw = random.Random(kind)
    refused = 0
    for _ in range(60):
        file = draw.choice(files)
        whole = file.read_bytes()
        file.write_bytes(damaged(whole, draw))
        said = attempt(lambda: load(spec, **options))  # type: ignore[arg-type]
        check(said)
        refused += bool(said)
        file.write_bytes(whole)
    assert refused > 20
    load(spec, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_damaged_schemas(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"schema.{suffix}"
    whole = (json.dumps(SCHEMA) if suffix == "json" else YAML).encode()
    draw = random.Random(suffix)
    refused = 0
    for _ in range(150):
        path.write_bytes(damaged(whole, draw))
        said = attempt(lambda: read_schema(path))
        check(said)
        refused += bool(said)
    assert refused > 80


def odd(at: Path) -> Iterator[Path]:
    """What may stand where a file should."""
    at.mkdir()
    os.mkfifo(at / "pipe")
    yield at / "pipe"
    for name, target in (("loop", at / "loop"), ("dangling", at / "nowhere"), ("device", Path("/dev/zero"))):
        (at / name).symlink_to(target)
        yield at / name
    for text in ("/dev/null", "/dev/random", "/proc/self/mem", "/proc/self/pagemap"):
        if Path(text).exists():
            yield Path(text)
    (at / "empty").write_bytes(b"")
    yield at / "empty"
    (at / "folder").mkdir()
    yield at / "folder"
    (at / "a" / "b" / "c").mkdir(parents=True)
    yield at / "a"
    yield at / "missing"
    yield at / ("n" * 300)
    yield at / "/".join(["d" * 200] * 30)
    yield at / "empty" / "inside"
    yield Path("a\0b")
    yield Path("~nobody-of-this-name/a")
    (at / "[x]*?-images").write_bytes(b"x")
    yield at / "[x]*?-images"
    (at / "**images").write_bytes(b"x")
    yield at / "**images"
    (at / "\x1b[31mred\nimages").write_bytes(b"x")
    yield at / "\x1b[31mred\nimages"
    (at / os.fsdecode(b"\xff\xfeimages")).write_bytes(b"x")
    yield at / os.fsdecode(b"\xff\xfeimages")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes as files are a matter of Unix")
@pytest.mark.parametrize("kind", FORMATS)
def test_odd_paths(kind: str, tmp_path: Path, schema: Path) -> None:
    assert set(FORMATS) <= set(DATA.names())
    options = {"schema": schema} if kind in ("csv", "parquet") else {}
    for path in odd(tmp_path / "odd"):
        said = attempt(lambda path=path: load(f"{kind}:{path}", **options))  # type: ignore[misc]
        assert said, path
        assert "report it" not in said, said


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes as files are a matter of Unix")
@pytest.mark.parametrize("kind", FORMATS)
def test_odd_files_inside_a_data_set(kind: str, tmp_path: Path, schema: Path) -> None:
    """The folder is good, and one of its files is a pipe, a loop, a device or a folder."""
    options = {"schema": schema} if kind in ("csv", "parquet") else {}
    for number, replacement in enumerate(("pipe", "loop", "device", "folder", "dangling", "denied")):
        spec, files = written(tmp_path / str(number), kind)
        for file in files:
            kept = file.read_bytes()
            file.unlink()
            if replacement == "pipe":
                os.mkfifo(file)
            elif replacement == "folder":
                file.mkdir()
            elif replacement == "denied" and os.geteuid() != 0:
                file.touch(0o000)
            else:
                file.symlink_to({"loop": file, "device": Path("/dev/zero")}.get(replacement, file.parent / "nowhere"))
            said = attempt(lambda spec=spec: load(spec, **options))  # type: ignore[misc]
            assert said, (replacement, file)
            assert "report it" not in said, said
            shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink()
            file.write_bytes(kept)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes as files are a matter of Unix")
def test_odd_schemas_and_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVET_DATA", str(tmp_path / "cache"))
    for path in odd(tmp_path / "odd"):
        assert attempt(lambda path=path: read_schema(path)), path  # type: ignore[misc]
        assert attempt(lambda path=path: get("mnist", from_=path)), path  # type: ignore[misc]
    assert not (tmp_path / "cache").exists()


def test_a_csv_in_other_encodings(tmp_path: Path, schema: Path) -> None:
    text = "age,work,rich\n1,a,no\nü,b,no\n"
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "cp037", "shift_jis"):
        (tmp_path / "t.csv").write_bytes(text.encode(encoding, "replace"))
        said = attempt(lambda: load(f"csv:{tmp_path}/t.csv", schema=schema))
        assert "save the file as UTF-8" in said or "has no header" in said or "not a number" in said, (encoding, said)
        if encoding.startswith("utf"):
            assert "save the file as UTF-8" in said, (encoding, said)


@pytest.mark.parametrize(
    "cell", ["1" * 5000, "1e999999999", "-" + "9" * 400, "0x10", "1_0", "١٢٣" * 50, "1" + "0" * 308]
)
def test_huge_numbers(tmp_path: Path, schema: Path, cell: str) -> None:
    (tmp_path / "t.csv").write_text(f"age,work,rich\n{cell},a,no\n")
    said = attempt(lambda: load(f"csv:{tmp_path}/t.csv", schema=schema))
    assert "row 2, column 'age'" in said


@pytest.mark.parametrize(("low", "high"), [(0, 10**400), (-1e308, 1e308), (0, "1e5"), (1e999, 2), (0, -0.0), (True, 2)])
def test_huge_bounds(tmp_path: Path, low: object, high: object) -> None:
    changed = {**SCHEMA, "columns": {**SCHEMA["columns"], "age": {"low": low, "high": high}}}  # type: ignore[dict-item]
    (tmp_path / "s.json").write_text(json.dumps(changed))
    check(attempt(lambda: read_schema(tmp_path / "s.json")))
    with pytest.raises(InputError):
        read_schema(tmp_path / "s.json")


def test_names_of_any_length(tmp_path: Path) -> None:
    """A column and a category of 300 characters are columns and categories."""
    name, category = "n" * 300, "c" * 300
    columns = {name: {"categories": [category, "x"]}, "rich": {"categories": ["no", "yes"]}}
    (tmp_path / "s.json").write_text(json.dumps({"label": "rich", "columns": columns}))
    (tmp_path / "t.csv").write_text(f"{name},rich\n{category},no\nx,yes\n")
    assert len(load(f"csv:{tmp_path}/t.csv", schema=tmp_path / "s.json")) == 2


def test_pickles_that_ask_for_memory(tmp_path: Path) -> None:
    """A place in the memo, a size or a repetition that would take gigabytes."""
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I1\nt"
    array += b"cnumpy\ndtype\n(S'u1'\nI0\nI1\ntRI00\n"
    for raw in (
        b"\x80\x02}r" + struct.pack("<I", 2**31 - 1) + b".",
        b"(dp2147483640\n.",
        b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b"x.",
        b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b".",
        array + b"I2000000000\ntb.",
        b"(" * 100_000 + b"t" * 100_000 + b".",
        b"]" + b"]a" * 50_000 + b".",
    ):
        (tmp_path / "batch").write_bytes(raw)
        said = attempt(lambda: load(f"cifar:{tmp_path}/batch"))
        check(said)
        assert said


def test_images_that_ask_for_memory_or_run_programs(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    header = struct.pack(">II", 100_000, 100_000) + b"\x08\0\0\0\0"
    chunk = struct.pack(">I", 13) + b"IHDR" + header + b"\0\0\0\0"
    (tmp_path / "a" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk)
    check(said := attempt(lambda: load(f"folder:{tmp_path}")))
    assert "is not an image that can be read" in said
    (tmp_path / "a" / "1.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n%%EOF\n"
    )
    check(said := attempt(lambda: load(f"folder:{tmp_path}")))
    assert "is not an image that can be read" in said


def test_an_unexpected_error_never_quotes_a_record(
    tmp_path: Path, schema: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The net under the readers of Privet: what they do not foresee is a sentence, too, without the error's own text."""
    (tmp_path / "t.csv").write_text("age,work,rich\n1,a,no\n")

    def fail(*_: object) -> None:
        raise ZeroDivisionError("secret record")

    monkeypatch.setattr("privet.data.tables._check_columns", fail)
    said = attempt(lambda: load(f"csv:{tmp_path}/t.csv", schema=schema))
    assert "raised ZeroDivisionError (test_hostile_inputs.py" in said
    assert "secret" not in said
