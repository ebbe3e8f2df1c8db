"""`privet demo`: the main job end to end."""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from privet.cli.attack import sentences
from privet.cli.data import NAMES
from privet.cli.program import AsJson, app
from privet.cli.progress import fetching, training
from privet.errors import InputError, PrivetError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from privet.data import Dataset, Split
    from privet.methods.dpsgd import Trained
    from privet.report import RunRecord

FALLBACK = "digits"


@dataclass(frozen=True)
class Recipe:
    """What is trained on a data set, and how. Chosen on a part of the training records, never on the test records."""

    model: str
    arguments: dict[str, int]
    sampling_rate: float
    epochs: float
    learning_rate: float
    momentum: float
    clip: float


CNN = Recipe("tanh_cnn", {"channels": 1, "classes": 10}, 0.03, 9, 8.0, 0.9, 0.1)
LINEAR = Recipe("softmax_regression", {"features": 64, "classes": 10}, 0.1, 10, 2.0, 0.0, 1.0)
RECIPES = {"mnist": CNN, "fashion-mnist": CNN, "digits": LINEAR}


@app.command("demo", epilog="Example:  privet demo --epsilon 1 --out runs/tighter")
def demo(
    data: Annotated[
        str | None,
        typer.Option(
            help="mnist, fashion-mnist or digits; without it mnist, or digits where mnist cannot be had.",
            autocompletion=lambda: [name for name in NAMES if name in RECIPES],
        ),
    ] = None,
    epsilon: Annotated[float, typer.Option(help="The budget.")] = 3.0,
    delta: Annotated[float, typer.Option(help="The delta of the statement.")] = 1e-5,
    out: Annotated[Path, typer.Option(help="The folder of the run.")] = Path("runs/demo"),
    seed: Annotated[
        int | None, typer.Option(help="Makes the run repeatable; such a model is not for release.", min=0)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a private classifier, account for it, attack it, and write its page."""
    _check(epsilon, delta, out)
    dataset, note = _records(data)
    out.parent.mkdir(parents=True, exist_ok=True)
    # An interrupted run leaves the folder of the last one as it was.
    staging = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        record = _run(dataset, note, epsilon, delta, seed, staging)
        _put_in_place(staging, out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    _say(record, out, as_json)


def _check(epsilon: float, delta: float, out: Path) -> None:
    from privet.report import RunRecord
    from privet.report.record import FILE

    if not (math.isfinite(epsilon) and epsilon > 0):
        raise InputError(f"--epsilon must be a number above 0, and is {epsilon}.")
    if not 0 < delta < 1:
        raise InputError(f"--delta must lie between 0 and 1, and is {delta}.")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give a folder with --out.")
    if (out / FILE).exists() and RunRecord.read(out).command[:2] != ("privet", "demo"):
        raise InputError(f"{out} holds a run that is not a demo: give another folder with --out.")


def _records(name: str | None) -> tuple[Dataset, str]:
    """The data set, and a note for the record where it is not the one that was wanted."""
    from privet import data

    if name is not None and name not in RECIPES:
        raise InputError(f"The demo has no recipe for {name!r}: it has them for {', '.join(RECIPES)}.")
    try:
        with fetching() as progress:
            return data.get(name or "mnist", progress=progress), ""
    except InputError:
        raise
    except PrivetError as error:
        if name is not None:
            raise
        typer.echo(f"privet: {error}", err=True)
        typer.echo("privet: MNIST cannot be had, so the demo uses the small digits data set instead.", err=True)
        return data.get(FALLBACK), "MNIST could not be had, so this small data set was taken."


def _run(dataset: Dataset, note: str, epsilon: float, delta: float, seed: int | None, folder: Path) -> RunRecord:
    """Train, evaluate, attack and write; everything lands in `folder`."""
    from privet.attacks import LossThreshold
    from privet.report import AttackResult, DataSummary, ModelSummary, RunRecord, save_weights, versions, write_page

    recipe = RECIPES[dataset.name]
    started, created = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    trained, losses = _train(recipe, dataset, epsilon, delta, seed, folder)
    members, others = (_outputs(trained.model, split) for split in (dataset.train, dataset.test))
    # The records went through the model once; the attack looks at what came out.
    roc = LossThreshold()(lambda outputs: outputs, (members, dataset.train.labels), (others, dataset.test.labels))
    record = RunRecord(
        title=f"A private classifier of {'MNIST' if dataset.name == 'mnist' else dataset.name}",
        method="DP-SGD (Abadi et al. 2016)",
        created=created,
        command=("privet", *sys.argv[1:]) if sys.argv[1:2] == ["demo"] else ("privet", "demo"),
        seconds=round(time.monotonic() - started, 1),
        delta=delta,
        seeds=dict.fromkeys(("model", "sampling", "noise"), "secure" if seed is None else str(seed)),
        environment=versions(),
        data=DataSummary(
            name=dataset.name,
            fingerprint=dataset.fingerprint,
            training_records=len(dataset.train),
            test_records=len(dataset.test),
            classes=dataset.classes,
            note=note,
        ),
        model=ModelSummary(
            name=recipe.model,
            parameters=sum(parameter.numel() for parameter in trained.model.parameters()),
            arguments=recipe.arguments,
            weights=save_weights(trained.model, folder),
        ),
        settings=_settings(recipe, trained),
        history=_epochs(trained, losses),
        test_accuracy=_accuracy(others, dataset.test.labels),
        training_accuracy=_accuracy(members, dataset.train.labels),
        ledger_head=trained.ledger.head,
        attack=AttackResult.of("Loss threshold", roc),
    )
    record.write(folder)
    write_page(folder)
    return record


def _train(
    recipe: Recipe, dataset: Dataset, epsilon: float, delta: float, seed: int | None, folder: Path
) -> tuple[Trained, dict[int, float]]:
    """The trained model, and the loss of each step."""
    import torch

    from privet import models
    from privet.methods import dpsgd
    from privet.privacy import Ledger

    with torch.random.fork_rng():
        if seed is not None:
            torch.manual_seed(seed)
        model = getattr(models, recipe.model)(**recipe.arguments).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum)
    losses: dict[int, float] = {}
    with Ledger(folder / "ledger.jsonl") as ledger, training(delta) as show:

        def on_step(step: dict[str, Any]) -> None:
            losses[step["step"]] = step["loss"]
            show(step)

        trained = dpsgd.train(
            model,
            optimizer,
            dataset.train,
            test=dataset.test,
            on_step=on_step,
            ledger=ledger,
            batch_size=round(recipe.sampling_rate * len(dataset.train)),
            epochs=recipe.epochs,
            epsilon=epsilon,
            delta=delta,
            max_grad_norm=recipe.clip,
            loss_reduction="mean",
            seed=seed,
        )
    return trained, losses


def _outputs(model: nn.Module, records: Split, batch_size: int = 1000) -> Tensor:
    """The class scores of every record, the model being in evaluation mode from here on."""
    import torch

    model.eval()
    with torch.no_grad():
        parts = torch.split(torch.arange(len(records)), batch_size)
        return torch.cat([model(records.batch(part)[0]) for part in parts])


def _accuracy(outputs: Tensor, labels: Tensor) -> float:
    return int((outputs.argmax(1) == labels).sum()) / len(labels)


def _settings(recipe: Recipe, trained: Trained) -> dict[str, str]:
    plan = trained.plan
    momentum = f", momentum {recipe.momentum:g}" if recipe.momentum else ""
    return {
        "Steps": f"{plan.steps:,}, about {recipe.epochs:g} passes over the data",
        "Lot": f"{plan.expected_batch_size:,.0f} records expected, each drawn with probability {plan.sampling.rate:.4g}",
        "Clipping": f"each record's gradient to a norm of at most C = {recipe.clip:g}",
        "Noise": f"{plan.noise.describe()} on the sum of a lot",
        "Optimizer": f"SGD, learning rate {recipe.learning_rate:g}{momentum}",
    }


def _epochs(trained: Trained, losses: dict[int, float]) -> tuple[Any, ...]:
    """One entry per epoch, with the mean loss of its steps (a step that drew no record has none)."""
    from privet.report import Epoch

    epochs: list[Epoch] = []
    for number, entry in enumerate(trained.history, 1):
        since = epochs[-1].step if epochs else 0
        seen = [losses[step] for step in range(since + 1, entry["step"] + 1) if step in losses]
        if seen:
            loss = sum(seen) / len(seen)
            epochs.append(Epoch(number, entry["step"], loss, entry["epsilon"], entry.get("accuracy")))
    return tuple(epochs)


def _put_in_place(staging: Path, out: Path) -> None:
    """File by file, the ledger first: the record names the ledger's hash, so a crash in between is noticed, not hidden."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("ledger.jsonl", "model.safetensors", "record.json", "report.html"):
        (staging / name).replace(out / name)


def _say(record: RunRecord, out: Path, as_json: bool) -> None:
    spent = record.open_ledger(out).spent(record.delta)
    assert record.attack is not None
    if as_json:
        attack = {"auc": record.attack.auc, "low": record.attack.low, "high": record.attack.high}
        facts = {
            "data": record.data.name,
            "spent": spent.to_dict(),
            "test_accuracy": record.test_accuracy,
            "attack": attack,
            "seconds": record.seconds,
            "page": str(out / "report.html"),
        }
        typer.echo(json.dumps(facts, indent=1))
        return
    typer.echo(f"{record.title}, trained and attacked in {record.seconds:.0f} s")
    typer.echo(str(spent))
    typer.echo(f"{100 * record.test_accuracy:.2f} % of {record.data.test_records:,} test records right")
    for line in sentences(record.attack):
        typer.echo(line)
    typer.echo(f"The page: {out / 'report.html'}")
