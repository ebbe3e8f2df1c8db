"""The sources, and what of each is reproduced by which recipe, comparison or theorem; what cannot be run here is named, too."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

import yaml  # type: ignore[import-untyped]

from privet.io import MisfitError, build
from privet.recipes import comparison
from privet.recipes import names as recipe_names
from privet.synthesis import table as students

FIGURE = "wang-reversal"
"""The part that is a figure and no table."""


@dataclass(frozen=True)
class Part:
    """A table or a figure that is run.

    Attributes:
        name: as `privet reproduce` takes it.
        what: the source's table or figure, in words.
        beside: it is not the source's: a practical recipe for the same records, whose published figures are others'.
    """

    name: str
    what: str
    beside: bool = False

    @property
    def kind(self) -> str:
        if self.name in recipe_names():
            return "recipe"
        if self.name in comparison.names():
            return "comparison"
        if self.name in students.names():
            return "students"
        if self.name == FIGURE:
            return "figure"
        raise MisfitError(f"there is nothing to reproduce under the name {self.name!r}")


@dataclass(frozen=True)
class Check:
    """A number that follows from a formula and needs no training.

    Attributes:
        compute, arguments: a function of `privet.reproduction.formulas`, and what it is given.
        published: the source's number.
        differs: why ours is another one, where it is.
    """

    what: str
    compute: str
    arguments: dict[str, float]
    published: float
    differs: str = ""


@dataclass(frozen=True)
class Absent:
    """What cannot be run here, with the source's figure and the reason."""

    what: str
    published: str
    why: str


@dataclass(frozen=True)
class Source:
    """A publication."""

    title: str
    by: str
    parts: tuple[Part, ...] = ()
    checks: tuple[Check, ...] = ()
    absent: tuple[Absent, ...] = ()


@dataclass(frozen=True)
class _Listed:
    sources: tuple[Source, ...]


@cache
def sources() -> tuple[Source, ...]:
    """All of them, in the order of the page."""
    text = resources.files("privet.reproduction").joinpath("sources.yaml").read_text(encoding="utf-8")
    return build(_Listed, yaml.safe_load(text)).sources
