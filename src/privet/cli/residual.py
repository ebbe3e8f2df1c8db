"""What `privet train` does for residual perturbation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from privet.cli.progress import training
from privet.errors import InputError

if TYPE_CHECKING:
    from privet.data import Dataset
    from privet.methods.perturbation import ResidualPerturbation
    from privet.report import OtherRun, RunRecord

PUBLISHED, SOUND = "residual", "residual-dpsgd"
LONG = 120.0
"""Who waits for more seconds than that is told before."""


class Strategy(StrEnum):
    """Of residual perturbation."""

    additive = "I"
    multiplicative = "II"


def perturbation(
    method: str,
    *,
    gamma: float | None,
    strategy: Strategy,
    pi: float,
    radius: float,
) -> ResidualPerturbation | None:
    """The noise that the options ask for; none where another method is asked for."""
    if method not in (PUBLISHED, SOUND):
        return None
    from privet.methods.perturbation import ResidualPerturbation

    chosen = 0.5 if gamma is None else gamma
    if strategy is Strategy.multiplicative and pi:
        raise InputError("--pi is the noise on the input of strategy I.")
    if method == PUBLISHED and not (chosen or pi):
        raise InputError("Without --gamma and --pi there is no noise: give one of them.")
    return ResidualPerturbation(chosen, strategy.value, pi=pi, radius=radius if pi else None)


def train(
    dataset: Dataset,
    out: Path,
    noise: ResidualPerturbation,
    *,
    members: int,
    epochs: int | None,
    delta: float,
    seed: int | None,
    source: str,
    schema: str,
    header: bool,
    others: Sequence[OtherRun] | None,
) -> RunRecord:
    """Run the published method with a bar on the error stream, saying before how long it will take."""
    from privet.recipes.residual_run import expected_seconds, run_residual
    from privet.report.words import duration

    if (seconds := expected_seconds(dataset, members, epochs)) > LONG:
        typer.echo(f"This will take about {duration(seconds)} here; --epochs makes it shorter.", err=True)
    with training(delta) as show:
        return run_residual(
            dataset,
            out,
            noise,
            members=members,
            epochs=epochs,
            delta=delta,
            seed=seed,
            command=("privet", *sys.argv[1:]),
            source=source,
            schema=schema,
            header=header,
            others=others,
            on_step=show,
        )
