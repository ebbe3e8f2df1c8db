"""The outcome of one method, kept in its folder as soon as it is known."""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from privet.io import MisfitError, build, write_whole

FILE = "row.json"


@dataclass(frozen=True)
class Row:
    """How a method ended; what it measured is in the record of its run.

    Attributes:
        state: "done", "failed" or "left out".
        reason: why it failed or was left out.
        stopped: how the clock ended it, if it did.
        seconds, peak_megabytes: of its process.
    """

    method: str
    title: str
    state: str
    reason: str = ""
    stopped: str = ""
    seconds: float = 0.0
    peak_megabytes: float | None = None

    def done_in(self, seconds: float, peak: float | None) -> Row:
        return replace(self, seconds=round(seconds, 1), peak_megabytes=peak)

    def write(self, folder: Path) -> None:
        write_whole(folder / FILE, (json.dumps(dataclasses.asdict(self)) + "\n").encode(), mode=0o644)

    @classmethod
    def read(cls, folder: Path) -> Row | None:
        """The row that a folder holds; None where there is none that is whole."""
        try:
            return build(cls, json.loads((folder / FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, MisfitError):
            return None


def peak_megabytes() -> float | None:
    """The most memory that this process has had; None where the system does not say."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
