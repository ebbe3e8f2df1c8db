"""Reading files and archives that the user gives; each failure is one sentence that says what to do."""

from __future__ import annotations

import hashlib
import lzma
import os
import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

from privet.errors import InputError


def unreadable(path: Path, error: OSError) -> InputError:
    """The error for a path that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path} does not exist: check the path.")
    if isinstance(error, IsADirectoryError):
        return InputError(f"{path} is a folder where a file is expected: name the file inside it.")
    if isinstance(error, NotADirectoryError):
        return InputError(f"{path} is a file where a folder is expected: name the folder that holds it.")
    if isinstance(error, PermissionError):
        return InputError(f"{path} cannot be read (permission denied): ask its owner, or copy it to a folder of yours.")
    return InputError(f"{path} cannot be read ({error.strerror or error}): check the disk, or copy it elsewhere.")


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading. Raises InputError if it is missing, a folder, not readable or empty."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from None
    if os.fstat(file.fileno()).st_size == 0:
        file.close()
        raise InputError(f"{path} is empty: copy or download it again.")
    return file


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, without a byte order mark."""
    with open_file(path) as file:
        raw = file.read()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: not UTF-8 text: save the file as UTF-8 and try again.") from None


def list_folder(path: Path) -> list[Path]:
    """The files and folders in a folder, sorted by name, without hidden ones."""
    try:
        return sorted(child for child in path.iterdir() if not child.name.startswith("."))
    except OSError as error:
        raise unreadable(path, error) from None


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_archive(path: Path) -> bool:
    """Whether a file is a zip or tar archive (also compressed), judged by its content."""
    try:
        return path.is_file() and (tarfile.is_tarfile(path) or zipfile.is_zipfile(path))
    except (EOFError, zlib.error):
        return True  # compressed and truncated: `unpack` reports it


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack the regular files of ``archive`` into ``folder`` and return it; never outside of it, and no links or devices."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                for entry in zipped.infolist():
                    if not entry.is_dir():
                        with zipped.open(entry) as source:
                            _write(archive, folder, entry.filename, source)
        else:
            with tarfile.open(archive) as tarred:
                for member in tarred:
                    if member.isfile() and (content := tarred.extractfile(member)) is not None:
                        _write(archive, folder, member.name, content)
                while tarred.fileobj is not None and tarred.fileobj.read(1 << 20):
                    pass  # gzip checks its checksum only at the very end, which tar does not read
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # a problem of the disk and not of the archive: gzip and bz2 report bad content without a number
        raise InputError(f"{archive} is a damaged archive ({error}): copy or download it again.") from None
    except (NotImplementedError, RuntimeError) as error:  # zip: encrypted, or compressed in an unknown way
        raise InputError(f"{archive} cannot be unpacked ({error}): unpack it by hand and name the folder.") from None
    return folder


def _write(archive: Path, folder: Path, name: str, source: IO[bytes]) -> None:
    inner = PurePosixPath(name)
    if inner.is_absolute() or ".." in inner.parts:
        raise InputError(f"{archive} contains {name!r}, which points outside the archive: do not use it.")
    target = folder / inner
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
