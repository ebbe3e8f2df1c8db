"""Files that somebody else wrote: opened, decoded and parsed so that each failure is one sentence that says what to do.

Nothing in such a file is trusted: neither its size, nor how deep it is nested, nor its numbers.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from privet.errors import InputError
from privet.io.plain import MisfitError

TEXT_LIMIT = 64 << 20
"""Bytes of a text file that is read at once."""

YAML_LIMIT = 1 << 20
"""Characters of a YAML file: its parser takes about a minute for ten times as many."""

DEEPEST = 40
"""Levels of lists and objects inside each other; what Privet writes has fewer than ten."""

MOST_FOLDERS = 10_000
"""Folders inside the folder of a comparison."""

MOST_MERGED = 10_000
"""Entries that the merge keys of a YAML file may copy."""

MOST_ITEMS = 4_000_000
"""Values in a parsed file, each alias of YAML counted as what it stands for."""


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
    if error.errno == errno.ELOOP:
        return InputError(f"{path} is a link that leads back to itself: name the file that is meant.")
    if error.errno == errno.ENAMETOOLONG:
        return InputError(f"The path {str(path)[:40]!r}... is too long for the system: check it, or rename the file.")
    return InputError(f"{path} cannot be read ({error.strerror or error}): check the disk, or copy it elsewhere.")


def user_path(text: Path | str) -> Path:
    """A path that the user typed, with ``~`` replaced. Raises InputError if no file can have this name."""
    if "\0" in str(text):
        raise InputError(f"{str(text)!r} has a NUL character, which no path has: check it.")
    check_unicode(text)
    try:
        return Path(text).expanduser()
    except RuntimeError:  # there is no such user
        raise InputError(
            f"{text} begins with the name of a user who is not known here: write the whole path."
        ) from None


def check_unicode(*texts: Path | str) -> None:
    """Raise InputError for the name of a file, or another text, that is not Unicode.

    Records, cards and accounts hold names and are UTF-8, so that a run could be paid for and then not be written.
    """
    for text in texts:
        if not _is_unicode(str(text)):
            raise InputError(f"{str(text)!a} is not UTF-8, as what Privet writes is: rename it.")


def kind_of(path: Path) -> str:
    """Whether a path is a "file" or a "folder". Raises InputError for everything else, such as a pipe or a device."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno == errno.ENOENT and os.path.islink(path):
            raise InputError(f"{path} is a link to a file that does not exist: name the file that is meant.") from None
        raise unreadable(path, error) from None
    if stat.S_ISDIR(mode):
        return "folder"
    if not stat.S_ISREG(mode):
        raise InputError(f"{path} is a pipe, a device or a socket: save its content to a file, and name the file.")
    return "file"


def open_file(path: Path) -> BinaryIO:
    """Open a file for reading. Raises InputError if it is missing, a folder, a pipe or device, not readable or empty."""
    if kind_of(path) == "folder":
        raise unreadable(path, IsADirectoryError())
    try:
        file = path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from None
    if os.fstat(file.fileno()).st_size == 0:
        file.close()
        raise InputError(f"{path} is empty: copy or download it again.")
    return file


def read_text(path: Path, limit: int = TEXT_LIMIT) -> str:
    """The text of a UTF-8 file of at most `limit` bytes, without a byte order mark."""
    with open_file(path) as file:
        raw = file.read(limit + 1)
    if len(raw) > limit:
        raise InputError(f"{path} is larger than {in_bytes(limit)}, the limit for such a file: check which file it is.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_text(path, raw.count(b"\n", 0, error.start) + 1) from None


def not_text(path: Path, line: int) -> InputError:
    return InputError(f"{path}, line {line}: not UTF-8 text: save the file as UTF-8 and try again.")


def in_bytes(count: int) -> str:
    """A number of bytes for messages: 2 GiB, 64 MiB."""
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} bytes"


def list_folder(path: Path) -> list[Path]:
    """The files and folders in a folder, sorted by name, without hidden ones."""
    try:
        return sorted(child for child in path.iterdir() if not child.name.startswith("."))
    except OSError as error:
        raise unreadable(path, error) from None


