"""Files that somebody else wrote: limits, odd content, and one sentence for each failure."""

import json
import os
import socket
from pathlib import Path

import pytest

from privet.errors import InputError
from privet.io import MisfitError, from_json, from_yaml, in_bytes, kind_of, open_file, printable, read_text, user_path
from privet.io.given import DEEPEST, YAML_LIMIT


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def test_ordinary_content_is_read() -> None:
    plain = {"a": [1, -2.5, None, True, "ü"], "b": {"c": []}}
    assert from_json(json.dumps(plain)) == plain
    assert from_yaml(json.dumps(plain)) == plain
    assert from_json(nested(DEEPEST)) == json.loads(nested(DEEPEST))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (nested(DEEPEST + 2), "nested more than 40 levels deep"),
        (nested(100_000), "nested more than 40 levels deep"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "nested more than 40 levels deep"),
        ("[NaN]", "the number NaN"),
        ("[-Infinity]", "the number -Infinity"),
        ("[1e999]", "NaN or infinite"),
        ("1" * 5000, "too many digits"),
        ("1" * 400, "too many digits"),
        (r'"\ud800"', "not Unicode"),
        (r'{"\udfff": 1}', "not Unicode"),
    ],
)
def test_hostile_json(text: str, message: str) -> None:
    with pytest.raises(MisfitError, match=message):
        from_json(text)


@pytest.mark.parametrize("text", ["", "{", "[1,]", "{'a': 1}", "\0", "nul"])
def test_text_that_is_not_json(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        from_json(text)


LAUGHS = "\n".join(["a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"] + [
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
])  # fmt: skip
MERGES = "\n".join(["a: &a {x0: 1, x1: 1, x2: 1, x3: 1, x4: 1, x5: 1, x6: 1, x7: 1, x8: 1, x9: 1}"] + [
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 10)}]}}" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
])  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (nested(60), "nested more than 40 levels deep"),
        (nested(20_000), "nested more than 40 levels deep"),
        ("a: &a [*a]", "nested more than 40 levels deep"),
        (LAUGHS, "more than 4,000,000 values"),
        (MERGES, "merges more than 10,000 entries"),
        ("a: &a {b: 1}\nc: {<<: [" + "*a, " * 101 + "]}", "merges more than 100 tables in line 2"),
        ("a: 1\nb: 2\na: 3\n", "a key twice in the table that begins in line 1"),
        ("a: " + "9" * 5000, "a number or a date that is not valid"),
        ("a: 2001-99-99", "a number or a date that is not valid"),
        ("a: .nan", "NaN or infinite"),
        ("a: [1", "not valid YAML .see line 1"),
        ("a: !!python/object/apply:os.system [echo]", "not valid YAML .see line 1"),
        ("a: \x00", "not valid YAML .see its form"),
        ("\ta: 1", "not valid YAML .see line 1"),
        ("? [1]\n: 2", "not valid YAML .see line 1"),
        ("x" * (YAML_LIMIT + 1), "longer than 1,048,576 characters, the limit"),
    ],
)
def test_hostile_yaml(text: str, message: str) -> None:
    with pytest.raises(MisfitError, match=message):
        from_yaml(text)


def test_ordinary_merges_and_aliases_stay_allowed() -> None:
    text = "base: &base {a: 1, b: 2}\nmore: {<<: *base, b: 3}\nagain: {<<: *base}\nlist: &l [1]\nsame: *l\n"
    assert from_yaml(text) == {
        "base": {"a": 1, "b": 2},
        "more": {"a": 1, "b": 3},
        "again": {"a": 1, "b": 2},
        "list": [1],
        "same": [1],
    }


def odd_paths(at: Path) -> dict[str, tuple[Path, str]]:
    os.mkfifo(at / "pipe")
    (at / "loop").symlink_to(at / "loop")
    (at / "dangling").symlink_to(at / "nowhere")
    (at / "folder").mkdir()
    (at / "empty").write_bytes(b"")
    (at / "file").write_bytes(b"text")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(os.path.relpath(at / "socket"))
    listening.close()
    return {
        "missing": (at / "missing", "does not exist: check the path"),
        "pipe": (at / "pipe", "is a pipe, a device or a socket: save its content to a file"),
        "socket": (at / "socket", "is a pipe, a device or a socket"),
        "device": (Path("/dev/zero"), "is a pipe, a device or a socket"),
        "terminal": (Path("/dev/null"), "is a pipe, a device or a socket"),
        "loop": (at / "loop", "is a link that leads back to itself"),
        "dangling": (at / "dangling", "is a link to a file that does not exist"),
        "folder": (at / "folder", "is a folder where a file is expected"),
        "empty": (at / "empty", "is empty: copy or download it again"),
        "inside a file": (at / "file" / "x", "is a file where a folder is expected"),
        "long name": (at / ("x" * 300), "is too long for the system: check it, or rename the file"),
        "long path": (at / "/".join(["x" * 200] * 30), "is too long for the system"),
    }


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes and sockets as files are a matter of Unix")
def test_everything_but_a_file_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, (path, message) in odd_paths(tmp_path).items():
        with pytest.raises(InputError, match=message):
            open_file(path)
        with pytest.raises(InputError, match=message):
            read_text(path)
        if name not in ("folder", "empty"):
            with pytest.raises(InputError, match=message):
                kind_of(path)


def test_permission_denied_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read everything: the refusal is played."""

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(InputError, match=r"permission denied.*ask its owner"):
        kind_of(tmp_path)


def test_paths_that_no_file_has() -> None:
    with pytest.raises(InputError, match="has a NUL character"):
        user_path("a\0b")
    with pytest.raises(InputError, match="a user who is not known here"):
        user_path("~nobody-of-this-name/a")
    assert user_path("~/a") == Path.home() / "a"


def test_texts_have_a_limit_and_an_encoding(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\ntwo\n\xff\n")
    with pytest.raises(InputError, match="line 3: not UTF-8 text"):
        read_text(tmp_path / "a")
    with pytest.raises(InputError, match="is larger than 4 bytes, the limit"):
        read_text(tmp_path / "a", 4)
    (tmp_path / "b").write_bytes(b"\xef\xbb\xbfx")
    assert read_text(tmp_path / "b") == "x"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 漢", "plain ü 漢"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;https://example.org\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "red"),
        ("a\x1bcb\rc\nd\te\x08f\x00", "ab c d e f "),
        ("a\u202eb\u2066c", "a b c"),
        ("\ud800", "?"),
        ("\x1b", " "),
    ],
)
def test_nothing_for_the_terminal_stays_in_a_text(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_long_text_is_cut() -> None:
    assert printable("x" * 100, 10) == "xxxxxxx..."


def test_sizes_in_messages() -> None:
    assert [in_bytes(n) for n in (7, 2048, 64 << 20, 2 << 30)] == ["7 bytes", "2 KiB", "64 MiB", "2 GiB"]
