"""What stands on the page: chapters of sources, sections of tables, and lines with the source's number beside ours."""

from __future__ import annotations

import math
from dataclasses import dataclass

NOT_RUN = "not run yet"
FAILED = "failed"
ABSENT = "cannot be run here"


@dataclass(frozen=True)
class Entry:
    """One line.

    Attributes:
        what: the method or the network.
        quantity: "accuracy %", "AUC" or "epsilon".
        published: the source's number; None where it gives none.
        ours: the mean over seeds; None where there is none.
        std, seeds, seconds: of ours.
        at: the budget, where there is one.
        beside: whose the published number is, where it is not the source's.
        differs: the reason that the recipe states for a difference.
        command: what makes the number.
        state: empty, or why there is no number of ours.
        reason: of a failure.
        claimed: whether the epsilon of the line is only claimed.
    """

    what: str
    quantity: str
    published: float | None = None
    ours: float | None = None
    std: float | None = None
    seeds: int = 0
    seconds: float = 0.0
    at: float | None = None
    beside: str = ""
    differs: str = ""
    command: str = ""
    state: str = ""
    reason: str = ""
    claimed: bool = False

    @property
    def difference(self) -> float | None:
        return None if self.published is None or self.ours is None else self.ours - self.published

    @property
    def why(self) -> str:
        """Why ours is not the source's number; empty where there is nothing to compare."""
        if self.state:
            return f"{self.state}: {self.reason}" if self.reason else self.state
        if self.difference is None or self.published is None:
            return ""
        if abs(self.difference) <= _unit(self.published) / 2 + 1e-9:
            return "equal, to the digits that are published"
        if self.std is not None and abs(self.difference) <= 2 * self.std:
            return "within two deviations over seeds"
        return self.differs or "no reason is known"


@dataclass(frozen=True)
class Section:
    """A table or a figure of a source.

    Attributes:
        why: what the recipe says of itself.
        differs: what it says of all its lines.
        pictures: files of pictures, each with its words.
    """

    what: str
    name: str = ""
    why: str = ""
    differs: str = ""
    beside: bool = False
    entries: tuple[Entry, ...] = ()
    pictures: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Chapter:
    """A source."""

    title: str
    by: str
    sections: tuple[Section, ...]
    absent: tuple[tuple[str, str, str], ...] = ()
    """What cannot be run here: what, the source's figure, and why."""


def _unit(published: float) -> float:
    """One in the last digit that is printed; of a round number from 1,000 on, of its second digit."""
    text = f"{published:g}"
    if "." in text:
        return 10.0 ** -len(text.split(".")[1])
    return 10.0 ** (math.floor(math.log10(published)) - 1) if published >= 1000 else 1.0
