"""Compressed files and archives that the user gives: unpacked up to a limit that is known before."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, cast

from privet.errors import InputError
from privet.io import in_bytes, kind_of

UNPACKED_LIMIT = 2 << 30
"""Bytes that one compressed file or archive may unpack to: ten times the largest data set of the catalog."""

FILES_LIMIT = 100_000
"""Files that one archive may contain."""

LARGEST_READ = 64 << 20
"""Bytes that tarfile may ask for at once. It keeps whole headers in memory, and true ones are a few kilobytes."""

_DAMAGE = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Limited:
    """A compressed file as it reads when unpacked, up to `UNPACKED_LIMIT` bytes.

    Formal guarantees: at most that many bytes are unpacked, whatever the file claims about its size.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._file = path, file

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > LARGEST_READ:
            size = LARGEST_READ + 1
        piece = self._file.read(size)
        if len(piece) > LARGEST_READ:
            raise InputError(f"{self._path} is a damaged archive (a header is too large): copy or download it again.")
        self._check(self._file.tell())
        return piece

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_SET:
            self._check(place)
        elif whence == os.SEEK_CUR:
            self._check(self.tell() + place)
        return self._file.seek(place, whence)

    def tell(self) -> int:
        return self._file.tell()

    def _check(self, count: int) -> None:
        if count > UNPACKED_LIMIT:
            raise too_large(self._path)


def too_large(path: Path) -> InputError:
    return InputError(
        f"{path} unpacks to more than {in_bytes(UNPACKED_LIMIT)}, the limit for a compressed file: if you trust it, unpack it "
        "by hand and name the folder."
    )


def gunzipped(path: Path, file: BinaryIO) -> BinaryIO:
    """A file as it reads after `gunzip`, up to the limit; as it is if it is not compressed with gzip."""
    zipped = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return cast(BinaryIO, Limited(path, cast("IO[bytes]", gzip.GzipFile(fileobj=file)))) if zipped else file


def copy(source: IO[bytes] | BinaryIO, target: IO[bytes]) -> int:
    """Copy all bytes and return their number."""
    done = 0
    while piece := source.read(1 << 20):
        done += target.write(piece)
    return done


@contextmanager
def _unpacked_tar(path: Path) -> Iterator[tarfile.TarFile]:
    """Open a tar archive, plain or compressed, behind the limit. Raises TarError if it is none."""
    with path.open("rb") as file:
        magic = file.read(6)
        file.seek(0)
        opened: Any = file
        if magic.startswith(b"\x1f\x8b"):
            opened = gzip.GzipFile(fileobj=file)
        elif magic.startswith(b"BZh"):
            opened = bz2.BZ2File(file)
        elif magic.startswith((b"\xfd7zXZ\0", b"]\0\0")):
            opened = lzma.LZMAFile(file)  # noqa: SIM115 - it is closed with the file
        with tarfile.open(fileobj=cast("IO[bytes]", Limited(path, opened)), mode="r:") as tarred:
            yield tarred


def is_archive(path: Path) -> bool:
    """Whether a file is a zip or tar archive (also compressed), judged by its content."""
    if kind_of(path) != "file":
        return False
    try:
        if zipfile.is_zipfile(path):
            return True
        with _unpacked_tar(path):
            return True
    except (InputError, *_DAMAGE):
        return True  # truncated or too large: `unpack` reports it
    except (tarfile.TarError, OSError, ValueError):  # bz2 reports content that is none of its own as an OSError
        return False


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack the regular files of ``archive`` into ``folder`` and return it.

    Formal guarantees: nothing is written outside of ``folder``; links and devices are left out; at most `FILES_LIMIT` files
    and `UNPACKED_LIMIT` bytes are written, whatever sizes the archive claims.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                _unpack_zip(archive, folder, zipped)
        else:
            with _unpacked_tar(archive) as tarred:
                _unpack_tar(archive, folder, tarred)
    except InputError:
        raise
    except (tarfile.TarError, zipfile.BadZipFile, *_DAMAGE, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # a problem of the disk and not of the archive: gzip and bz2 report bad content without a number
        raise InputError(f"{archive} is a damaged archive ({error}): copy or download it again.") from None
    except (NotImplementedError, RuntimeError) as error:  # zip: encrypted, or compressed in an unknown way
        raise InputError(f"{archive} cannot be unpacked ({error}): unpack it by hand and name the folder.") from None
    except (ValueError, OverflowError, MemoryError):  # numbers and names that no true archive has
        raise InputError(f"{archive} is a damaged archive: copy or download it again.") from None
    return folder


def _unpack_zip(archive: Path, folder: Path, zipped: zipfile.ZipFile) -> None:
    entries = [entry for entry in zipped.infolist() if not entry.is_dir()]
    _check_count(archive, len(entries))
    if sum(entry.file_size for entry in entries) > UNPACKED_LIMIT:
        raise too_large(archive)
    done = 0
    for entry in entries:
        with zipped.open(entry) as source:
            done = _write(archive, folder, entry.filename, source, done)


def _unpack_tar(archive: Path, folder: Path, tarred: tarfile.TarFile) -> None:
    done = 0
    for number, member in enumerate(tarred, 1):
        _check_count(archive, number)
        if member.isfile() and (content := tarred.extractfile(member)) is not None:
            if member.size > UNPACKED_LIMIT:
                raise too_large(archive)
            done = _write(archive, folder, member.name, content, done)
    while tarred.fileobj is not None and tarred.fileobj.read(1 << 20):
        pass  # gzip checks its checksum only at the very end, which tar does not read


def _check_count(archive: Path, count: int) -> None:
    if count > FILES_LIMIT:
        raise InputError(
            f"{archive} contains more than {FILES_LIMIT:,} files, the limit for an archive: if you trust it, unpack it by hand "
            "and name the folder."
        )


def _write(archive: Path, folder: Path, name: str, source: IO[bytes], done: int) -> int:
    """Write one file of an archive; returns how many bytes are unpacked, `done` of them before."""
    inner = PurePosixPath(name)
    if inner.is_absolute() or ".." in inner.parts or os.path.isabs(name):
        raise InputError(f"{archive} contains {name[:80]!r}, which points outside the archive: do not use it.")
    if "\0" in name or max(map(len, (os.fsencode(part) for part in inner.parts)), default=0) > 255 or len(name) > 1000:
        raise InputError(f"{archive} contains a file whose name is too long or has a NUL: unpack it by hand.")
    target = folder / inner
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        file = target.open("wb")
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise InputError(f"{archive} contains a file and a folder of the same name: unpack it by hand.") from None
    with file:
        while piece := source.read(1 << 20):
            done += file.write(piece)
            if done > UNPACKED_LIMIT:
                raise too_large(archive)
    return done
