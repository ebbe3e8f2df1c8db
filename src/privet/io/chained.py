"""Append-only files of JSON lines with a running hash, for ledgers and accounts."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from privet.errors import PrivetError
from privet.io.system import Busy, Lock, why_refused


class NotAnEntry(ValueError):  # noqa: N818 - a name that reads as what happened
    """A line is not a JSON object with a hash: it is damaged, or was not written completely."""


class BrokenChain(ValueError):  # noqa: N818
    """The hash of a line does not follow from the lines before it: something was edited."""


def chained(head: str, entry: dict[str, Any]) -> str:
    """The running hash after `entry`, given the one before it. It depends on the content, not on the spacing of the line."""
    text = head + json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def line_of(entry: dict[str, Any], head: str) -> bytes:
    """The line of an entry; `head` is the running hash after it."""
    return json.dumps({**entry, "hash": head}, allow_nan=False).encode() + b"\n"


def entry_of(line: bytes, head: str) -> tuple[dict[str, Any], str]:
    """The entry of a line and the running hash after it; `head` is the one before it."""
    try:
        entry: dict[str, Any] = json.loads(line)
        claimed = entry.pop("hash")
        found = chained(head, entry)
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise NotAnEntry from None
    if claimed != found:
        raise BrokenChain
    return entry, found


class Appender:
    """An append-only file that is open for writing: locked before it is read, and durable after each line.

    Formal guarantees: when `append` returns, the line is on the disk (fsync). On a local disk one `Appender` at a time is open
    for a file. Locks are not reliable everywhere (network disks, other programs), so nothing is appended to a file that is
    longer or shorter than this object left it, or that was deleted. After an error nothing more is appended, because nobody
    knows what reached the disk.
    """

    def __init__(
        self, path: Path, noun: str, error: type[PrivetError], *, new: bool = False, wait: bool = False, lost: str = ""
    ) -> None:
        """
        Args:
            path: the file.
            noun: what it is in messages, such as "ledger".
            error: the error to raise.
            new: create the file; raises `FileExistsError` if there is one. Otherwise it must exist (`FileNotFoundError`).
            wait: wait for another process that writes the file, instead of raising.
            lost: what to say about a file that was deleted while it was written.
        """
        self.path, self._noun, self._error, self._lost = path, noun, error, lost
        if not new and not path.is_file():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._lock: Lock | None = self._locked(wait)
        self.file: IO[bytes] | None = None
        self._size = 0
        try:
            self.file = path.open("xb" if new else "r+b")
        except OSError:
            self.close()
            raise

    def continue_at(self, size: int) -> None:
        """Continue after the first `size` bytes, which were read and checked; a torn line after them is removed."""
        assert self.file is not None
        self._size = size
        self.file.seek(size - 1)
        ended = self.file.read(1) == b"\n"
        self.file.truncate(size)
        self.file.seek(size)
        if not ended:
            self.append(b"\n")

    def append(self, line: bytes) -> None:
        """Append a line; returns when it is on the disk."""
        if self.file is None:
            raise self._error(f"The {self._noun} {self.path} is closed.")
        try:
            self._check_untouched(self.file.fileno())
            self.file.write(line)
            self.file.flush()
            os.fsync(self.file.fileno())
            self._size += len(line)
        except OSError as error:
            self.close()
            raise self._error(f"The {self._noun} {self.path} cannot be written {why_refused(error)}.") from None

    def close(self) -> None:
        """Close the file and free the lock."""
        if self.file is not None:
            with suppress(OSError):  # a full disk: the bytes that are left cannot be written now either
                self.file.close()
            self.file = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _check_untouched(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if found.st_nlink == 0:
            self.close()
            raise self._error(f"The {self._noun} {self.path} was deleted while it was being written{self._lost}.")
        if found.st_size != self._size:
            self.close()
            raise self._error(f"The {self._noun} {self.path} was changed by somebody else while it was being written.")

    def _locked(self, wait: bool) -> Lock:
        """Take the lock, a file beside the appended one, so that only one process appends and all can read."""
        path = self.path.resolve()  # the same lock for every path to the file
        lock = path.with_name(f"{path.name}.lock")
        try:
            return Lock(lock, wait=wait)
        except Busy:
            raise self._error(f"The {self._noun} {path} is being written by another process.") from None
        except OSError as error:
            raise self._error(
                f"The {self._noun} {path} cannot be written: its lock {lock} cannot be taken {why_refused(error)}."
            ) from None
