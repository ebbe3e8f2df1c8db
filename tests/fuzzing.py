"""Command lines and run folders that nobody should write, made from fixed seeds; and what must hold for each of them."""

from __future__ import annotations

import copy
import dataclasses
import errno
import json
import math
import os
import random
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from privet.cli import app
from privet.io import Registry
from tests.limits import TooLong, seconds

__all__ = [
    "Fence",
    "Home",
    "TooLong",
    "chained_ledger",
    "home_in",
    "is_said",
    "run",
    "runs_of",
    "try_folder",
    "try_line",
]

NUMBERS = (
    "0 -1 -0 0.5 1 2 1e-9 1e-300 5e-324 1e-320 1e300 1.7e308 1e999 inf -inf nan 1e12 -1e12 1e18 1e19 "
    "9223372036854775807 9223372036854775808 18446744073709551616 999999999999999999999999 0x10 1_0 1,5 ٣ 1e 0.9999999999999999"
).split()
TEXTS = (
    *(
        "",
        " ",
        "x",
        "x" * 300,
        "x" * 5000,
        "\x1b[2J\x1b]0;title\x07",
        "../../up",
        "/",
        ".",
        "..",
        "~",
        "~nobody-here/x",
    ),
    *(
        "☃",
        "\udcff",
        "a b",
        "a=b",
        "=",
        ":",
        "::",
        "csv:",
        "py:os:system",
        "py:",
        "digits:x",
        "1",
        "--",
        "-",
        "-1",
        "%s%n",
    ),
    *(
        "{0}",
        "$(id)",
        "`id`",
        "\n",
        "a\nb",
        "none",
        "null",
        "*",
        "[",
        "\\",
        "<script>",
        "CON",
        ".yaml",
        "x.yaml",
        "x.py",
    ),
)
_TABLE = "--data csv:{home}/t.csv --schema {home}/t.json"
VERBS = {
    "account": "--examples 1000 --batch-size 100 --noise 1 --steps 10 --delta 1e-5",
    "account RUN": "{run}",
    "train": f"{_TABLE} --set epochs=1 --out {{new}}",
    "synthesize": f"{_TABLE} --size 20 --out {{new}}",
    "tune": f"{_TABLE} --set epochs=1,2 --dry-run --out {{new}}",
    "attack": "{run}",
    "audit": "{run} --draws 40 --canaries 40",
    "audit METHOD": "--method dpsgd --draws 40 --no-laboratory",
    "compare": f"{_TABLE} --methods dpsgd --minutes 0.001 --out {{new}}",
    "reproduce": "digits-linear --seeds 0 --out {new}",
    "report": "{run}",
    "demo": "--data x --out {new}",
    "data get": "mnist --from {home}",
    "data list": "",
    "methods": "dpsgd",
    "recipes": "digits-linear",
    "attacks": "",
    "budget open": "{new} --epsilon 3 --delta 1e-5",
    "budget show": "{home}/own",
    "budget charge": "{home}/own --noise 1 --rate 0.01 --steps 10 --note x",
    "budget check": "{home}/own {home}",
    "budget settle": "{home}/own x",
    "budget recover": "{home}/own --from {home}/own",
}
"""What follows a verb, to begin with: a command that works, or one that asks for records that are not there."""

LONG = ("laboratory", "help", "install_completion")
"""Flags that make a command take minutes, rightly."""


