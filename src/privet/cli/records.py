"""The records that a verb works on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privet.cli.progress import fetching

if TYPE_CHECKING:
    from privet.data import Dataset


def load_records(source: str, schema: str | None = None) -> Dataset:
    """Training and test records; of data without test records a fifth is held out, always the same."""
    from privet import data

    with fetching() as progress:
        dataset = data.load(source, schema=schema or None, progress=progress)
    return data.with_test_records(dataset, source)
