"""Services of the operating system: atomic writes, locks between processes, memory kept between steps."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from privet.errors import PrivetError

_ROOM = "free some space, and run the command again"
_WAYS = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: _ROOM,
    errno.EROFS: "choose a folder on a disk that can be written",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ELOOP: "name the file that is meant, not a link",
    errno.EMFILE: "close other programs, or raise the limit of open files",
    errno.ENFILE: "close other programs, or raise the limit of open files",
    errno.EEXIST: "choose another path",
}
_OF_THE_PATH = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
_OTHER_PATH = (errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)


def why_refused(error: OSError) -> str:
    """Why the system refused a file, and the way out, for the end of a sentence: "(No space left on device): free ..."."""
    why = error.strerror or type(error).__name__
    way = _WAYS.get(
        error.errno or 0, "check the path, or choose another one" if of_the_path(error) else "check the disk"
    )
    return f"({why}): {way}"


def of_the_path(error: OSError) -> bool:
    """Whether another path would avoid the error, so that it is one of the user's input."""
    return isinstance(error, _OF_THE_PATH) or error.errno in _OTHER_PATH


_TORN = "part-"
_TEMPORARY = re.compile(rf"\..+\.{_TORN}[a-z0-9_]{{8}}")
"""The name of a file that becomes another one when it is whole; no other program names its files so."""


def write_whole(path: Path, content: bytes, *, mode: int = 0o600) -> Path:
    """Write a file atomically: first to a temporary file beside it, then to the disk, then rename it.

    Formal guarantees: a reader sees the old file or the whole new one, even after a crash or on a full disk.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.{_TORN}")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(mode)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):  # the error that is raised says more than a second one
                Path(temporary).unlink()
            raise
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # the user does not know the temporary file
        raise
    sync_folder(path.parent)
    return path


def remove_torn(folder: Path) -> None:
    """Delete the temporary files of `write_whole` that a killed process left; nobody may be writing to the folder."""
    for path in folder.glob(".*"):
        if _TEMPORARY.fullmatch(path.name) and path.is_file() and not path.is_symlink():
            path.unlink(missing_ok=True)


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
        from filelock import FileLock, Timeout  # slow to import, and most commands lock nothing

        self._lock = FileLock(
            path, blocking=wait, thread_local=False, fallback_to_soft=False, preserve_lock_file=True
        )  # fmt: skip
        try:
            self._lock.acquire()
        except Timeout:
            raise Busy(f"{path} is held by another process.") from None

    def release(self) -> None:
        self._lock.release(force=True)


def memory_here() -> int:
    """The bytes of memory of this machine; if they are not known, more than any machine has."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return 1 << 60


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
