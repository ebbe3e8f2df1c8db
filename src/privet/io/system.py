"""What Privet asks of the operating system: files written whole, locks between processes, memory kept between steps."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import tempfile
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from privet.errors import PrivetError


def write_whole(path: Path, content: bytes, *, mode: int = 0o600) -> Path:
    """Write a file atomically: first to a temporary file beside it, then to the disk, then rename it.

    Formal guarantees: a reader sees the old file or the whole new one, even after a crash or on a full disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    return path


def sync_folder(folder: Path) -> None:
    """Write a folder's list of files to the disk, so that a new file survives a crash. Windows cannot, and needs not."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Busy(PrivetError):  # noqa: N818 - a name that reads as what happened
    """The lock is held by another process, or by another object of this process."""


class Lock:
    """An exclusive lock on the file `path`, held until `release`; see docs/decisions/0010-one-lock.md.

    Formal guarantees: on a local disk there is one holder at a time, among processes and within one. The operating system
    frees the lock when its process dies. The lock file is empty, is never deleted, and its existence means nothing; what it
    protects is another file, which anybody can read at any time. A file system without locks is refused. Locks over NFS are
    not reliable, so code that appends to a file must also check that nobody else changed the file.
    """

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        """Take the lock, or raise `Busy` if it is taken; `wait` waits instead. Raises `OSError` if there can be no lock."""
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


_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
"""Option numbers from glibc's malloc.h."""


def keep_freed_memory() -> bool:
    """Let this process keep freed memory for the next step. Returns whether the C library can do this (glibc can).

    glibc returns large freed blocks to the system, which later hands them out again page by page, filled with zeros. A
    training step frees what the next step needs, so this costs up to a quarter of the time (`benchmarks/freed_memory.py`).
    The kept memory counts as used by the process until the process ends.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return bool(library.mallopt(_MMAP_MAX, 0) and library.mallopt(_TRIM_THRESHOLD, 2**31 - 1))
