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
_LINE = re.compile(r"event [0-9a-f]{64} .+|released [0-9a-f]{64} .+|begun \d+ .+")
"""`begun` and the number of the event is what version 0.1 wrote instead of `event` and the ledger's head after it."""


class Journal:
    """Records the releases of a seeded run in its ledger, each once.

    A seeded run that is killed repeats the steps after its last checkpoint with the same noise. The same release twice is
    one release: it tells nothing that the first did not. So a step whose digest stands in the journal is not recorded
    again, and one that differs in a single bit (another version of a library, another number of threads) is.

    Formal guarantees: the ledger holds one event for each distinct release whose use began; both are on the disk before it
    begins. For each event the journal holds the ledger's head after it. A journal that knows a release whose event is not in
    the ledger is refused, whatever was cut or put back. A step that was recorded, and killed before its release was noted,
    was never used: its event stands for the first release that is.
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
            self._write(f"event {self._ledger.head_after(event)} {name}")
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
        entries = [_split(path, line) for line in whole.decode("ascii", "replace").splitlines()]
        heads = self._ledger.holds(fact for kind, fact, _ in entries if kind == "event")
        # Two steps that expect the same head: the first did not reach the ledger, or the second would expect another.
        owner = {fact: place for place, (kind, fact, _) in enumerate(entries) if kind != "released"}
        paid: dict[str, bool] = {}
        """Of each step whose newest event has no release yet, whether that event is in the ledger."""
        for place, (kind, fact, name) in enumerate(entries):
            if kind != "released":
                there = fact in heads if kind == "event" else int(fact) <= len(self._ledger)
                paid[name] = paid.get(name, False) or (there and owner[fact] == place)
            elif paid.pop(name, False):
                self._known.setdefault(name, set()).add(fact)
            else:
                raise PrivetError(
                    f"{path} knows a release of {name} whose event is not in the ledger: lines were removed from the ledger, or "
                    f"an older copy was put back. Put back the newest ledger, or start anew in another folder."
                )
        self._unused = {name for name, there in paid.items() if there}

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


def _split(path: Path, line: str) -> tuple[str, str, str]:
    if not _LINE.fullmatch(line):
        raise PrivetError(f"{path} is damaged: it says {line!r}. Start anew in another folder.")
    kind, fact, name = line.split(" ", 2)
    return kind, fact, name
