"""The page of the reproduction: one self-contained HTML file, and the same as Markdown."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from jinja2 import ChoiceLoader, PackageLoader

from privet.io import write_whole
from privet.report.page import environment
from privet.reproduction.chapters import ACCURACY, AREA
from privet.reproduction.entry import Chapter, Entry, Section

FILE = "reproduced.html"
_DIGITS = {ACCURACY: 2, AREA: 3}
_TYPES = {".jpg": "image/jpeg", ".png": "image/png", ".svg": "image/svg+xml"}


def write_reproduction(chapters: Sequence[Chapter], results: Path, out: Path) -> Path:
    """Write `reproduced.html` into `out`, whole or not at all; `results` holds the pictures."""
    made = environment()
    made.loader = ChoiceLoader([PackageLoader("privet.reproduction"), PackageLoader("privet.report")])
    made.filters |= {"published": published, "ours": ours, "difference": difference}
    entries = [entry for chapter in chapters for section in chapter.sections for entry in section.entries]
    text = made.get_template("reproduced.html.j2").render(
        chapters=chapters,
        compared=[entry for entry in entries if entry.difference is not None],
        done=[entry for entry in entries if not entry.state],
        entries=entries,
        pictures={name: _address(results / name) for c in chapters for s in c.sections for name, _ in s.pictures},
    )
    out.mkdir(parents=True, exist_ok=True)
    return write_whole(out / FILE, text.encode(), mode=0o644)


def _address(path: Path) -> str:
    """An address that holds the picture itself."""
    return f"data:{_TYPES[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"


def number(value: float | None, quantity: str) -> str:
    """As many digits as the quantity deserves."""
    if value is None:
        return ""
    if quantity in _DIGITS:
        return f"{value:.{_DIGITS[quantity]}f}"
    return f"{value:.4g}" if value < 1000 else f"{value:,.0f}"


def published(entry: Entry) -> str:
    return (
        ""
        if entry.published is None
        else f"{entry.published:,g}"
        if entry.published < 1000
        else f"{entry.published:,.0f}"
    )


def ours(entry: Entry) -> str:
    spread = f" ± {number(entry.std, entry.quantity)}" if entry.std is not None else ""
    return f"{number(entry.ours, entry.quantity)}{spread}"


def difference(entry: Entry) -> str:
    if entry.difference is None:
        return ""
    digits = _DIGITS.get(entry.quantity)
    small = f"{entry.difference:+.3g}" if digits is None else f"{round(entry.difference, digits) + 0.0:+.{digits}f}"
    return small if abs(entry.difference) < 1000 else f"{entry.difference:+,.0f}"


def markdown(chapters: Sequence[Chapter], level: int = 2) -> str:
    """The same for a terminal and for the documentation."""
    lines: list[str] = []
    for chapter in chapters:
        lines += [f"{'#' * level} {chapter.by}: {chapter.title}", ""]
        for section in chapter.sections:
            lines += _section(section, level + 1)
        if chapter.absent:
            lines += [f"{'#' * (level + 1)} Not run here", "", "| what | published | why not |", "|---|---|---|"]
            lines += [f"| {what} | {figure} | {why} |" for what, figure, why in chapter.absent]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _section(section: Section, level: int) -> list[str]:
    name = f" (`{section.name}`)" if section.name else ""
    lines = [f"{'#' * level} {section.what}{name}", ""]
    if section.beside:
        lines += ["Not the source's: it stands beside.", ""]
    if section.differs:
        lines += [section.differs, ""]
    lines += [
        "| what | | epsilon | published | ours | difference | seeds | why they differ |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_line(entry) for entry in section.entries]
    commands = list(dict.fromkeys(entry.command for entry in section.entries if entry.command))
    if commands:
        lines += ["", "```sh", *commands, "```"]
    return [*lines, ""]


def _line(entry: Entry) -> str:
    at = f"{entry.at:g}" if entry.at else ""
    whose = f" ({entry.beside})" if entry.beside else ""
    seeds = str(entry.seeds) if entry.seeds else ""
    claimed = " (claimed, not proved)" if entry.claimed and "claimed" not in entry.what else ""
    cells = (
        f"{entry.what}{claimed}",
        entry.quantity,
        at,
        f"{published(entry)}{whose}",
        ours(entry),
        difference(entry),
        seeds,
        entry.why,
    )
    return f"| {' | '.join(cells)} |"
