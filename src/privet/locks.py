"""One process at a time: the only lock of the project, on Linux, macOS and Windows alike."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from filelock import FileLock, Timeout

from privet.errors import PrivetError


class Busy(PrivetError):  # noqa: N818 - a name that reads as what happened
    """Another process holds the lock, or another object of this one."""


class Lock:
    """Holds the lock file `path` until `release`; see docs/decisions/0010-one-lock.md.

    Formal guarantees: on a local disk one holder at a time, among processes and within one. The operating system frees the
    lock when its process dies. The file holds nothing, stays, and means nothing on its own: what it protects is another
    file, which anybody can read meanwhile. A file system that has no locks is refused. Over NFS locks do not exclude each
    other reliably: whoever appends to a file checks besides that it is as it was left.
    """

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        """Take the lock, or raise `Busy` at once; with `wait`, when it is free. An `OSError` says why there cannot be one."""
        if not path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
        self._lock = FileLock(
            path, blocking=wait, thread_local=False, fallback_to_soft=False, preserve_lock_file=True
        )  # fmt: skip
        try:
            self._lock.acquire()
        except Timeout:
            raise Busy(f"{path} is held by another process.") from None

    def release(self) -> None:
        self._lock.release(force=True)
