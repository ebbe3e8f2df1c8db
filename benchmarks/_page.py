"""Results inside the pages of the documentation: what a run printed, between two marks, so that no number is typed."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def put(page: str, mark: str, text: str) -> None:
    """Replace what stands between ``<!-- mark -->`` and ``<!-- /mark -->`` in a page."""
    path = DOCS / page
    before, rest = path.read_text().split(f"<!-- {mark} -->\n")
    _, after = rest.split(f"<!-- /{mark} -->")
    path.write_text(f"{before}<!-- {mark} -->\n{text.strip()}\n<!-- /{mark} -->{after}")
