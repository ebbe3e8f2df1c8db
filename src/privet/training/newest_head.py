"""The ledger's newest head, in a file beside it: lines that were cut off the ledger are missed."""

from __future__ import annotations

import os
import re
from pathlib import Path

from privet.errors import PrivetError
from privet.privacy import Ledger, LedgerError

FILE = "newest-head"


class NewestHead:
    """Keeps the head of the ledger after each step.

    Formal guarantees: a ledger that has lost a line whose step was used, and a ledger that was put back to an older copy, is
    refused, unless this file was put back or deleted too. Killed at any moment, the ledger is as new as this file or
    newer: the ledger is on the disk first.
    """

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        path = folder / FILE
        if path.exists():
            _check(path, ledger)
        try:
            self._file = path.open("r+b" if path.exists() else "x+b", buffering=0)
            self.note(ledger.head)
            os.fsync(self._file.fileno())
        except OSError as error:
            raise PrivetError(f"{path} cannot be written: {error.strerror}. Make room and resume.") from None

    def note(self, head: str) -> None:
        """Not to the disk at once: after a power failure an older head is as good, it is only nearer to the last checkpoint."""
        try:
            self._file.seek(0)
            self._file.write(head.encode() + b"\n")
        except OSError as error:
            raise PrivetError(f"{self._file.name} cannot be written: {error.strerror}. Make room and resume.") from None

    def close(self) -> None:
        self._file.close()


def _check(path: Path, ledger: Ledger) -> None:
    found = re.fullmatch(rb"([0-9a-f]{64})\n", path.read_bytes())
    if found is None:
        if not path.read_bytes():
            return  # killed when it was made
        raise PrivetError(f"{path} is damaged. Start anew in another folder.")
    if not ledger.holds({found[1].decode()}):
        raise LedgerError(
            f"Lines were removed from the ledger {ledger.path}, or an older copy was put back: the head in {path} is not in it. "
            f"Put back the newest ledger, or start anew in another folder."
        )
