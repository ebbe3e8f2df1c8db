"""`privet train --method pate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privet.cli.progress import training
from privet.cli.records import load_records
from privet.errors import InputError

if TYPE_CHECKING:
    from privet.data import Dataset
    from privet.recipes import Recipe
    from privet.report import RunRecord


def check_voting(pate: bool, public: str | None, given: object, resume: bool) -> None:
    """What belongs to PATE is given with it and with nothing else."""
    if not pate:
        if public is not None or given:
            raise InputError("--public, --teachers, --queries and --sure belong to --method pate.")
        return
    if public is None:
        raise InputError(
            "--method pate needs public records without labels: give --public with a number of test records or a data set."
        )
    if resume:
        raise InputError(
            "--method pate is not resumed: its answers are released at once; give another folder with --out."
        )


def train_by_votes(
    recipe: Recipe,
    dataset: Dataset,
    out: Path,
    *,
    public: str,
    teachers: int | None,
    queries: int | None,
    sure: tuple[float, float] | None,
    **given: Any,
) -> RunRecord:
    """Run PATE with bars on the error stream."""
    from privet import recipes
    from privet.methods.pate import usual_teachers
    from privet.methods.voting import Confidence, Voting

    voting = Voting(
        teachers or usual_teachers(dataset.size, given["epsilon"]),
        Confidence(*sure) if sure is not None else None,
    )
    # A table of public records has the columns of the private one.
    named = recipes.Public.of(
        public, dataset, given["source"], lambda name: load_records(name, given["schema"] if ":" in name else None)
    )
    with training(given["delta"]) as show:
        return recipes.run_pate(
            recipe,
            dataset,
            named,
            out,
            voting=voting,
            queries=queries,
            command=("privet", *sys.argv[1:]),
            on_step=show,
            progress=lambda what, done, total: show({"what": what, "step": done, "steps": total}),
            **given,
        )
