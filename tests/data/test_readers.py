"""Readers of other packages and functions of the user's own give data sets, or one sentence."""

import sys

import pytest
import torch

from privet.data import CATALOGUE, DATA, CatalogEntry, Dataset, Schema, Split, load
from privet.data.schema import Categorical, Numeric
from privet.errors import InputError, PrivetWarning

X, Y = torch.arange(12.0).view(4, 3), torch.tensor([0, 1, 2, 1])
SCHEMA = Schema((Numeric("age", 0, 9), Categorical("rich", ("no", "yes"))), "rich")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Writes a module into the current folder and gives the name of its function `load`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(body: str) -> str:
        head = "import numpy as np\nimport torch\nfrom privet.data import Dataset, Split\n\n"
        (tmp_path / "own_data.py").write_text(head + body, encoding="utf-8")
        sys.modules.pop("own_data", None)
        return "py:own_data:load"

    yield write
    sys.modules.pop("own_data", None)


def made(classes=("a", "b", "c")) -> Dataset:
    return Dataset("made", classes, {"train": Split(X, Y)})


def test_a_format_of_a_plug_in_reads_a_path(tmp_path):
    def read_text_file(path):
        return Dataset(path.name, ("a", "b", "c"), {"train": Split(torch.full((4, 3), float(path.read_text())), Y)})

    DATA.register("text", read_text_file)
    (tmp_path / "five").write_text("5")
    assert load(f"text:{tmp_path}/five").train.inputs[0, 0] == 5
    with pytest.raises(InputError, match="none does not exist: check the path"):
        load(f"text:{tmp_path}/none")
    with pytest.raises(
        InputError, match=r"'text' does not name a data set: use one of mnist, .*, parquet:PATH, text:PATH, or py:"
    ):
        load("text")
    with pytest.raises(InputError, match="which takes no schema: only data frames do"):
        load(f"text:{tmp_path}/five", schema=SCHEMA)


def test_a_data_set_of_a_plug_in_has_a_name_and_is_not_public():
    DATA.register("made")(made)
    assert load("made").classes == ("a", "b", "c")
    assert "made" not in CATALOGUE, "only the data sets of the catalog are known to be public"
    with pytest.raises(InputError, match="There is no data set 'mad': did you mean made"):
        load("mad")


def test_a_reader_gets_the_options_that_it_has_parameters_for(tmp_path):
    seen = {}

    def read(path, schema, *, classes=("x", "y", "z"), header=True, cache=None):
        seen.update(schema=schema, classes=classes, header=header, cache=cache)
        return made(tuple(classes))

    DATA.register("full", read)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="needs a schema"):
        load(f"full:{tmp_path}/file")
    data = load(
        f"full:{tmp_path}/file", schema=SCHEMA, user="name", classes=["1", "2", "3"], header=False, cache="here"
    )
    assert data.classes == ("1", "2", "3")
    assert (seen["schema"].user, seen["header"], seen["cache"]) == ("name", False, "here")
    load(f"full:{tmp_path}/file", schema=SCHEMA, progress=lambda *_: None)
    assert seen["schema"] == SCHEMA and seen["header"] and seen["cache"] is None


def test_an_entry_of_a_plug_in_is_fetched_and_verified(tiny_entry, tmp_path):
    DATA.register("tiny", tiny_entry)
    assert load("tiny", cache=tmp_path / "cache").name == "tiny"
    DATA.register("other", tiny_entry)
    with pytest.raises(InputError, match="The data set 'tiny' is registered as 'other'"):
        load("other")


@pytest.fixture
def tiny_entry() -> CatalogEntry:
    return CatalogEntry(
        "tiny",
        "made",
        {"train": 4},
        (3,),
        ("a", "b", "c"),
        "",
        {},
        load=lambda: Dataset("tiny", ("a", "b", "c"), {"train": Split(X, Y)}),
    )


@pytest.mark.parametrize("value", [3, None, "text"])
def test_only_functions_and_entries_are_registered(value):
    with pytest.raises(InputError, match="does not read data"):
        DATA.register("wrong")(value)


