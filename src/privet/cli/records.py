"""The records that a verb works on."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.cli.progress import fetching
from privet.errors import PrivetWarning

if TYPE_CHECKING:
    from privet.data import Dataset
    from privet.report import DataSummary, OtherRun, RunRecord

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
        "--unprotected-test",
        help="The test part of the data needs no protection: measure on it exactly, without noise.",
    ),
]
Users = Annotated[
    str,
    typer.Option(
        "--users",
        metavar="COLUMN",
        help="For csv: and parquet: the column that says whose a row is. A user is then protected with all their rows, and "
        "--public-size counts users. A schema can name it as user.",
    ),
]
NoHeader = Annotated[
    bool,
    typer.Option(
        "--no-header", help="For csv: the first row is a record; columns are those of the schema, in its order."
    ),
]


def load_records(
    source: str, schema: Path | str | None = None, *, no_header: bool = False, users: str = "", **given: Any
) -> Dataset:
    """Training and test records; `given` goes to `privet.data.with_test_records`."""
    from privet import data

    with fetching() as progress:
        dataset = data.load(source, schema=schema or None, header=not no_header, user=users, progress=progress)
    return data.with_test_records(dataset, source, **given)


def load_again(about: DataSummary) -> Dataset:
    """The records of a run, divided as the run divided them."""
    divided = about.unprotected and about.measured_share > 0
    return load_records(
        about.source or about.name,
        about.schema,
        no_header=not about.header,
        users=about.user,
        hold_out=about.measured_share if divided else None,
        unprotected_test=about.unprotected and not divided,
    )


def others_on(dataset: Dataset, out: Path, named: Sequence[Path] = ()) -> tuple[OtherRun, ...]:
    """The other runs on these records beside `out`, however they divided the file."""
    from privet.report import find_others
    from privet.report.others import distinct

    marks = dict.fromkeys((dataset.origin, dataset.fingerprint))  # version 0.1.0 wrote that of the divided file
    return distinct([run for mark in marks for run in find_others(out, mark, named)])


def say_who_is_unprotected(dataset: Dataset) -> None:
    """One of the first lines of output, on the error stream, so that JSON stays JSON."""
    if not dataset.unprotected:
        return
    share = dataset.measured_share
    who = f"the hold-out, about {100 * share:g} % of the {dataset.train.unit}s" if share else "the test records"
    also = ""
    if dataset.train.unit == "user" and not share:
        also = " A user who is in both parts is protected for the training records alone."
    typer.echo(f"NOT PROTECTED: {who}. The statement is about the others alone.{also}", err=True)


def say_of_run(record: RunRecord) -> None:
    """Whom the statement of a run leaves out, and whether it may be released; on the error stream."""
    from privet.report.statement import not_for_release

    for said in (not_for_release(record), record.data.who_is_unprotected):
        if said:
            typer.echo(said, err=True)


def choose_delta(delta: float | None, dataset: Dataset) -> float:
    """The delta that was given, or the usual one for the public number of records; warns where it is too large."""
    from privet.privacy import delta_warning, usual_delta

    chosen = usual_delta(dataset.protected) if delta is None else delta
    if said := delta_warning(chosen, dataset.protected, dataset.train.unit):
        typer.echo(f"privet: {said}", err=True)
        warnings.filterwarnings("ignore", "delta = .* is not below 1/N", PrivetWarning)  # it was said already
    return chosen
