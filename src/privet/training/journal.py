"""What a seeded run released, step by step: so that a repeated step is known to be the same one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from privet.errors import PrivetError
from privet.privacy import Event, Ledger
from privet.training.checkpoint import digest

FILE = "released.txt"
_LINE = re.compile(r"begun \d+ .+|released [0-9a-f]{64} .+")


class Journal:
    """Records the releases of a seeded run in its ledger, each once.

    A seeded run that is killed repeats the steps after its last checkpoint with the same noise. The same release twice is
    one release: it tells nothing that the first did not. So a step whose digest stands in the journal is not recorded
    again, and one that differs in a single bit (another version of a library, another number of threads) is.

    Formal guarantees: the ledger holds one event for each distinct release whose use began; both are on the disk before it
    begins. A step that was recorded, and killed before its release was noted, was never used: its event stands for the
    first release that is.
    """

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[str, set[str]] = {}
        self._unused: set[str] = set()
        """The steps whose event is in the ledger and whose release was never used."""
        path = folder / FILE
        if path.exists():
            self._read(path)
        self._file = path.open("a", encoding="ascii")

    def record(self, name: str, event: Event, released: Mapping[str, Tensor]) -> None:
        found = digest(released)
        if found in self._known.get(name, ()):
            return
        if name not in self._unused:
            line = len(self._ledger) + 1
            self._write(f"begun {line} {name}")
            self._ledger.record(event)
        self._write(f"released {found} {name}", durable=True)
        self._unused.discard(name)
        self._known.setdefault(name, set()).add(found)

    def holds(self, name: str) -> bool:
        """Whether the ledger holds an event for that step already."""
        return name in self._known or name in self._unused

    def close(self) -> None:
        self._file.close()

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with path.open("r+b") as file:
                file.truncate(len(whole))  # a line that was being written when the process died
        begun: dict[int, str] = {}
        for entry in whole.decode("ascii", "replace").splitlines():
            if not _LINE.fullmatch(entry):
                raise PrivetError(f"{path} is damaged: it says {entry!r}. Start anew in another folder.")
            kind, fact, name = entry.split(" ", 2)
            if kind == "released":
                self._known.setdefault(name, set()).add(fact)
                begun = {line: other for line, other in begun.items() if other != name}
            else:
                begun[int(fact)] = name  # the same line again: the first time it did not reach the ledger
        self._unused = {name for line, name in begun.items() if line <= len(self._ledger)}

    def _write(self, line: str, *, durable: bool = False) -> None:
        try:
            self._file.write(line + "\n")
            self._file.flush()
            if durable:
                os.fsync(self._file.fileno())
        except OSError as error:
            # What reached the disk is unknown now: nothing may be appended behind a possibly torn line.
            with suppress(OSError):
                self._file.close()
            raise PrivetError(f"{self._file.name} cannot be written: {error.strerror}. Make room and resume.") from None
