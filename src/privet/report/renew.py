"""Everything that follows from a run's record and ledger, made again."""

from __future__ import annotations

from pathlib import Path

from privet.report.card import write_card
from privet.report.page import write_page


def renew(folder: Path) -> Path:
    """Write the card and the page of a run folder; gives the page."""
    write_card(folder)
    return write_page(folder)