class Home:
    """A folder with a table, a run, and things that are no files."""

    def __init__(self, at: Path) -> None:
        self.at = at
        at.mkdir(parents=True, exist_ok=True)
        rows = "".join(f"{n % 90},{'ab'[n % 2]},{('no', 'yes')[n % 3 == 0]}\n" for n in range(60))
        (at / "t.csv").write_text("age,work,rich\n" + rows)
        columns = {
            "age": {"low": 0, "high": 100},
            "work": {"categories": ["a", "b"]},
            "rich": {"categories": ["no", "yes"]},
        }
        (at / "t.json").write_text(json.dumps({"label": "rich", "columns": columns}))
        (at / "binary.yaml").write_bytes(random.Random(0).randbytes(300))
        (at / "deep.yaml").write_text("[" * 3000)
        (at / "deep.json").write_text("[" * 100_000)
        (at / "bad.py").write_text("raise ValueError('no plug-in')\n")
        (at / "empty").mkdir(exist_ok=True)
        (at / "closed").mkdir(exist_ok=True)
        if hasattr(os, "mkfifo"):
            os.mkfifo(at / "pipe")
            (at / "loop").symlink_to(at / "loop")
            (at / "outside").symlink_to(at.parent)
        self.run = at / "run"
        self._made = 0

    def prepare(self) -> None:
        """Make the run and open the account."""
        table = f"--data csv:{self.at}/t.csv --schema {self.at}/t.json"
        for line in (
            f"train {table} --set epochs=1 --seed 1 --out {self.run}",
            f"budget open {self.at}/own --epsilon 9 --delta 1e-5",
        ):
            code, said = run(line.split(), 0)
            assert code == 0, said

    def paths(self) -> tuple[str, ...]:
        names = "t.csv t.json binary.yaml deep.yaml deep.json bad.py empty pipe loop outside run none none/none".split()
        return (*(str(self.at / name) for name in names), "/dev/null", "/dev/zero", "/proc/self/mem", "/proc/none")

    def new(self) -> str:
        self._made += 1
        return str(self.at / f"new-{self._made}")


def home_in(root: Path, patch: pytest.MonkeyPatch) -> Home:
    """A home with folders of its own for accounts, data and state, and a working folder with room for ``../..`` above it."""
    for name in ("PRIVET_DATA", "PRIVET_ACCOUNTS", "PRIVET_STATE", "HOME"):
        (root / name).mkdir()
        patch.setenv(name, str(root / name))
    (root / "a" / "b" / "c").mkdir(parents=True)
    patch.chdir(root / "a" / "b" / "c")
    made = Home(root / "a" / "b" / "home")
    made.prepare()
    import_module("matplotlib.font_manager")  # it writes a cache of its own when it is imported
    return made


def runs_of(home: Home) -> dict[str, Path]:
    """A run of each kind, to be copied and spoiled: new ones, and those of version 0.1.0."""
    line = f"synthesize --data csv:{home.at}/t.csv --schema {home.at}/t.json --size 20 --out {home.at}/made"
    assert run(line.split(), 0)[0] == 0
    found = {"train": home.run, "synthesize": home.at / "made"}
    old = Path(__file__).parent / "made_by_0_1_0"
    return found | {f"old {path.name}": path for path in old.iterdir() if path.is_dir()}


def is_said(code: int, said: str) -> bool:
    """Whether a failure has its sentence: ours, that of the parser of options, or the verdict of an audit."""
    return code == 0 or any(sign in said for sign in ("privet: ", "─ Error ─", "refuted"))


def try_line(home: Home, seed: int) -> tuple[list[str], int]:
    """Run the command line of a seed and check what must hold; the line and its exit code."""
    words = command_line(random.Random(seed), home)
    with Fence(home.at.parent.parent.parent).closed() as fence, Registry.restored():
        code, said = run(words)
    assert is_said(code, said), (words, said)
    named = [os.path.realpath(os.path.expanduser(word.split(":")[-1])) for word in words if "\0" not in word]
    if words[:2] == ["budget", "open"]:  # the file that names the account is in the folder of the data
        named += [os.path.dirname(place) for place in (*named, *words) if os.path.isabs(place)]
    strays = [path for path in fence.tried if not any(path.startswith(place) for place in named)]
    assert not strays, (words, strays)
    return words, code


def try_folder(home: Home, runs: dict[str, Path], at: Path, seed: int) -> tuple[list[str], int]:
    """Run a command on the spoiled run folder of a seed and check what must hold; the line and its exit code."""
    draw = random.Random(seed)
    kind, folder = draw.choice(sorted(runs)), at / str(seed) / "run"
    shutil.copytree(runs[kind], folder)
    what = [spoil(folder, draw) for _ in range(draw.choice((1, 1, 2)))]
    lines = [f"report {folder}", f"report {folder} --json", f"report {folder} --contact x"]
    if kind != "old compare":
        new = f"--seed 1 --set epochs=1 --method none --out {folder.parent}/new"
        lines += [f"account {folder}", f"attack {folder}", f"audit {folder} --draws 40 --canaries 40"]
        lines += [f"train --data csv:{home.at}/t.csv --schema {home.at}/t.json --tuned-from {folder} {new}"]
        lines += [f"budget check {home.at}/own {folder.parent}"]
    words = draw.choice(lines).split()
    with Fence(folder).closed() as fence, Registry.restored():
        code, said = run(words)
    assert is_said(code, said), (seed, what, words, said)
    assert not fence.tried or words[0] in ("train", "budget"), (seed, what, words, fence.tried)
    shutil.rmtree(at / str(seed))
    return words, code


