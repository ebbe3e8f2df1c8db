"""The methods that can be compared: each knows which records it fits and how to run on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from privet import recipes, synthesis
from privet.compare.job import Job
from privet.data import Dataset, read_schema
from privet.methods.synthetic import Order
from privet.recipes.methods import METHODS
from privet.report import RunRecord
from privet.training.standing import OnStep

MOST_EXAMPLES = 30_000

Run = Callable[[Job, Dataset, Path, OnStep], RunRecord]


def _everything(dataset: Dataset) -> str:
    return ""


@dataclass(frozen=True)
class Entrant:
    """A method in a comparison.

    Attributes:
        key: its name on the command line and its folder.
        title: its name on a page.
        run: trains, attacks, and leaves a run in the folder.
        why_not: why the method does not fit these records; empty if it does.
        resumes: whether a run that was stopped goes on; one that does not is started anew beside it.
        by_default: whether it takes part where no methods are named.
    """

    key: str
    title: str
    run: Run
    why_not: Callable[[Dataset], str] = _everything
    resumes: bool = True
    by_default: bool = True


def _by_recipe(method: str, job: Job, dataset: Dataset, out: Path, on_step: OnStep) -> RunRecord:
    return recipes.run(
        job.recipe_for(dataset),
        dataset,
        out,
        epsilon=job.epsilon,
        delta=job.delta,
        method=method,
        seed=job.seed,
        command=job.command,
        resume=True,
        source=job.source,
        schema=job.schema,
        on_step=on_step,
    )


def _synthetic(method: str, job: Job, dataset: Dataset, out: Path, on_step: OnStep) -> RunRecord:
    order = Order(
        classes=len(dataset.classes),
        size=min(len(dataset.train), MOST_EXAMPLES),
        epsilon=job.epsilon,
        delta=job.delta,
        seed=job.seed,
        source=dataset.name,
    )
    return synthesis.run(
        synthesis.method_named(method, dataset, order),
        dataset,
        order,
        out,
        command=job.command,
        source=job.source,
        schema=read_schema(Path(job.schema)) if job.schema else None,
        schema_path=job.schema,
        on_step=on_step,
    )


_TRAINED = (
    "dpsgd",
    "optimized-noise-elliptical",
    "optimized-noise-isotropic",
    "optimized-noise",
    "optimized-noise-published",
)

ENTRANTS: dict[str, Entrant] = {key: Entrant(key, METHODS[key].title, partial(_by_recipe, key)) for key in _TRAINED}
ENTRANTS |= {
    "synthetic-moments": Entrant(
        "synthetic-moments",
        "One-shot synthesis: a student of artificial data by class moments",
        partial(_synthetic, "moments"),
        resumes=False,
    ),
}


def entrants_for(dataset: Dataset) -> tuple[dict[str, Entrant], dict[str, str]]:
    """Those that take part by default, and of the others why the records do not fit."""
    fitting, left_out = {}, {}
    for key, entrant in ENTRANTS.items():
        reason = entrant.why_not(dataset)
        if reason:
            left_out[key] = reason
        elif entrant.by_default:
            fitting[key] = entrant
    return fitting, left_out
