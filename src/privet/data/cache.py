"""The cache: one folder per data set, whose files are only ever put in place whole and verified."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

from privet.data.files import sha256
from privet.errors import PrivetError
from privet.locks import Lock

_LOCK = ".lock"


def cache_root(cache: Path | str | None = None) -> Path:
    """Where data sets are kept: ``cache``, else ``$PRIVET_DATA``, else the platform's cache folder."""
    if cache is not None:
        return Path(cache).expanduser()
    if named := os.environ.get("PRIVET_DATA"):
        return Path(named).expanduser()
    return Path(platformdirs.user_cache_dir("privet")) / "data"


def is_intact(path: Path, checksum: str) -> bool:
    """Whether a cached file is there, can be read and has this SHA-256."""
    try:
        return sha256(path) == checksum
    except OSError:
        return False


def install(staged: Path, target: Path) -> None:
    """Put a verified file in place. After a crash at any moment ``target`` is the old file, or the new one, whole."""
    with staged.open("rb+") as file:
        os.fsync(file.fileno())
    os.replace(staged, target)
    _sync_folder(target.parent)


@contextmanager
def workplace(folder: Path) -> Iterator[Path]:
    """The data set's folder, locked, with an empty ``.staging`` folder inside, which is given and later removed.

    What a killed run left in ``.staging`` is swept away. Where nothing was put in place, no folder is left behind.
    """
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    staging = folder / ".staging"
    try:
        with _lock(folder):
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir()
            try:
                yield staging
            finally:
                shutil.rmtree(staging, ignore_errors=True)
                if made and [file.name for file in folder.iterdir()] == [_LOCK]:
                    with suppress(OSError):  # not on Windows, where the holder of a lock keeps its file
                        (folder / _LOCK).unlink()
                for parent in made:
                    with suppress(OSError):  # not empty: it is in use
                        parent.rmdir()
    except OSError as error:
        raise PrivetError(
            f"The cache {folder} cannot be written ({error.strerror or error}): "
            "free some space, or set PRIVET_DATA to a folder of yours."
        ) from error


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Make ``folder`` and let one process at a time work in it; the operating system frees the lock on a crash."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # whoever held the lock before has removed the folder: make it again
            lock = Lock(folder / _LOCK, wait=True)
            break
    try:
        yield
    finally:
        lock.release()


def _sync_folder(folder: Path) -> None:
    if sys.platform != "win32":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