def commands() -> dict[str, Any]:
    found = {}
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {key}": value for key, value in inner.items()}
    return found


def command_line(draw: random.Random, home: Home) -> list[str]:
    """One command line that may be anything but right. Most are right but for one value."""
    known = commands()
    verb = draw.choice(list(VERBS))
    name = verb if verb in known else verb.split()[0]
    start = name.split()
    words = [word.format(home=home.at, run=home.run, new=home.new()) for word in VERBS[verb].split()]
    options = [each for each in known[name].params if each.param_type_name == "option" and each.name not in LONG]
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        way = draw.randrange(10)
        if way == 0 and words:
            del words[draw.randrange(len(words))]
        elif way == 1:
            words.insert(draw.randrange(len(words) + 1), value(draw, home))
        elif way == 2 and words:
            words[draw.randrange(len(words))] = value(draw, home)
        elif way < 5 and any(each.name == "settings" for each in options):
            words += setting(draw, home, start[0])
        elif options:
            option = draw.choice(options)
            flag = draw.choice([text for text in option.opts if text.startswith("-")])
            fitting = value(draw, home, option.type_descriptor.annotation)
            if flag in words[:-1]:
                words[words.index(flag) + 1] = fitting
            else:
                words += [flag] if option.is_flag else [flag, fitting]
    return [*start, *words]


def setting(draw: random.Random, home: Home, verb: str) -> list[str]:
    """A setting of a method or an attack, and the option that chooses it."""
    from privet.attacks import attack_named, attack_names
    from privet.methods import METHODS

    key = draw.choice(
        attack_names() if verb == "attack" else [key for key, each in METHODS.items() if verb in USES[each.makes]]
    )
    owner: Any = attack_named(key) if verb == "attack" else METHODS[key]
    names = [each.name for each in dataclasses.fields(owner) if each.name not in ("key", "title")] or ["x"]
    name = draw.choice(names)
    kind = type(getattr(owner, name, None))
    return ["--attack" if verb == "attack" else "--method", key, "--set", f"{name}={value(draw, home, kind)}"]


USES = {"model": ("train", "tune", "compare"), "data": ("synthesize", "compare")}


def value(draw: random.Random, home: Home, kind: Any = None) -> str:
    """Something odd; mostly of the kind that is expected, so that it is not refused at the door."""
    fitting = {int: NUMBERS, float: NUMBERS, Path: home.paths()}.get(kind, ())
    if fitting and draw.random() < 0.8:
        return draw.choice(fitting)
    return draw.choice(draw.choice((NUMBERS, TEXTS, home.paths())))


