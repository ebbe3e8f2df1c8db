"""Work that is quick to import, for workers that are lost on purpose."""

import os
import signal
from pathlib import Path


def square(number: int, folder: Path, deadly: int = -1) -> int:
    """Small work: number 1 loses its worker once, number 3 is an error, and `deadly` loses its worker each time."""
    if number == deadly or (number == 1 and not (folder / "1").exists()):
        (folder / "1").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 3:
        raise ValueError("three")
    return number * number
