"""Every bad input gets one sentence: the file, the row where there is one, what is wrong, the way out.

Each row of the table is a name, how to make the input in the folder ``at`` and what to call, and the message, word for
word, with ``{at}`` for the folder.
"""
# ruff: noqa: E501  (a row of the table is a line)

import gzip
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from privet.data import Categorical, Numeric, Schema, get, load
from privet.data.idx import write_idx
from privet.errors import InputError

SCHEMA = Schema((Numeric("age", 0, 100), Categorical("work", ("a", "b")), Categorical("rich", ("no", "yes"))), "rich")

Call = Callable[[], object]
Make = Callable[[Path], Call]


def idx(images: bytes | None = None, labels: Any = (0, 1), name: str = "train-images-idx3-ubyte") -> Make:
    """A folder with an images and a labels file, of which one is bad."""

    def make(at: Path) -> Call:
        write_idx(at / "train-labels-idx1-ubyte", np.array(labels, dtype=np.uint8))
        write_idx(at / name, np.zeros((2, 3, 3), dtype=np.uint8))
        if images is not None:
            (at / name).write_bytes(images)
        return lambda: load(f"idx:{at}")

    return make


def header(code: int, *shape: int) -> bytes:
    return struct.pack(f">HBB{len(shape)}I", 0, code, len(shape), *shape)


def table(content: str | bytes, schema: Schema | None = SCHEMA) -> Make:
    """A CSV file of this content."""

    def make(at: Path) -> Call:
        (at / "t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
        return lambda: load(f"csv:{at}/t.csv", schema=schema)

    return make


def rows(*lines: str) -> Make:
    """A CSV file with the right first row."""
    return table("\n".join(["age,work,rich", *lines]) + "\n")


def files(spec: str, **contents: bytes | tuple[int, int]) -> Make:
    """Files of these contents (a pair of numbers makes a picture); ``a__b`` is file ``b`` in folder ``a``."""

    def make(at: Path) -> Call:
        for name, content in contents.items():
            path = at / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, tuple):
                Image.new("L", content).save(path, format="png")
            else:
                path.write_bytes(content)
        return lambda: load(spec.format(at=at), schema=SCHEMA if spec.startswith(("csv", "parquet")) else None)

    return make


def folders(*names: str) -> Make:
    def make(at: Path) -> Call:
        for name in names:
            (at / name).mkdir()
        return lambda: load(f"folder:{at}")

    return make


def mat(**variables: Any) -> Make:
    def make(at: Path) -> Call:
        savemat(at / "train_32x32.mat", variables)
        return lambda: load(f"svhn:{at}")

    return make


def names(name: str, **options: Any) -> Make:
    return lambda at: lambda: load(name.format(at=at), **options)


def mnist_from(given: str, **contents: bytes) -> Make:
    """``privet data get mnist --from``"""

    def make(at: Path) -> Call:
        for name, content in contents.items():
            (at / name.replace("_", "-")).write_bytes(content)
        return lambda: get("mnist", from_=at / given)

    return make


class Attack:
    def __reduce__(self) -> Any:
        return os.system, ("echo attacked",)


PIXELS = np.zeros((32, 32, 3, 2), dtype=np.uint8)
BATCH = {b"data": np.zeros((2, 3072), dtype=np.uint8), b"labels": [0, 10]}
MNIST_SHA = "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
AGAIN = "copy or download it again."

