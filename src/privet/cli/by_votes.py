"""`privet train --method pate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privet.cli.progress import training
from privet.cli.records import load_records

if TYPE_CHECKING:
    from privet.data import Dataset
    from privet.recipes import Recipe
    from privet.report import RunRecord


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