def check_inside(folder: Path) -> None:
    """Refuse the folder of a run that contains links, pipes or devices: nothing is read or written outside of it.

    The folder itself may be a link. Its subfolders are checked, too, as deep as a run or a comparison has them.
    """
    for depth, (root, folders, files) in enumerate(os.walk(folder)):
        for name in (*folders, *files):
            mode = os.lstat(os.path.join(root, name)).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                what = "a link" if stat.S_ISLNK(mode) else "a pipe, a device or a socket"
                raise InputError(
                    f"{os.path.join(root, name)} is {what}, and Privet follows none in the folder of a run: put the file or "
                    "folder itself there, or remove it."
                )
        if depth > MOST_FOLDERS:
            raise InputError(f"{folder} has more than {MOST_FOLDERS:,} folders: give the folder of one run.")


def printable(text: str, most: int = 0) -> str:
    """A text from elsewhere for a terminal: without control characters and escapes, in one line, of at most `most` characters."""
    clean = _ESCAPES.sub("", text.encode("utf-8", "replace").decode("utf-8"))
    clean = "".join(letter if letter.isprintable() else " " for letter in clean)
    return f"{clean[: most - 3]}..." if most and len(clean) > most else clean


_ESCAPES = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[ -~])|\x9b[0-?]*[ -/]*[@-~]")
"""The sequences that a terminal takes for commands: colors, titles, links, movements."""


def from_json(text: str, largest: int = 1 << 1023) -> Any:
    """The content of a JSON text.

    Raises `json.JSONDecodeError` if it is not JSON, and `MisfitError` for what no reader expects: more than `DEEPEST` levels,
    NaN, infinite numbers, integers from `largest` on, and texts that are not Unicode.
    """
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        if isinstance(error, MisfitError):
            raise
        raise MisfitError("it has a number with too many digits") from None
    check_plain(found, largest)
    return found


def _no_constant(name: str) -> Any:
    raise MisfitError(f"it has the number {name}, which JSON does not have")


def _too_deep() -> MisfitError:
    return MisfitError(f"it is nested more than {DEEPEST} levels deep")


def check_plain(content: Any, largest: int = 1 << 1023) -> None:
    """Raise `MisfitError` unless parsed content is of ordinary size: see `from_json`."""
    level: list[Any] = [content]
    for _ in range(DEEPEST + 1):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += item.keys()
                inner += item.values()
            elif isinstance(item, list):
                inner += item
            elif isinstance(item, str):
                if not _is_unicode(item):
                    raise MisfitError("it has a text that is not Unicode")
            elif isinstance(item, float) and not math.isfinite(item):
                raise MisfitError("it has a number that is NaN or infinite")
            elif isinstance(item, int) and abs(item) >= largest:
                raise MisfitError("it has a number with too many digits")
            if len(inner) > MOST_ITEMS:
                raise MisfitError(f"it has more than {MOST_ITEMS:,} values")
        if not inner:
            return
        level = inner
    raise _too_deep()


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def from_yaml(text: str) -> Any:
    """The content of a YAML text of plain values. Raises `MisfitError`, with the line where it is known.

    Aliases are allowed. A key that is given twice, and more than `MOST_MERGED` entries copied by merge keys, are refused.
    """
    if len(text) > YAML_LIMIT:
        raise MisfitError(f"it is longer than {YAML_LIMIT:,} characters, the limit for YAML")
    yaml = import_module("yaml")
    try:
        found = yaml.load(text, _loader())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise MisfitError(f"it is not valid YAML (see {f'line {mark.line + 1}' if mark else 'its form'})") from None
    except MisfitError:
        raise
    except RecursionError:
        raise _too_deep() from None
    except (ValueError, OverflowError, TypeError, AttributeError, KeyError):
        raise MisfitError("it has a number or a date that is not valid") from None
    check_plain(found)
    return found


@cache
def _loader() -> Any:
    yaml = import_module("yaml")

    class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
        """PyYAML's safe loader with limits."""

        def __init__(self, text: str) -> None:
            super().__init__(text)
            self.known: set[int] = set()

        def flatten_mapping(self, node: Any) -> None:
            line = node.start_mark.line + 1
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if id(node) not in self.known and len(keys) > len(set(keys)):
                raise MisfitError(f"it has a key twice in the table that begins in line {line}")
            self.known.add(id(node))
            merged = [value for key, value in node.value if key.tag == "tag:yaml.org,2002:merge"]
            if any(isinstance(value, yaml.SequenceNode) and len(value.value) > 100 for value in merged):
                raise MisfitError(f"it merges more than 100 tables in line {line}")
            super().flatten_mapping(node)
            if merged and len(node.value) > MOST_MERGED:
                raise MisfitError(f"it merges more than {MOST_MERGED:,} entries in line {line}")

    return Loader
