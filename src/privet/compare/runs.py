"""How each kind of method runs in a comparison: by a recipe, by artificial data, by votes, or by residual perturbation."""

from __future__ import annotations

from pathlib import Path

from privet import recipes, synthesis
from privet.compare.job import Job
from privet.data import Dataset, read_schema
from privet.methods.perturbation import ResidualPerturbation
from privet.methods.synthetic import Order
from privet.recipes.residual_run import run_residual
from privet.report import RunRecord
from privet.training.logs import OnStep

GAMMA = 0.5
"""Of residual perturbation: its paper's choices lie between 0.3 and 0.75."""


def by_recipe(
    job: Job,
    dataset: Dataset,
    out: Path,
    on_step: OnStep,
    *,
    method: str,
    recipe: str = "",
    perturbation: ResidualPerturbation | None = None,
) -> RunRecord:
    """A classifier by the job's recipe, or by one of the method's own."""
    return recipes.run(
        recipes.load(recipe) if recipe else job.recipe_for(dataset),
        dataset,
        out,
        epsilon=job.epsilon,
        delta=job.delta,
        method=method,
        options={"perturbation": perturbation} if perturbation else None,
        seed=job.seed,
        command=job.command,
        resume=True,
        source=job.source,
        schema=job.schema,
        header=job.header,
        user=job.user,
        on_step=on_step,
    )


def by_artificial_data(
    job: Job, dataset: Dataset, out: Path, on_step: OnStep, *, method: str, as_published: bool = False
) -> RunRecord:
    """Artificial data, and a student that learns from it alone."""
    schema = read_schema(Path(job.schema)) if job.schema else None
    order = Order(
        classes=len(dataset.classes),
        records=dataset.size,
        at_most=dataset.at_most,
        size=min(dataset.size, job.sizes.examples),
        epsilon=job.epsilon,
        delta=job.delta,
        seed=job.seed,
        source=dataset.name,
        columns=schema.features if schema else (),
    )
    return synthesis.run(
        synthesis.method_named(method, dataset, order, as_published=as_published),
        dataset,
        order,
        out,
        command=job.command,
        students=synthesis.default_students(dataset)[:1],
        epochs=job.sizes.student_epochs,
        source=job.source,
        schema=schema,
        schema_path=job.schema,
        header=job.header,
        user=job.user,
        on_step=on_step,
    )


def by_votes(job: Job, dataset: Dataset, out: Path, on_step: OnStep) -> RunRecord:
    """PATE; where some of the test records are its public ones, it is tested on the others."""

    def load(name: str) -> Dataset:
        # A table of public records has the columns of the private one.
        return job.load(name, job.schema if ":" in name else "")

    return recipes.run_pate(
        job.recipe_for(dataset),
        dataset,
        recipes.Public.of(job.public, dataset, job.source, load),
        out,
        epsilon=job.epsilon,
        delta=job.delta,
        seed=job.seed,
        command=job.command,
        source=job.source,
        schema=job.schema,
        header=job.header,
        user=job.user,
        on_step=on_step,
    )


def by_residual_perturbation(job: Job, dataset: Dataset, out: Path, on_step: OnStep) -> RunRecord:
    """As published: its epsilon follows from gamma and the length of the training, not from the budget."""
    return run_residual(
        dataset,
        out,
        ResidualPerturbation(GAMMA),
        members=1,
        epochs=job.sizes.residual_epochs or None,
        shrink=job.sizes.residual_shrink,
        delta=job.delta,
        seed=job.seed,
        command=job.command,
        source=job.source,
        schema=job.schema,
        header=job.header,
        on_step=on_step,
    )
