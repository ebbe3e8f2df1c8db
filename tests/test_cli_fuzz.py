"""Command lines, run folders from elsewhere and refusals of the system: one sentence, an exit code, nothing written outside.

A small part runs in `make test`, all of it in `make test-slow`.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from privet.io import Registry
from privet.io.names import LOCK
from tests.fuzzing import Fence, Home, home_in, is_said, run, runs_of, try_folder, try_line

COMMAND_LINES, FOLDERS = (
    int(os.environ.get(f"PRIVET_FUZZ_{kind}", few)) for kind, few in (("LINES", 150), ("FOLDERS", 50))
)
"""How many of each the slow tests try. `benchmarks/fuzz.py` tries 500 and 300."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    with pytest.MonkeyPatch.context() as patch:
        yield home_in(tmp_path_factory.mktemp("fuzz"), patch)


@pytest.fixture(autouse=True)
def state_at_home(own_state: None, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for this machine is inside the fence, too."""
    monkeypatch.setenv("PRIVET_STATE", str(home.at.parent.parent.parent / "PRIVET_STATE"))


@pytest.fixture(scope="module")
def runs(home: Home) -> dict[str, Path]:
    return runs_of(home)


# --- command lines ----------------------------------------------------------------------------------------------------


QUICK_LINES, QUICK_FOLDERS = range(29, 60), range(1, 25)
"""Those that `make test` tries: seconds of CPU time, because no training and no audit is among them."""


def test_command_lines(home: Home) -> None:
    for seed in QUICK_LINES:
        try_line(home, seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, COMMAND_LINES, 50))
def test_all_command_lines(home: Home, first: int) -> None:
    for seed in range(first, first + 50):
        try_line(home, seed)


# --- run folders from elsewhere ---------------------------------------------------------------------------------------


def test_foreign_folders(home: Home, runs: dict[str, Path], tmp_path: Path) -> None:
    for seed in QUICK_FOLDERS:
        try_folder(home, runs, tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, FOLDERS, 50))
def test_all_foreign_folders(home: Home, runs: dict[str, Path], tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 50):
        try_folder(home, runs, tmp_path, seed)


# --- what was reported ------------------------------------------------------------------------------------------------

TABLE = "--data csv:{home}/t.csv --schema {home}/t.json --out {new}"
PLAN = "account --examples 1000 --batch-size 100 --delta 1e-5"
LONG = "x" * 300
NAMED = (
    (f"train {TABLE} --delta 5e-324", "at least 1e-100"),
    (f"train {TABLE} --delta 0.99999", "at most 0.5"),
    (f"train {TABLE} --epsilon 1e-9", "from 1e-06 to 1e+06"),
    (f"train {TABLE} --seed 99999999999999999999", "9223372036854775807"),
    (f"train {TABLE} --set epochs=1e12", "at most 1,000,000"),
    (f"train {TABLE} --set epochs=1e6 --set sampling_rate=0.02", "at most 10,000,000 steps"),
    (f"train {TABLE} --method svrg --set steps=1000000000000000000", "at most 10,000,000"),
    (f"train {TABLE} --public-size 999999999999999999999", "at most 1,000,000,000,000,000"),
    (f"train {TABLE} --recipe {{home}}/binary.yaml", "not UTF-8 text"),
    (f"train {TABLE} --recipe {{home}}/deep.yaml", "nested more than 40 levels"),
    (f"train {TABLE} --recipe {LONG}", "There is no recipe"),
    (f"train {TABLE} --model {LONG}", "There is no model"),
    (f"train {TABLE} --account {LONG}", "is no name for an account"),
    (f"train {TABLE} --plugin {{home}}/bad.py", "cannot be loaded"),
    (f"train --data csv:{LONG} --schema {{home}}/t.json --out {{new}}", "File name too long"),
    (f"train --data csv:{{home}}/t.csv --schema {{home}}/t.json --out {{home}}/{LONG}", "File name too long"),
    ("train --data csv:{home}/t.csv --schema {home}/deep.json --out {new}", "nested more than 40 levels"),
    ("train --data csv:{home}/pipe --schema {home}/t.json --out {new}", "is a pipe, a device or a socket"),
    ("train --data csv:/dev/zero --schema {home}/t.json --out {new}", "is a pipe, a device or a socket"),
    (f"synthesize {TABLE} --size 999999999999", "at most 100,000,000"),
    (f"synthesize {TABLE} --epochs 1000000000000", "10000"),
    (f"synthesize {TABLE} --method table-moments --set bins=9223372036854775808", "at most 1,000,000,000"),
    (f"{PLAN} --steps 1000000000000000000 --noise 1", "at most 1,000,000,000,000,000"),
    (f"{PLAN} --epsilon 1 --noise 1e-300", "less than one step costs"),
    (f"{PLAN} --epsilon 1e-9 --steps 10", "from 1e-06 to 1e+06"),
    (f"{PLAN} --noise 1 --epochs 1.7e308", "has no end"),
    (f"{PLAN} --noise 1 --steps 1 --plot {{home}}/{LONG}.png", "File name too long"),
    ("audit --method dpsgd --draws 1000000000000", "100000000"),
    ("audit --method dpsgd --no-laboratory --steps 1000000000000000000", "1000000"),
    ("audit {run} --canaries 1000000000000", "1000000"),
    ("attack {run} --attack lira --set shadows=1000000000", "at most 1,000"),
    ("attack {run} --attack shadow --set epochs=1000000000", "at most 10,000"),
    (f"compare {TABLE} --minutes inf", "525600"),
    (f"compare {TABLE} --jobs 1000000000", "1000"),
    ("reproduce {home}/binary.yaml", "not UTF-8 text"),
    ("reproduce digits-linear --seeds 1000000000", "1000"),
    ("reproduce wang-reversal --image {home}/pipe --out {new}", "is not a file"),
    (f"report {LONG}", "File name too long"),
    ("demo --epsilon 1e-9", "from 1e-06 to 1e+06"),
    (f"tune {TABLE} --set epochs=1,2 --mean 1e18", "between 1 and 500"),
    ("data get mnist --from {home}/pipe", "is a pipe, a device or a socket"),
    ("budget open {new} --epsilon 3 --delta 1e-5 --data /dev/zero", "is a pipe, a device or a socket"),
    ("budget show /dev/zero", "is a pipe, a device or a socket"),
    ("budget show {home}/pipe", "is a pipe, a device or a socket"),
    ("budget show {home}/empty", "is a folder, and an account is a file"),
    ("budget charge {home}/own --noise 1 --steps 99999999999999999999 --note x", "1,000,000,000,000,000,000"),
)
"""Command lines with the words that their refusal must have; each one ended in a traceback, ran for ever, or could."""


def test_what_was_reported_is_refused_with_the_limit(home: Home) -> None:
    for line, words in NAMED:
        asked = [part.format(home=home.at, run=home.run, new=home.new()) for part in line.split()]
        with Fence(home.at).closed() as fence, Registry.restored():
            code, said = run(asked, 10)
        assert code == 2 and words in " ".join(said.split()), (line, code, said)
        assert not fence.tried, (line, fence.tried)
        assert not os.path.exists(asked[asked.index("--out") + 1] if "--out" in asked else "nothing"), line


ODD = ("/dev/null", "~nobody-here/x", LONG, "{home}/t.csv", "{home}/loop", " ", "\x1b[2J")
CHEAP = ("data list", "budget show", "budget show x", "budget open {new} --epsilon 3 --delta 1e-5")


@pytest.mark.parametrize("name", ["PRIVET_DATA", "PRIVET_ACCOUNTS", "PRIVET_STATE"])
def test_odd_environment(home: Home, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for value in ODD:
        monkeypatch.setenv(name, value.format(home=home.at))
        for line in CHEAP:
            with Fence(home.at.parent).closed():
                code, said = run(line.format(new=home.new()).split())
            assert is_said(code, said), (value, line, said)


# --- links, escapes, modes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["report", "attack", "audit", "account", "verify"])
def test_links_in_a_run_folder_are_not_followed(home: Home, runs: dict[str, Path], tmp_path: Path, verb: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "theirs").write_text("unchanged")
    for kind in ("train", "synthesize"):
        names = sorted(path.relative_to(runs[kind]) for path in runs[kind].rglob("*"))
        assert Path("CARD.md") in names and (kind == "train" or Path("release") in names)
        for place in names if verb == "report" else names[:: max(1, len(names) // 3)]:
            folder = tmp_path / "run"
            shutil.copytree(runs[kind], folder)
            path = folder / place
            is_folder = path.is_dir()
            shutil.rmtree(path) if is_folder else path.unlink()
            path.symlink_to(outside if is_folder else outside / "theirs")
            with Fence(folder).closed() as fence:
                code, said = run([verb, str(folder)])
            assert (code, fence.tried) == (2, []) and "is a link" in said, (kind, place, said)
            assert [each.name for each in outside.iterdir()] == ["theirs"]
            assert (outside / "theirs").read_text() == "unchanged"
            shutil.rmtree(folder)


ESCAPES = "\x1b[2J\x1b]0;title\x07\x9b31m\x08\r\n\u202e"


def test_no_escape_of_a_foreign_record_reaches_the_terminal(home: Home, runs: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs["synthesize"], folder)
    plain = json.loads((folder / "record.json").read_text())
    plain |= {name: plain[name] + ESCAPES for name in ("title", "method", "created")}
    plain["command"] = [ESCAPES]
    plain["data"]["name"] += ESCAPES
    (folder / "record.json").write_text(json.dumps(plain))
    for line in ("report", "account"):
        code, said = run([line, str(folder)])  # asserts that no escape was printed
        assert code == 0 and not any(sign in said for sign in "\x07\x08\u202e"), said


@pytest.mark.slow
def test_no_escape_of_any_text_of_a_record(home: Home, runs: dict[str, Path], tmp_path: Path) -> None:
    """Each text of the record in turn has escapes. What is printed has none, whether the record is taken or refused."""
    taken = 0
    for kind in ("train", "synthesize"):
        plain = json.loads((runs[kind] / "record.json").read_text())
        for name, value in plain.items():
            for inner in value if isinstance(value, dict) else [None]:
                folder = tmp_path / "run"
                shutil.copytree(runs[kind], folder)
                changed = json.loads(json.dumps(plain))
                holder, key = (changed, name) if inner is None else (changed[name], inner)
                if isinstance(holder[key], str):
                    holder[key] += ESCAPES
                elif isinstance(holder[key], list) and all(isinstance(each, str) for each in holder[key]):
                    holder[key] = [f"{each}{ESCAPES}" for each in holder[key]]
                else:
                    shutil.rmtree(folder)
                    continue
                (folder / "record.json").write_text(json.dumps(changed))
                code, said = run(["report", str(folder)])  # asserts that no escape was printed
                taken += code == 0
                assert not any(sign in said for sign in "\x07\x08\x9b\u202e"), (name, inner, said)
                shutil.rmtree(folder)
    assert taken > 10


# --- the system refuses -----------------------------------------------------------------------------------------------

REFUSED = {
    "report": ("train", "report {run}"),
    "report of a comparison": ("old compare", "report {run}"),
    "report of a loop": ("train", "report {run} --contact x"),
    "attack": ("train", "attack {run}"),
    "account": ("train", "account {run} --plot tradeoff={run}/figure.png"),
    "budget open": ("train", "budget open {run}/own --epsilon 3 --delta 1e-5"),
    "budget charge": ("train", "budget charge {home}/own --run {run} --note x"),
    "demo": ("train", "demo --data digits --out {run}/new"),
    "compare": ("train", f"compare {TABLE.replace('{new}', '{run}/new')} --methods dpsgd"),
    "reproduce": ("train", "reproduce digits-linear --seeds 1 --out {run}/new"),
    "train": ("train", f"train {TABLE.replace('{new}', '{run}/new')} --set epochs=1"),
    "tune": ("train", f"tune {TABLE.replace('{new}', '{run}/new')} --set epochs=1,2"),
    "synthesize": ("train", f"synthesize {TABLE.replace('{new}', '{run}/new')} --size 20"),
    "attack of data": ("synthesize", "attack {run}"),
    "audit": ("train", "audit {run} --draws 40 --canaries 40"),
}
"""Commands that write, each with the run that it is given."""
QUICK = (
    "report",
    "report of a comparison",
    "account",
    "budget open",
    "budget charge",
    "demo",
    "compare",
    "reproduce",
    "train",
)


def check_refusals(
    home: Home, runs: dict[str, Path], at: Path, command: tuple[str, str], refusals: list[tuple[int, int]]
) -> None:
    kind, line = command
    for number, (most, error) in enumerate(refusals):
        folder = at / str(number)
        shutil.copytree(runs[kind], folder)
        with Fence(at, home.at, Path(os.environ["PRIVET_STATE"]), most=most, error=error).closed() as fence:
            code, said = run(line.format(run=folder, home=home.at).split(), 60)
        if fence.written <= most:
            break  # everything was written before
        if code == 0:  # all of it was written: only the file of a lock could not be removed, and it means nothing
            assert {os.path.basename(path) for path in fence.refused} == {LOCK}, (line, most, fence.refused)
            continue
        expected = 1 if error == errno.ENOSPC else 2
        assert code in (expected, 1), (line, most, code, said)
        said = said.strip().splitlines()[-1]
        assert os.strerror(error) in said and said.startswith("privet: ") and said.endswith("."), (line, most, said)


@pytest.mark.parametrize("name", QUICK)
def test_a_read_only_folder_and_a_full_disk(home: Home, runs: dict[str, Path], tmp_path: Path, name: str) -> None:
    check_refusals(home, runs, tmp_path, REFUSED[name], [(0, errno.EROFS), (0, errno.EACCES), (0, errno.ENOSPC)])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in REFUSED if name not in ("demo", "compare")])
def test_a_disk_that_fills_up(home: Home, runs: dict[str, Path], tmp_path: Path, name: str) -> None:
    check_refusals(
        home, runs, tmp_path, REFUSED[name], [(most, errno.ENOSPC) for most in (1, 2, 4, 7, 12, 20, 33, 54, 88)]
    )


@pytest.mark.parametrize("kind", ["old compare", pytest.param("train", marks=pytest.mark.slow)])
def test_a_disk_that_fills_up_at_any_write_of_a_report(
    home: Home, runs: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    """The page is the old one or the whole new one, whichever write fails, and no file is left half written."""

    def page(folder: Path) -> bytes | None:
        return (folder / "report.html").read_bytes() if (folder / "report.html").exists() else None

    before = page(runs[kind])
    with Fence(tmp_path).closed() as fence:
        shutil.copytree(runs[kind], tmp_path / "whole")
        begun = fence.written
        assert run(["report", str(tmp_path / "whole")])[0] == 0
    writes, after = fence.written - begun, page(tmp_path / "whole")
    assert writes > 5
    names = {path.name for path in (tmp_path / "whole").iterdir()}
    for most in range(writes):
        check_refusals(home, runs, tmp_path / "full", (kind, "report {run}"), [(most, errno.ENOSPC)])
        folder = tmp_path / "full" / "0"
        assert page(folder) in (before, after), most
        assert run(["report", str(folder)])[0] == 0  # there is room again
        assert page(folder) == after and {path.name for path in folder.iterdir()} == names, most
        shutil.rmtree(folder)
