"""Opening what the user gave: every way it can fail becomes one sentence with the way out."""

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from privet.errors import InputError


def unreadable(path: Path, error: OSError) -> InputError:
    """The sentence for a path that the operating system will not let us read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path} does not exist: check the path.")
    if isinstance(error, IsADirectoryError):
        return InputError(f"{path} is a folder where a file is expected: name the file inside it.")
    if isinstance(error, NotADirectoryError):
        return InputError(f"{path} is a file where a folder is expected: name the folder that holds it.")
    if isinstance(error, PermissionError):
        return InputError(f"{path} may not be read (permission denied): ask its owner, or copy it to a place of yours.")
    return InputError(f"{path} cannot be read ({error.strerror or error}): check the disk, or copy it elsewhere.")


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading. Raises InputError where it is missing, a folder, not readable or empty."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from None
    if os.fstat(file.fileno()).st_size == 0:
        file.close()
        raise InputError(f"{path} is empty: copy or download it again.")
    return file


def read_text(path: Path) -> str:
    """The text of a UTF-8 file (a byte order mark is dropped)."""
    with open_file(path) as file:
        raw = file.read()
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: not UTF-8 text: save the file as UTF-8 and try again.") from None


def list_folder(path: Path) -> list[Path]:
    """What a folder holds, sorted by name, hidden files left out."""
    try:
        return sorted(child for child in path.iterdir() if not child.name.startswith("."))
    except OSError as error:
        raise unreadable(path, error) from None


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