def run(words: list[str], limit: float = 30.0) -> tuple[int, str]:
    """Run a command line in this process: its exit code and what it printed. A traceback, or too long a time, fails the test.

    The limit is of CPU time; while nothing is computed, ten times as long.
    """
    shown = " ".join(word if len(word) < 80 else f"{word[:40]}...({len(word)})" for word in words)
    with warnings.catch_warnings(), seconds(10 * limit, f"privet {shown}", of_cpu=limit):
        warnings.simplefilter("ignore")
        done = CliRunner().invoke(app, words, env={"COLUMNS": "200", "NO_COLOR": "1"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        text = "".join(traceback.format_exception(done.exception))
        pytest.fail(f"privet {shown!r}\n{text}", pytrace=False)
    said = done.stdout + done.stderr
    assert done.exit_code in (0, 1, 2), (shown, done.exit_code, said)
    assert "Traceback" not in said, (shown, said)
    assert "\x1b" not in said and "\x9b" not in said, (shown, said)
    if done.exit_code:
        assert done.stderr.strip() or "refuted" in done.stdout, shown
    return done.exit_code, said


class Fence:
    """Refuses whatever this process writes outside of some folders, and lists it.

    Python reports what it opens, makes, renames and deletes before it does so. What a library writes past Python is not seen.
    """

    standing: ClassVar[list[Fence]] = []
    _hooked: ClassVar[bool] = False

    def __init__(self, *inside: Path, most: float = math.inf, error: int = errno.EACCES) -> None:
        """
        Args:
            inside: the folders.
            most: how many times something may be written inside, too; afterwards that is refused as well.
            error: the error of the system with which it is refused, such as ENOSPC.
        """
        self.inside = [os.path.realpath(folder) for folder in inside]
        self.most, self.error = most, error
        self.tried: list[str] = []
        self.written = 0
        self.refused: list[str] = []
        """What was refused inside."""

    @contextmanager
    def closed(self) -> Iterator[Fence]:
        """Refuse until the block ends. Temporary files go into the first folder."""
        if not Fence._hooked:
            sys.addaudithook(_watch)  # there is no way to take it away again: it does nothing while no fence stands
            Fence._hooked = True
        before, bytecode = tempfile.tempdir, sys.dont_write_bytecode
        tempfile.tempdir, sys.dont_write_bytecode = self.inside[0], True
        Fence.standing.append(self)
        try:
            yield self
        finally:
            Fence.standing.remove(self)
            tempfile.tempdir, sys.dont_write_bytecode = before, bytecode

    def check(self, path: Any, followed: bool = False) -> None:
        """Refuse `path` if it is outside; `followed`: a link stands for what it leads to."""
        if not isinstance(path, str | bytes | os.PathLike) or b"\0" in os.fsencode(path):
            return  # a file that is open already, or a path that the system refuses
        given = os.path.realpath(path) if followed else os.fsdecode(path)
        at = os.path.join(os.path.realpath(os.path.dirname(given)), os.path.basename(given))
        if at == os.devnull:
            return
        if not any(os.path.commonpath((at, folder)) == folder for folder in self.inside):
            self.tried.append(at)
            raise OSError(self.error, os.strerror(self.error), given)
        self.written += 1
        if self.written > self.most:
            self.refused.append(at)
            raise OSError(self.error, os.strerror(self.error), given)


_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {
    **dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.chown", "os.utime"), (0,)),
    **dict.fromkeys(("os.rename", "os.link"), (0, 1)),
    "os.symlink": (1,),
}


def _watch(event: str, given: tuple[Any, ...]) -> None:
    if not Fence.standing:
        return
    if event == "open" and isinstance(given[2], int) and given[2] & _WRITING:
        Fence.standing[-1].check(given[0], followed=True)
    for place in _CHANGES.get(event, ()):
        if not (
            event in ("os.remove", "os.rmdir") and given[1] >= 0
        ):  # in a folder that is open: rmtree found it inside
            Fence.standing[-1].check(given[place])


# --- run folders from elsewhere ---------------------------------------------------------------------------------------

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, 10**400, -(10**18)),
    *(
        0.0,
        -0.0,
        0.5,
        1.0,
        -1.5,
        5e-324,
        1e-300,
        1e-9,
        1e300,
        1.7e308,
        -1e308,
        float("nan"),
        float("inf"),
        float("-inf"),
    ),
    *("", "x", "x" * 300, "x" * 100_000, "../../etc/passwd", "/etc/passwd", "..", ".", "a/b", "a\0b", "~/x", "C:\\x"),
    *(
        "\x1b[2J\x1b]0;title\x07",
        "<script>alert(1)</script>",
        "{{7*7}}",
        "{% raw %}",
        "'\"><img src=x onerror=1>",
        "\u202ebidi",
    ),
    *(
        "\ud800",
        "☃",
        "\r\n",
        "\t",
        "nan",
        "1e999",
        "py:os:system",
        "csv:/etc/passwd",
        "pld",
        "rdp",
        "secure",
        "%s",
        "&amp;",
    ),
    *([], {}, [[]], [None], {"": None}, {"x": {"y": []}}, [1, "a", None], [0.1] * 1000, "NESTED"),
)


