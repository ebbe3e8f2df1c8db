"""What is known to fail fails before anything is spent; what was paid for is not lost by what fails afterward."""

from __future__ import annotations

import json
import shutil
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from privet.cli import app
from privet.errors import InputError
from privet.methods import DataSpec
from privet.privacy import Ledger
from privet.training.folder import RunFolder

VERBS = {
    "train": "train --set epochs=1",
    "synthesize": "synthesize --size 20",
    "tune": "tune --set epochs=1,2",
    "compare": "compare --methods dpsgd",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = "\n".join(f"{20 + number % 60},{'yes' if number % 3 else 'no'}" for number in range(300))
    Path("two.csv").write_text(f"age,owns\n{rows}\n")
    Path("one.csv").write_text("age,owns\n" + rows.replace("yes", "no") + "\n")
    columns = {"age": {"low": 20, "high": 80}, "owns": {"categories": ["no", "yes"]}}
    Path("two.json").write_text(json.dumps({"label": "owns", "columns": columns}))
    Path("one.json").write_text(json.dumps({"label": "owns", "columns": columns | {"owns": {"categories": ["no"]}}}))
    Path("part.json").write_text(json.dumps({"label": "owns", "columns": {"owns": {"categories": ["no", "yes"]}}}))
    return tmp_path


def call(line: str) -> Result:
    return CliRunner().invoke(app, line.split())


def refused(line: str, said: str) -> None:
    """Refused in a sentence, and nothing was used."""
    done = call(line)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (1, 2) and said in " ".join(done.output.split()), done.output
    for ledger in Path("out").rglob("ledger.jsonl"):
        assert not Ledger.open(ledger, read_only=True).used, "something was spent"
    assert line.startswith("compare") or not Path("out").exists()


LONG = [pytest.param(verb, marks=[pytest.mark.slow] * (verb in ("tune", "compare"))) for verb in VERBS]


@pytest.mark.parametrize("verb", LONG)
def test_one_class(home: Path, verb: str) -> None:
    refused(f"{VERBS[verb]} --data csv:one.csv --schema one.json --out out", "one class only")


@pytest.mark.parametrize("verb", VERBS)
def test_a_schema_that_does_not_fit(home: Path, verb: str) -> None:
    refused(f"{VERBS[verb]} --data csv:two.csv --schema part.json --out out", "column")
    refused(f"{VERBS[verb]} --data csv:two.csv --schema nothing.json --out out", "nothing.json")


TWO = "--data csv:two.csv --schema two.json --out out"
CLUSTERS = (
    f"compare --methods dpsgd {TWO}",
    "reproduce digits-linear --seeds 1 --out out",
    "attack run --attack lira",
    "audit --method dpsgd --draws 40",
)
MISSING = [
    *(
        (f"{line} --data parquet:two.parquet --schema two.json --out out", "tables", "pyarrow")
        for line in VERBS.values()
    ),
    *(
        (f"{VERBS[verb]} {TWO} --track {name}:tracked", "track", "torch.utils.tensorboard" if "board" in name else name)
        for verb in ("train", "synthesize")
        for name in ("mlflow", "wandb", "tensorboard")
    ),
    *((f"{line} --backend dask --address local", "dask", "distributed") for line in CLUSTERS),
    *((f"{line} --backend ray --address local", "ray", "ray") for line in CLUSTERS),
]
"""Each verb with each extra that its options can ask for, and the package that is not there."""


@pytest.mark.parametrize(("line", "extra", "package"), MISSING)
def test_packages_that_are_not_installed(
    home: Path, monkeypatch: pytest.MonkeyPatch, line: str, extra: str, package: str
) -> None:
    Path("two.parquet").write_bytes(b"PAR1")
    shutil.copytree(Path(__file__).parents[1] / "made_by_0_1_0" / "train", "run")
    for name in (package, "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    before = sorted((path, path.read_bytes()) for path in Path().rglob("*") if path.is_file())
    done = call(line)
    said = " ".join(done.output.split())
    assert done.exit_code == 2 and "pip install" in said and f"privet[{extra}]" in said, done.output
    assert sorted((path, path.read_bytes()) for path in Path().rglob("*") if path.is_file()) == before


@pytest.mark.parametrize("verb", LONG[:3])
def test_a_disk_without_room(home: Path, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 30, 1 << 30, 1 << 10))
    refused(f"{VERBS[verb]} --data csv:two.csv --schema two.json --out out", "make room")


def test_sizes_and_students_and_attacks_that_cannot_be(home: Path) -> None:
    data = "--data csv:two.csv --schema two.json --out out"
    refused(f"synthesize {data} --size 999999999999", "at most 100,000,000")
    refused(f"synthesize {data} --student Nobody", "There is no student")
    refused(f"synthesize {data} --student cnn", "is for images")
    refused(f"synthesize {data} --student LogisticRegression --attack lira", "does not fit")
    refused(f"train {data} --attack distance", "does not fit")


def test_records_of_one_class_are_no_reason_to_lose_what_was_paid_for(home: Path) -> None:
    """How many classes the records have is private, so it cannot be asked before. A student of one class is a constant."""
    done = call(
        "synthesize --data csv:one.csv --schema two.json --size 20 --epsilon 50 --student LogisticRegression --out out"
    )
    assert done.exit_code == 0, done.output
    assert Path("out/release/README.md").exists()


@pytest.mark.slow
def test_a_disk_that_fills_up_drops_no_trial_of_a_tuning(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a trial less than was drawn, the theorem does not hold: the tuning stops, and goes on when there is room."""
    line, checks = f"{VERBS['tune']} --trials once --data csv:two.csv --schema two.json --out out", [0]
    usage, real = namedtuple("usage", "total used free"), shutil.disk_usage

    def filled(place: Path) -> object:
        checks[0] += 1
        return real(place) if checks[0] <= 3 else usage(1 << 30, 1 << 30, 1 << 10)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", filled)
        stopped = call(line)
    assert stopped.exit_code == 1 and "No space left on device" in stopped.stderr, stopped.output
    done = call(f"{line} --resume")
    assert done.exit_code == 0, done.output


def test_a_student_that_fails_loses_nothing(home: Path) -> None:
    line = "synthesize --data csv:two.csv --schema two.json --size 3 --seed 3 --out out"
    failed = call(f"{line} --student KNeighborsClassifier")
    assert failed.exit_code == 1 and isinstance(failed.exception, SystemExit)
    assert "The student KNeighborsClassifier cannot learn" in failed.stderr and "--resume" in failed.stderr
    assert not Path("out/release").exists()
    before = Path("out/ledger.jsonl").read_bytes()
    done = call(f"{line} --student logistic --resume")
    assert done.exit_code == 0, done.output
    assert Path("out/release/README.md").exists()
    assert Path("out/ledger.jsonl").read_bytes().startswith(before)


NOT_TEXT = "o\udcff"
"""The name of a file that is not UTF-8, as Python reads it on Linux."""


@pytest.mark.parametrize(
    "line",
    [
        *(f"{line} --data csv:two.csv --schema two.json --out {NOT_TEXT}/out" for line in VERBS.values()),
        f"{VERBS['train']} --data csv:{NOT_TEXT}/two.csv --schema two.json --out out",
        f"{VERBS['train']} --data csv:two.csv --schema {NOT_TEXT}/two.json --out out",
        f"methods --plugin {NOT_TEXT}.py",
        f"budget open {NOT_TEXT}/own --epsilon 3 --delta 1e-5",
    ],
)
def test_names_that_are_not_text_are_refused_before_anything_is_spent(home: Path, line: str) -> None:
    """Record, card and account are UTF-8: a run in such a folder was paid for, and its record could not be written."""
    Path(NOT_TEXT).mkdir()
    for name in ("two.csv", "two.json"):
        shutil.copy(name, NOT_TEXT)
    refused(line, "is not UTF-8")


def test_names_that_are_not_text_are_refused_in_python_and_in_the_working_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="is not UTF-8"):
        RunFolder(NOT_TEXT)
    with pytest.raises(InputError, match="is not UTF-8"):
        DataSpec(f"csv:{NOT_TEXT}.csv")
    Path(NOT_TEXT).mkdir()
    monkeypatch.chdir(NOT_TEXT)
    refused("methods", "is not UTF-8")


@pytest.mark.parametrize("name", ["model.py", "report.html", "release", "internal"])
@pytest.mark.parametrize("verb", ["train", "synthesize", "tune"])
def test_a_run_does_not_begin_among_files_of_somebody_else(home: Path, verb: str, name: str) -> None:
    """It wrote over a model.py of the user; a synthesis beside a folder `release` was paid for and could not be finished."""
    Path("mine").mkdir()
    (Path("mine") / name).mkdir() if name in ("release", "internal") else (Path("mine") / name).write_text("mine")
    (Path("mine") / "log.txt").write_text("mine")
    before = sorted(Path("mine").rglob("*"))
    for more in ("", "--resume", "--dry-run"):
        done = call(f"{VERBS[verb]} --data csv:two.csv --schema two.json --out mine {more}")
        assert done.exit_code == 2 and f"has {name}, which a run would write over" in done.stderr, done.output
    assert sorted(Path("mine").rglob("*")) == before
