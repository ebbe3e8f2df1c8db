"""Unpacking tar and zip archives without trusting them: regular files only, never outside the folder."""

import lzma
import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO

from privet.errors import InputError


def is_archive(path: Path) -> bool:
    """Whether a file is a tar (also compressed) or zip archive, judged by its content."""
    try:
        return path.is_file() and (tarfile.is_tarfile(path) or zipfile.is_zipfile(path))
    except (EOFError, zlib.error):
        return True  # compressed and cut short: unpack says so


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack the regular files of ``archive`` into ``folder`` and return it. Links and devices are left out."""
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
                    pass  # gzip checks its own sum only at the very end, which tar does not read
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's trouble, not the archive's: gzip and bz2 report a wrong content without a number
        raise InputError(f"{archive} is a damaged archive ({error}): copy or download it again.") from None
    except (NotImplementedError, RuntimeError) as error:  # zip: encrypted, or compressed in an unknown way
        raise InputError(f"{archive} cannot be unpacked ({error}): unpack it by hand and name the folder.") from None
    return folder


def _write(archive: Path, folder: Path, name: str, source: IO[bytes]) -> None:
    inner = PurePosixPath(name)
    if inner.is_absolute() or ".." in inner.parts:
        raise InputError(f"{archive} holds {name!r}, which points outside the archive: do not use it.")
    target = folder / inner
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