def nested(depth: int) -> Any:
    made: Any = []
    for _ in range(depth):
        made = [made]
    return made


def places(plain: Any) -> list[tuple[Any, ...]]:
    """The places of all values in parsed JSON, down to the twentieth level."""
    found: list[tuple[Any, ...]] = []
    level: list[tuple[tuple[Any, ...], Any]] = [((), plain)]
    for _ in range(20):
        inner = []
        for at, item in level:
            parts = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
            inner += [((*at, key), part) for key, part in parts]
        found += [at for at, _ in inner]
        level = inner
    return found


def changed(plain: Any, draw: random.Random) -> Any:
    """Parsed JSON with one or a few values that do not belong there."""
    made = json.loads(json.dumps(plain))
    for _ in range(draw.choice((1, 1, 2, 4))):
        found = places(made)
        if not found:
            return draw.choice(HOSTILE)
        *way, last = draw.choice(found)
        holder = made
        for key in way:
            holder = holder[key]
        value = copy.deepcopy(draw.choice(HOSTILE))
        value = nested(draw.choice((30, 60, 500))) if value == "NESTED" else value
        if draw.random() < 0.1:
            del holder[last]
        elif draw.random() < 0.1 and isinstance(holder, dict):
            holder[draw.choice([text for text in HOSTILE if isinstance(text, str)])] = value
        elif draw.random() < 0.1 and isinstance(holder[last], list):
            holder[last] = holder[last] * 50
        else:
            holder[last] = value
    return made


def text_of(plain: Any) -> bytes:
    return json.dumps(plain).encode()


def chained_ledger(lines: list[Any]) -> bytes:
    """Entries as the lines of a ledger whose hashes fit."""
    from privet.io.chained import chained

    head, made = "", b""
    for entry in lines:
        try:
            head = chained(head, entry)
        except (ValueError, TypeError, RecursionError):
            head = "0" * 64
        made += json.dumps({**entry, "hash": head} if isinstance(entry, dict) else entry).encode() + b"\n"
    return made


def spoil(folder: Path, draw: random.Random) -> str:
    """Change something in a run folder; says what."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    way = draw.randrange(12)
    parsed = [path for path in files if path.suffix == ".json"]
    if way < 6 and parsed:
        record = folder / "record.json"
        path = record if record in parsed and draw.random() < 0.7 else draw.choice(parsed)
        with suppress(ValueError, RecursionError, OSError):  # it was spoiled before
            path.write_bytes(text_of(changed(json.loads(path.read_bytes()), draw)))
        return f"{path.name} changed"
    if way < 8 and (folder / "ledger.jsonl").exists():
        with suppress(ValueError, RecursionError, AttributeError, TypeError, OSError):  # they were spoiled before
            lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_bytes().splitlines()]
            for line in lines:
                line.pop("hash", None)
            (folder / "ledger.jsonl").write_bytes(chained_ledger(changed(lines, draw)))
            record = folder / "record.json"
            if record.exists() and draw.random() < 0.9:  # somebody who forges a ledger forges the record's head, too
                plain = json.loads(record.read_bytes())
                plain["ledger_head"] = ""
                record.write_bytes(text_of(plain))
        return "a forged ledger"
    path = draw.choice(files)
    if way == 8:
        path.write_bytes(draw.randbytes(draw.randrange(400)))
        return f"{path.name} of random bytes"
    if way == 9:
        raw = path.read_bytes()
        path.write_bytes(raw[: draw.randrange(len(raw) + 1)])
        return f"{path.name} cut"
    if way == 10:
        raw = bytearray(path.read_bytes())
        for _ in range(draw.choice((1, 5, 50))):
            if raw:
                raw[draw.randrange(len(raw))] = draw.randrange(256)
        path.write_bytes(bytes(raw))
        return f"{path.name} with other bytes"
    path.unlink()
    kind = draw.choice(("link", "loop", "pipe", "folder", "device", "nothing"))
    if kind == "link":
        path.symlink_to("/etc/hostname")
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe" and hasattr(os, "mkfifo"):
        os.mkfifo(path)
    return f"{path.name} is a {kind}"
