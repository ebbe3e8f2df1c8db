"""`privet train`."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.cli import residual
from privet.cli.attack import INTERNAL, sentences
from privet.cli.by_votes import train_by_votes
from privet.cli.data import NAMES
from privet.cli.options import check_used
from privet.cli.program import AsJson, app
from privet.cli.progress import training
from privet.cli.records import (
    HoldOut,
    NoHeader,
    PublicSize,
    UnprotectedTest,
    Users,
    choose_delta,
    load_records,
    others_on,
    say_who_is_unprotected,
)
from privet.errors import InputError

if TYPE_CHECKING:
    from privet.data import Dataset
    from privet.recipes import Recipe
    from privet.report import OtherRun, RunRecord


class Method(StrEnum):
    """Where the noise is."""

    dpsgd = "dpsgd"
    optimized_noise = "optimized-noise"
    residual = "residual"
    residual_dpsgd = "residual-dpsgd"
    pate = "pate"


class Form(StrEnum):
    """The forms of optimised noise."""

    grouped = "grouped"
    isotropic = "isotropic"
    elliptical = "elliptical"


Epsilon = Annotated[float, typer.Option(help="The budget.")]
Delta = Annotated[
    float | None,
    typer.Option(help="The delta of the statement; without it, a power of ten below 1 / the public number of records."),
]
TunedFrom = Annotated[
    list[Path] | None,
    typer.Option(
        help="The folder of a run on the same records by which settings were chosen: the card counts it too, as it does "
        "those that stand beside --out. Can be given several times.",
    ),
]
Seed = Annotated[int | None, typer.Option(help="Makes the run repeatable; such a model is not for release.", min=0)]


def recipe_names() -> list[str]:
    from privet import recipes

    return list(recipes.names())


@app.command("train", epilog="Example:  privet train --data mnist --epsilon 3 --out runs/a")
def train(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Option(
            help="A data set by name (mnist, fashion-mnist, cifar10, digits) or FORMAT:PATH, as privet data reads it.",
            autocompletion=lambda: list(NAMES),
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The folder of the run; without it, one in runs, named after data and method.")
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="For csv: and parquet: the file with the public bounds and categories.")
    ] = None,
    method: Annotated[Method, typer.Option(help="How to train.")] = Method.dpsgd,
    no_header: NoHeader = False,
    users: Users = "",
    epsilon: Epsilon = 3.0,
    delta: Delta = None,
    public_size: PublicSize = None,
    hold_out: HoldOut = None,
    unprotected_test: UnprotectedTest = False,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="A recipe by name, or a .yaml file; without it, the one that fits the records.",
            autocompletion=recipe_names,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out that was stopped, or start it.")
    ] = False,
    form: Annotated[
        Form,
        typer.Option(help="Of optimized-noise: pure-epsilon noise of least cost, isotropic, or elliptical clipping."),
    ] = Form.grouped,
    as_published: Annotated[
        bool,
        typer.Option("--as-published", help="optimized-noise as it was published: its epsilon is claimed, not proved."),
    ] = False,
    gamma: Annotated[
        float | None,
        typer.Option(
            help="Of residual: the noise in every residual block (0.5 without it); its epsilon is only claimed."
        ),
    ] = None,
    strategy: Annotated[
        residual.Strategy, typer.Option(help="Of residual: additive noise, or in proportion.")
    ] = residual.Strategy.additive,
    pi: Annotated[
        float, typer.Option(help="Of residual: the noise on the input, from which a proof comes.", min=0)
    ] = 0.0,
    radius: Annotated[float, typer.Option(help="Of residual with --pi: the norm to which inputs are clipped.")] = 30.0,
    ensemble: Annotated[int, typer.Option(help="Of residual: how many networks are averaged.", min=1)] = 1,
    epochs: Annotated[int | None, typer.Option(help="Of residual: passes over the records.", min=1)] = None,
    public: Annotated[
        str | None,
        typer.Option(
            help="Of pate: the public records without labels: how many of the test records, or another data set by name."
        ),
    ] = None,
    teachers: Annotated[int | None, typer.Option(help="Of pate: how many teachers.", min=2)] = None,
    queries: Annotated[int | None, typer.Option(help="Of pate: how many public records to ask about.", min=1)] = None,
    sure: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="VOTES NOISE", help="Of pate: answer only where a class has so many votes, counted with this noise."
        ),
    ] = None,
    tuned_from: TunedFrom = None,
    seed: Seed = None,
    as_json: AsJson = False,
) -> None:
    """Train a private classifier by a recipe: what it cost, what it is worth and what leaks, on one page."""
    check_used(context, method.value)
    check_budget(epsilon, delta)
    if out is None and resume:
        raise InputError("Give the folder of the run to go on with, by --out.")
    out = out or free_folder(f"{Path(data.rpartition(':')[2]).stem}-{method.value}")
    check_free(out, resume)
    key = _method(method, form, as_published)
    perturbation = residual.perturbation(method.value, gamma=gamma, strategy=strategy, pi=pi, radius=radius)
    if method is Method.pate and public is None:
        raise InputError(
            "--method pate needs public records without labels: give --public with a number of test records or a data set."
        )
    from privet import recipes

    why = "you asked for it"
    if method is Method.residual_dpsgd and recipe is None:
        recipe, why = "resnet-dpsgd", "residual-dpsgd is about this network"
    chosen = recipes.load(recipe) if recipe is not None else None
    dataset = load_records(
        data,
        schema,
        no_header=no_header,
        users=users,
        hold_out=hold_out,
        unprotected_test=unprotected_test,
        public_size=public_size,
    )
    say_who_is_unprotected(dataset)
    delta = choose_delta(delta, dataset)
    others = others_on(dataset, out, tuned_from or ())
    if perturbation is not None and method is Method.residual:
        record = residual.train(
            dataset,
            out,
            perturbation,
            members=ensemble,
            epochs=epochs,
            delta=delta,
            seed=seed,
            source=data,
            schema=str(schema) if schema else "",
            header=not no_header,
            others=others,
        )
        say(record, out, as_json)
        return
    if chosen is None:
        chosen, why = recipes.pick(dataset)
    if not as_json:
        typer.echo(f"Recipe {chosen.name}, because {why}: {chosen.title}.")
        typer.echo(chosen.why)
    if public is not None:
        if not as_json:
            typer.echo("Of the recipe, PATE uses the model and its fixed features; its settings are not used.")
        record = train_by_votes(
            chosen,
            dataset,
            out,
            public=public,
            teachers=teachers,
            queries=queries,
            sure=sure,
            epsilon=epsilon,
            delta=delta,
            seed=seed,
            source=data,
            schema=str(schema) if schema else "",
            header=not no_header,
            user=users,
            others=others,
        )
        say(record, out, as_json)
        return
    if method is Method.residual_dpsgd:
        chosen = chosen.with_arguments(members=ensemble)
    record = train_by(
        chosen,
        dataset,
        out,
        options={"perturbation": perturbation} if perturbation is not None else None,
        epsilon=epsilon,
        delta=delta,
        method=key,
        seed=seed,
        resume=resume,
        source=data,
        schema=str(schema) if schema else "",
        header=not no_header,
        user=users,
        others=others,
    )
    say(record, out, as_json)


def _method(method: Method, form: Form, as_published: bool) -> str:
    if method is not Method.optimized_noise:
        return method.value
    if as_published and form is not Form.grouped:
        raise InputError("--as-published is the form grouped: leave --form out.")
    if as_published:
        return f"{method.value}-published"
    return method.value if form is Form.grouped else f"{method.value}-{form.value}"


def check_budget(epsilon: float, delta: float | None) -> None:
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise InputError(f"--epsilon must be a number above 0, and is {epsilon}.")
    if delta is not None and not 0 < delta < 1:
        raise InputError(f"--delta must lie between 0 and 1, and is {delta}.")


def free_folder(name: str) -> Path:
    """The first folder of that name in `runs`, or with a number behind it, that is not there yet."""
    tried = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in count(1))
    return next(folder for folder in tried if not folder.exists())


def check_free(out: Path, resume: bool = False) -> None:
    """A run is never written over."""
    from privet.report.record import FILE

    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give a folder with --out.")
    if (out / FILE).exists() and resume:
        raise InputError(
            f"The run in {out} is finished: see it with privet report {out}, or give another folder with --out."
        )
    if (out / FILE).exists():
        raise InputError(f"{out} holds a run already: give another folder with --out.")


def train_by(
    recipe: Recipe,
    dataset: Dataset,
    out: Path,
    *,
    epsilon: float,
    delta: float,
    seed: int | None,
    method: str = "dpsgd",
    options: Mapping[str, Any] | None = None,
    resume: bool = False,
    source: str = "",
    schema: str = "",
    note: str = "",
    header: bool = True,
    user: str = "",
    others: Sequence[OtherRun] | None = None,
    command: tuple[str, ...] | None = None,
) -> RunRecord:
    """Run a recipe with bars on the error stream."""
    from privet import recipes

    with training(delta) as show:

        def features(what: str, done: int, total: int | None) -> None:
            show({"what": what, "step": done, "steps": total})

        return recipes.run(
            recipe,
            dataset,
            out,
            epsilon=epsilon,
            delta=delta,
            method=method,
            options=options,
            seed=seed,
            command=command or ("privet", *sys.argv[1:]),
            resume=resume,
            source=source or dataset.name,
            schema=schema,
            note=note,
            header=header,
            user=user,
            others=others,
            on_step=show,
            progress=features,
        )


def say(record: RunRecord, out: Path, as_json: bool) -> None:
    """What came out, for a terminal or for a program."""
    from privet.randomness.sources import SECRET, SEEDED
    from privet.report.statement import title

    mark = SEEDED if record.seeded else SECRET
    ledger = record.open_ledger(out)
    spent, calibrated = record.spent(ledger), record.calibrated(ledger)
    assert record.attack is not None
    if as_json:
        facts = {
            "data": record.data.name,
            "recipe": record.settings["Recipe"].split(":")[0],
            "spent": spent.to_dict(),
            **({"calibrated": calibrated.to_dict()} if calibrated else {}),
            "randomness": mark,
            **measured_facts(record),
            "seconds": record.seconds,
            "page": str(out / "report.html"),
            "card": str(out / "CARD.md"),
        }
        typer.echo(json.dumps(facts, indent=1))
        return
    typer.echo(f"{title(record, spent)}, trained and attacked in {record.seconds:.0f} s")
    typer.echo(str(spent))
    if calibrated is not None:
        typer.echo(f"The noise was calibrated by {calibrated.accountant}: {calibrated}")
    typer.echo(f"Randomness: {mark}")
    say_measured(record)
    card = "of a seeded run, not for release" if record.seeded else "which may be published"
    typer.echo(f"The card, {card}: {out / 'CARD.md'}")
    typer.echo(f"The page{'' if record.data.public else ', which is internal'}: {out / 'report.html'}")


def measured_facts(record: RunRecord) -> dict[str, Any]:
    """The accuracy and the attack for JSON; figures that may not be published are under "internal"."""
    assert record.attack is not None
    attack = {"auc": record.attack.auc, "low": record.attack.low, "high": record.attack.high}
    found = record.released_utility
    facts: dict[str, Any] = {"accuracy": dataclasses.asdict(found) if found else None}
    if record.data.public:
        return facts | {"test_accuracy": record.test_accuracy, "attack": attack}
    return facts | {
        "not_protected": record.data.who_is_unprotected,
        "internal": {"test_accuracy": record.test_accuracy, "attack": attack},
    }


def say_measured(record: RunRecord) -> None:
    """The accuracy beside that of the most frequent class, and the attack, for a terminal."""
    from privet.report.statement import measured

    assert record.attack is not None
    typer.echo(measured(record))
    if not record.data.public:
        typer.echo(f"{INTERNAL}:")
    if not record.data.public and record.data.unprotected:
        typer.echo(f"The accuracy on the unprotected records is {100 * record.test_accuracy:.2f} %.")
    for line in sentences(record.attack, public=record.data.public):
        typer.echo(line)
