"""One process for one run: a lock on its folder, which the operating system lifts when the process dies."""

from __future__ import annotations

import os
from pathlib import Path

from privet.errors import PrivetError

FILE = "lock"


class RunLock:
    """Holds ``folder/lock``; a second holder is refused. The file stays, and means nothing on its own."""

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = None
        try:
            self._descriptor = os.open(folder / FILE, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise PrivetError(f"The folder {folder} cannot be written: {error.strerror}.") from None
        try:
            _take(self._descriptor)
        except OSError:
            os.close(self._descriptor)
            self._descriptor = None
            raise PrivetError(
                f"The run in {folder} is being continued by another process, or by an earlier run of this one: wait for it, "
                f"or end it with private.close()."
            ) from None

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            self.release()


def _take(descriptor: int) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
