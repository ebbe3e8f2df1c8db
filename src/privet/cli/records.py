"""The records that a verb works on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.cli.progress import fetching

if TYPE_CHECKING:
    from privet.data import Dataset

PublicSize = Annotated[
    int | None,
    typer.Option(
        help="How many records there are, as far as that is public: rate, steps and delta follow from it. Without it the "
        "true number is taken as public. Of data with a test part of its own: how many training records.",
        min=1,
    ),
]
HoldOut = Annotated[
    float | None,
    typer.Option(
        help="Hold out this share of the records WITHOUT protection and measure on it exactly. Without it all records are "
        "protected, and a fifth is measured on with noise."
    ),
]
UnprotectedTest = Annotated[
    bool,
    typer.Option(
        "--unprotected-test", help="The test part of the data needs no protection: measure on it exactly, without noise."
    ),
]
NoHeader = Annotated[
    bool,
    typer.Option("--no-header", help="For csv: the first row is a record; columns are those of the schema, in its order."),
]


def load_records(source: str, schema: Path | str | None = None, *, no_header: bool = False, **given: Any) -> Dataset:
    """Training and test records; `given` goes to `privet.data.with_test_records`."""
    from privet import data

    with fetching() as progress:
        dataset = data.load(source, schema=schema or None, header=not no_header, progress=progress)
    return data.with_test_records(dataset, source, **given)
