"""`privet synthesize`."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
from privet.cli.train import Delta, Epsilon, TunedFrom, check_budget, check_free, measured_facts, say_measured
from privet.errors import InputError

if TYPE_CHECKING:
    from privet.report import RunRecord


class Labels(StrEnum):
    """What is known of the labels."""

    protected = "protected"
    votes = "votes"


def method_names() -> list[str]:
    from privet import synthesis

    return ["auto", *synthesis.METHODS]


@app.command("synthesize", epilog="Example:  privet synthesize --data mnist --epsilon 3.45 --out runs/b")
def synthesize(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Option(
            help="A data set by name (mnist, fashion-mnist, cifar10, digits) or FORMAT:PATH, as privet data reads it.",
            autocompletion=lambda: list(NAMES),
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder of the run; what may leave is in its folder release.")],
    schema: Annotated[
        Path | None, typer.Option(help="For csv: and parquet: the file with the public bounds and categories.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="By which method, or auto: by the data and the budget.", autocompletion=method_names)
    ] = "auto",
    no_header: NoHeader = False,
    users: Users = "",
    epsilon: Epsilon = 3.0,
    delta: Delta = None,
    public_size: PublicSize = None,
    hold_out: HoldOut = None,
    unprotected_test: UnprotectedTest = False,
    size: Annotated[
        int | None, typer.Option(help="How many examples; without it, as many as records, at most 30,000.", min=1)
    ] = None,
    labels: Annotated[
        Labels,
        typer.Option(
            help="protected with the record; votes: teachers of disjoint records vote on the labels of the examples, within "
            "the same budget, and a record is protected with its label."
        ),
    ] = Labels.protected,
    as_published: Annotated[
        bool,
        typer.Option("--as-published", help="noise-layer-gan as it was published: its epsilon is claimed, not proved."),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the method, as NAME=VALUE; and more with more of it."),
    ] = None,
    students: Annotated[
        list[str] | None,
        typer.Option(
            "--student", help="cnn, logistic, or a classifier of scikit-learn by name; and more with more of it."
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Of the students cnn and logistic.", min=1)] = 20,
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Train the students on the records, too: without privacy, to compare.")
    ] = False,
    tuned_from: TunedFrom = None,
    seed: Annotated[
        int | None, typer.Option(help="Makes the run repeatable; such data is not for release.", min=0)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make artificial data to publish instead of the records: what it cost, what students learn from it, what leaks."""
    check_budget(epsilon, delta)
    check_free(out)
    from privet import synthesis
    from privet.data import read_schema
    from privet.methods.synthetic import Order

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
    described = read_schema(schema) if schema else None
    order = Order(
        classes=len(dataset.classes),
        records=dataset.size,
        at_most=dataset.at_most,
        size=size or min(dataset.size, 30_000),
        epsilon=epsilon,
        delta=choose_delta(delta, dataset),
        labels=labels.value,
        seed=seed,
        source=dataset.name,
        columns=described.features if described else (),
    )
    why = "you asked for it"
    if method == "auto":
        method, why = synthesis.choose(dataset, order)
    synthesis.check_name(method)
    check_used(context, f"{method}-published" if as_published and method == "noise-layer-gan" else method)
    chosen = synthesis.method_named(method, dataset, order, as_published=as_published, given=_pairs(settings or []))
    if not as_json:
        typer.echo(f"Method {method}, because {why}: {chosen.title}.")
    with training(order.delta) as show:
        record = synthesis.run(
            chosen,
            dataset,
            order,
            out,
            command=("privet", *sys.argv[1:]),
            students=students or (),
            epochs=epochs,
            baseline=baseline,
            source=data,
            schema=described,
            schema_path=str(schema) if schema else "",
            header=not no_header,
            user=users,
            others=others_on(dataset, out, tuned_from or ()),
            on_step=show,
        )
    say(record, out, method, as_json)


def _pairs(settings: list[str]) -> dict[str, str]:
    pairs = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"--set takes NAME=VALUE, and {text!r} has no '='.")
        pairs[name.strip()] = value.strip()
    return pairs


def say(record: RunRecord, out: Path, method: str, as_json: bool) -> None:
    """What came out, for a terminal or for a program."""
    from privet.report.statement import title

    ledger = record.open_ledger(out)
    spent, calibrated = record.spent(ledger), record.calibrated(ledger)
    assert record.attack is not None and record.synthetic is not None
    students = {name.removeprefix("Student "): said for name, said in record.settings.items() if name[:8] == "Student "}
    if as_json:
        facts = {
            "data": record.data.name,
            "method": method,
            "size": record.synthetic.rows,
            "spent": spent.to_dict(),
            "calibrated": calibrated.to_dict() if calibrated is not None else None,
            **measured_facts(record),
            **({"students": students} if record.data.public else {}),
            "seconds": record.seconds,
            "release": str(out / "release"),
            "page": str(out / "report.html"),
        }
        typer.echo(json.dumps(facts, indent=1))
        return
    typer.echo(
        f"{title(record, spent)}: {record.synthetic.rows:,} examples, made and attacked in {record.seconds:.0f} s"
    )
    typer.echo(str(spent))
    if calibrated is not None:
        typer.echo(f"The noise was calibrated by {calibrated.accountant}: {calibrated}")
    for name, said in students.items():
        typer.echo(f"Student {name}, trained on the artificial data alone: {said}")
    say_measured(record)
    typer.echo(f"Nearest records, distances and baselines, not for release: {out / 'internal' / 'quality.md'}")
    purpose = "Seeded, so not for release" if record.seeded else "To release"
    typer.echo(f"{purpose}: {out / 'release'} (its card: {out / 'release' / 'README.md'})")
    typer.echo(f"The page, which is internal: {out / 'report.html'}")