TABLE: list[tuple[str, Make, str]] = [
    # names
    ("unknown name", names("imagenet"), "There is no data set 'imagenet': the known ones are mnist, fashion-mnist, cifar10, digits, sms-spam, sotu."),
    ("name with a slip", names("minst"), "There is no data set 'minst': did you mean mnist? The known ones are mnist, fashion-mnist, cifar10, digits, sms-spam, sotu."),
    ("unknown format", names("json:{at}/x"), "'json:{at}/x' does not name a data set: use one of mnist, fashion-mnist, cifar10, digits, sms-spam, sotu, or idx:PATH, cifar:PATH, svhn:PATH, folder:PATH, csv:PATH, parquet:PATH, or py:package.module:function."),
    ("bare path", names("{at}"), "{at} is a path: name its format, as in idx:{at}, cifar:{at}, svhn:{at}, folder:{at}, csv:{at}, parquet:{at}."),
    ("missing file", names("idx:{at}/none"), "{at}/none does not exist: check the path."),
    ("schema for a format without one", names("mnist", schema=SCHEMA), "mnist takes no schema: only csv:PATH and parquet:PATH do."),
    ("classes for a format that has them", names("digits", classes=["a"]), "digits takes no classes: only idx:PATH and py:package.module:function do."),
    # IDX
    ("wrong magic", idx(b"GIF89a..."), "{at}/train-images-idx3-ubyte is not an IDX file (its first bytes differ): give an IDX file, or name its format, as in csv:PATH or folder:PATH."),
    ("truncated header", idx(header(8, 2, 3, 3)[:9]), f"{{at}}/train-images-idx3-ubyte is truncated within its IDX header: {AGAIN}"),
    ("truncated file", idx(header(8, 2, 3, 3) + bytes(10)), f"{{at}}/train-images-idx3-ubyte is truncated (it has fewer values than its header says): {AGAIN}"),
    ("trailing bytes", idx(header(8, 2, 3, 3) + bytes(19)), f"{{at}}/train-images-idx3-ubyte has more bytes than its header says: it is damaged or not IDX; {AGAIN}"),
    ("truncated gzip", idx(gzip.compress(header(8, 2, 3, 3) + bytes(18))[:-9]), f"{{at}}/train-images-idx3-ubyte is a damaged or truncated gzip file: {AGAIN}"),
    ("empty file", idx(b""), f"{{at}}/train-images-idx3-ubyte is empty: {AGAIN}"),
    ("no records", idx(header(8, 0, 3, 3)), "{at}/train-images-idx3-ubyte has no records according to its IDX header: give a file with records."),
    ("NaN in an IDX file", idx(header(13, 2, 1) + struct.pack(">2f", 1, float("nan"))), "{at}/train-images-idx3-ubyte, record 2: a value is NaN or infinite: fix or remove the record."),
    ("label out of range", idx(labels=(3, 12)), "{at}/train-labels-idx1-ubyte, record 2: the label is out of range for 10 classes (0 to 9): fix the record, or declare more classes."),
    ("counts that differ", idx(labels=(0, 1, 2)), "{at}/train-images-idx3-ubyte does not have as many records as {at}/train-labels-idx1-ubyte has labels: give two files that belong together."),
    ("labels where images belong", idx(header(8, 2) + bytes(2)), "{at}/train-images-idx3-ubyte does not contain records (at least two dimensions): name the file of images."),
    ("images without labels", files("idx:{at}/my-images", **{"my-images": b"x"}), "{at}/my-images has no labels beside it: put my-labels-idx1-ubyte into the same folder."),
    ("folder without IDX files", files("idx:{at}", readme=b"x"), "{at} has no train-images or t10k-images file: name the folder with the IDX files."),
    # CIFAR
    ("pickled code", files("cifar:{at}/batch", batch=pickle.dumps({b"data": Attack()})), "{at}/batch asks to run posix.system, which no CIFAR batch needs: it may be an attack; get the file from its authors."),
    ("truncated batch", files("cifar:{at}/batch", batch=pickle.dumps(BATCH)[:900]), f"{{at}}/batch is not a CIFAR batch, or it is truncated: {AGAIN}"),
    ("label out of range in a batch", files("cifar:{at}/batch", batch=pickle.dumps(BATCH)), "{at}/batch, record 2: the label is out of range for 10 classes (0 to 9): fix the record, or declare more classes."),
    ("folder without batches", files("cifar:{at}", readme=b"x"), "{at} has no data_batch_1 or test_batch: name the folder with the CIFAR Python batches."),
    # SVHN
    (".mat without y", mat(X=PIXELS), "{at}/train_32x32.mat does not have both X and y: give SVHN's cropped digits, such as train_32x32.mat."),
    (".mat of another shape", mat(X=PIXELS[:5], y=[[1], [2]]), "{at}/train_32x32.mat does not have X as uint8 of shape (32, 32, 3, N) for N labels: give SVHN's cropped digits."),
    (".mat with a wrong label", mat(X=PIXELS, y=[[1], [11]]), "{at}/train_32x32.mat, record 2: the label is out of range for SVHN (1 to 10): fix the record."),
    ("no .mat file", files("svhn:{at}/a.mat", **{"a.mat": b"not MATLAB" * 20}), f"{{at}}/a.mat is not a MATLAB file, or it is truncated: {AGAIN}"),
    # folders of images
    ("empty folder", folders(), "{at} has no class folders: put the images of each class into a folder of its name."),
    ("class folder without images", folders("cat"), "{at}/cat is a class folder without images: add images, or remove the folder."),
    ("images of different sizes", files("folder:{at}", cat__a=(4, 4), dog__b=(5, 4)), "image 1 of {at}/dog (in the order of names) does not have the size of the first image: resize all images to one size."),
    ("no image", files("folder:{at}", cat__a=(4, 4), cat__notes=b"text"), "image 2 of {at}/cat (in the order of names) is not an image that can be read: fix it, or move it away."),
    ("file beside the class folders", files("folder:{at}", cat__a=(4, 4), notes=b"text"), "{at}: there is a file beside the class folders (number 2 in the order of names): move it into one of them, or away."),
    ("file where a folder is expected", files("folder:{at}/notes", notes=b"text"), "{at}/notes is a file where a folder is expected: name the folder that holds it."),
    # tables
    ("no schema", table("a\n1\n", schema=None), "{at}/t.csv needs a schema: its bounds and categories must be public, so they are not taken from the rows."),
    ("ragged CSV", rows("1,a,no", "2,b"), "{at}/t.csv, row 3: 2 cells, but the first row has 3: fix the row."),
    ("blank row", rows("1,a,no", "", "2,b,no"), "{at}/t.csv, row 3: the row is blank: remove it."),
    ("open quote", rows('1,a,"no'), "{at}/t.csv, row 2: not valid CSV (unexpected end of data): fix the row."),
    ("NaN cell", rows("1,a,no", "nan,b,no"), "{at}/t.csv, row 3, column 'age': the cell is NaN: fill it, or remove the row."),
    ("infinite cell", rows("1e999,a,no"), "{at}/t.csv, row 2, column 'age': the cell is infinite: fix it, or remove the row."),
    ("empty cell", rows(",a,no", "1,a,no"), "{at}/t.csv, row 2, column 'age': the cell is empty: fill it, or remove the row."),
    ("empty column", rows(",a,no", ",b,no"), "{at}/t.csv: the column 'age' is empty throughout: remove it, or add it to ignore."),
    ("non-numeric cell", rows("old,a,no"), "{at}/t.csv, row 2, column 'age': the cell is not a number: fix it, or give the column categories."),
    ("value outside bounds", rows("1,a,no", "101,a,no"), "{at}/t.csv, row 3, column 'age': the value is outside the bounds 0 to 100: fix it, or set clip: true in the schema."),
    ("unknown category", rows("1,c,no"), "{at}/t.csv, row 2, column 'work': the cell has no category of the schema: fix it, or add the category there."),
    ("unknown label", rows("1,a,no", "1,a,maybe"), "{at}/t.csv, row 3, column 'rich': the cell has no category of the schema: fix it, or add the category there."),
    ("non-UTF-8", table(b"age,work,rich\n1,a,no\n2,\xe9,no\n"), "{at}/t.csv, line 3: not UTF-8 text: save the file as UTF-8 and try again."),
    ("missing label column", table("age,work\n1,a\n"), "{at}/t.csv lacks the column 'rich' (the label) of the schema: add it, or fix the schema."),
    ("missing column", table("age,rich\n1,no\n"), "{at}/t.csv lacks the column 'work' of the schema: add it, or fix the schema."),
    ("duplicate column", table("age,age,rich\n1,1,no\n"), "{at}/t.csv lacks the column 'work' of the schema: add it, or fix the schema; it has the columns 1 and 2, of which several have the same name: rename or remove some."),
    ("undescribed column", table("id,age,work,rich\n1,1,a,no\n"), "{at}/t.csv has the column 1 of 4, which the schema does not describe: describe it there, or add it to ignore."),
    ("CSV without records", rows(), "{at}/t.csv has no records after its first row: give a file with records."),
    ("folder where a table is expected", files("csv:{at}/d", **{"d__train.csv__x": b"x"}), "{at}/d/train.csv is a folder where a file is expected: name the file inside it."),
    ("no Parquet file", files("parquet:{at}/t", t=b"PAR1 or not"), f"{{at}}/t is not a Parquet file, or it is truncated: {AGAIN}"),
    # --from
    ("--from nothing", mnist_from("none"), "{at}/none does not exist: check the path."),
    ("--from an empty folder", mnist_from("."), "{at} does not contain train-images-idx3-ubyte or train-images-idx3-ubyte.gz: give the folder or archive with the true mnist files."),
    ("--from a wrong file", mnist_from(".", train_images_idx3_ubyte=header(8, 1, 1, 1) + b"x"), f"{{at}}/train-images-idx3-ubyte does not have the SHA-256 of train-images-idx3-ubyte ({MNIST_SHA}): give the folder or archive with the true mnist files."),
    ("--from no archive", mnist_from("a.bin", **{"a.bin": b"x"}), "{at}/a.bin is neither a folder nor an archive: give the one that contains the mnist files."),
    ("--from a truncated archive", mnist_from("a.tgz", **{"a.tgz": gzip.compress(bytes(9000))[:25]}), "{at}/a.tgz is a damaged archive (Compressed file ended before the end-of-stream marker was reached): copy or download it again."),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_one_sentence_and_nothing_written(
    make: Make, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tree: Callable[[Path], object]
) -> None:
    at = tmp_path / "given"
    at.mkdir()
    call = make(at)
    before = tree(tmp_path)
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value) == message.replace("{at}", str(at))
    assert caught.value.exit_code == 2
    assert tree(tmp_path) == before, "something was written"


def test_the_table_is_long_enough() -> None:
    assert len({row[0] for row in TABLE}) == len(TABLE) >= 20


def test_permission_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the table, because root may read everything: the refusal is played."""

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "t.csv").write_text("age\n")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError) as caught:
        load(f"csv:{tmp_path}/t.csv", schema=SCHEMA)
    way_out = "ask its owner, or copy it to a folder of yours."
    assert str(caught.value) == f"{tmp_path}/t.csv cannot be read (permission denied): {way_out}"