def test_a_plug_in_cannot_replace_a_format():
    with pytest.raises(InputError, match="There is a data set 'csv' already, which is part of Privet"):
        DATA.register("csv", made)


ARRAYS = "x, y = np.arange(12.0).reshape(4, 3), np.array([0, 1, 2, 1])\n"


@pytest.mark.parametrize(
    "body",
    [
        "def load():\n    return x, y\n",
        "def load():\n    return [x, list(y)]\n",
        "def load(size=4):\n    return torch.from_numpy(x)[:size], torch.from_numpy(y).int()[:size]\n",
        "def load():\n    return Split(torch.from_numpy(x), torch.from_numpy(y))\n",
        "def load():\n    return (x, y), (x[:1], y[:1])\n",
        "def load():\n    return Split(torch.from_numpy(x), torch.from_numpy(y)), (x[:2], y[:2])\n",
    ],
)
def test_a_function_of_the_users_own_returns_pairs(own, body):
    name = own(ARRAYS + body)
    with pytest.warns(PrivetWarning, match="does not name its classes, so their number, 3, was taken from the labels"):
        data = load(name)
    assert torch.equal(data.train.inputs.float(), X)
    assert torch.equal(data.train.labels, Y)
    assert data.name == name and data.classes == ("0", "1", "2")
    assert ("test" in data.splits) == ("[:1]" in body or "[:2]" in body)
    assert load(name, classes=["a", "b", "c"]).classes == ("a", "b", "c")


def test_a_function_of_the_users_own_returns_a_data_set(own):
    name = own(
        "def load():\n    return Dataset('mine', ('no', 'yes'), {'train': Split(torch.zeros(2, 1), torch.tensor([0, 1]))})\n"
    )
    assert load(name).name == "mine"
    with pytest.raises(InputError, match="which names its classes itself"):
        load(name, classes=["a", "b"])
    with pytest.raises(InputError, match="py:own_data:load gave a Dataset, which takes no schema: only data frames do"):
        load(name, schema=SCHEMA)
    with pytest.raises(InputError, match="has no column of users"):
        load(name, user="name")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("load = 3\n", "does not read data"),
        ("def load(path):\n    pass\n", "has a parameter without a default: name a function that needs no arguments"),
        (
            "def load():\n    raise ValueError('Mary Smith')\n",
            r"raised ValueError \(own_data.py, line 7\): correct the function",
        ),
        (
            "def load():\n    pass\n",
            r"returned None: return a Dataset, a data frame, a pair \(inputs, labels\), or two of these",
        ),
        ("def load():\n    return x\n", "returned a ndarray: return a Dataset"),
        ("def load():\n    return x, y, x, y\n", "returned a tuple of 4: return a Dataset"),
        ("def load():\n    return (x, y), (x, y, y)\n", "split test: this is a tuple of 3"),
        ("def load():\n    return x, y / 2\n", "split train: the labels are not integers: number the classes from 0"),
        ("def load():\n    return x, y[:2]\n", "split train: inputs and labels do not match"),
        ("def load():\n    return x, y - 1\n", "labels must not be negative"),
        ("def load():\n    return y, y\n", "inputs and labels do not match"),
        (
            "def load():\n    return x, ['no', 'yes', 'no', 'no']\n",
            "labels: this is a list of 4, which is not an array of numbers",
        ),
        ("def load():\n    x[2, 1] = np.nan\n    return x, y\n", "split train, record 3: a value is NaN or infinite"),
    ],
)
def test_what_is_wrong_with_a_function_is_one_sentence_without_a_record(own, body, message):
    name = own(ARRAYS + body)
    with pytest.raises(InputError, match=message) as caught:
        load(name, classes=["a", "b", "c"] if "load()" in body else None)
    assert str(caught.value).startswith((name, "3 "))
    assert "Mary" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("spec", ["", "csv:", ":x", "mnist:x", "py:x"])
def test_a_name_that_is_none(spec):
    with pytest.raises(InputError, match=r"does not name|There is no data set"):
        load(spec)
