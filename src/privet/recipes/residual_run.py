"""A run of residual perturbation as published: trained, attacked, and told in the same folder as every other run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from privet.attacks import LossThreshold
from privet.data import Dataset, Split
from privet.errors import InputError
from privet.methods.perturbation import ResidualPerturbation
from privet.methods.residual_perturbation import UNIT, Perturbed, Schedule, train
from privet.models import resnet
from privet.privacy import Ledger, Relation
from privet.recipes import comparison
from privet.recipes.comparison import Comparison
from privet.recipes.prepare import scores
from privet.recipes.run import fraction_right, marked, measure, summary, title_of
from privet.report import AttackResult, Epoch, ModelSummary, OtherRun, RunRecord, renew, save_weights, versions
from privet.training.folder import remove_working_files
from privet.training.logs import OnStep, logged

PATCH = (3, 50, 50)


def pick_comparison(dataset: Dataset) -> Comparison:
    """Whose schedule fits the records: the paper's for patches of 50x50, a shorter one for everything else."""
    return comparison.load("wang-idc" if dataset.shape == PATCH else "wang-cifar10")


def expected_seconds(dataset: Dataset, members: int, epochs: int | None) -> float:
    """How long `run_residual` will take here, by a few steps on made-up records: nobody's are looked at."""
    if len(dataset.shape) != 3:
        return 0.0  # refused anyway
    chosen = pick_comparison(dataset)
    size, probes = chosen.schedule.batch_size, 2
    with torch.random.fork_rng(devices=[]):
        model = resnet(dataset.shape[0], len(dataset.classes), chosen.depth, members)
        made_up = torch.rand(size, *dataset.shape).contiguous(memory_format=torch.channels_last)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for warm in range(1 + probes):
        if warm == 1:
            began = time.monotonic()
        model(made_up).square().mean().backward()
    step = (time.monotonic() - began) / probes
    # Each record is seen once in an epoch, and once more when the network is attacked, which has no way back: a third.
    steps = len(dataset.train) * (epochs or chosen.schedule.epochs) + (len(dataset.train) + len(dataset.test)) / 3
    return step * steps / size


def run_residual(
    dataset: Dataset,
    out: Path,
    perturbation: ResidualPerturbation,
    *,
    members: int,
    epochs: int | None,
    shrink: int = 1,
    delta: float,
    seed: int | None,
    command: Sequence[str],
    source: str = "",
    schema: str = "",
    header: bool = True,
    others: Sequence[OtherRun] | None = None,
    on_step: OnStep | None = None,
) -> RunRecord:
    """Train a residual network with noise in its stream, attack it, and leave everything in `out`."""
    if len(dataset.shape) != 3:
        raise InputError(f"A residual network is for images, and the records of {dataset.name} are not.")
    about = summary(dataset, source, schema, header=header)
    started, created = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    chosen = pick_comparison(dataset)
    schedule = chosen.schedule if epochs is None else _shortened(chosen.schedule, epochs)
    schedule = schedule.for_members(members)
    arguments = {
        "channels": dataset.shape[0],
        "classes": len(dataset.classes),
        "depth": chosen.depth,
        "members": members,
        **({"shrink": shrink} if shrink > 1 else {}),
    }
    with torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        model = resnet(dataset.shape[0], len(dataset.classes), chosen.depth, members, shrink=shrink)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    out.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(out / "ledger.jsonl", relation=Relation.REPLACE_ONE, unit=UNIT)
    with ledger, logged(out, on_step) as log:
        done = train(model, dataset.train, perturbation, schedule, delta=delta, ledger=ledger, seed=seed, on_step=log)
    inside, outside = (scores(model, records, _shown(records, on_step)) for records in (dataset.train, dataset.test))
    roc = LossThreshold()(lambda given: given, (inside, dataset.train.labels), (outside, dataset.test.labels))
    record = RunRecord(
        title=title_of(dataset),
        method="Residual perturbation, as published",
        created=created,
        command=tuple(command),
        seconds=round(time.monotonic() - started, 1),
        delta=delta,
        seeds=dict.fromkeys(("model", "sampling", "noise"), "secure" if seed is None else str(seed)),
        environment=versions(),
        data=marked(about, dataset, out),
        model=ModelSummary(
            name="resnet",
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            arguments=arguments,
            weights=save_weights(model, out),
            perturbation=perturbation,
        ),
        settings=_settings(chosen, schedule, perturbation, members, shrink) | {"Steps": f"{done.steps:,}"},
        history=_epochs(done),
        test_accuracy=fraction_right(outside, dataset.test.labels),
        utility=measure(about, None, outside.argmax(1), dataset.test, done.ledger, seed),
        training_accuracy=fraction_right(inside, dataset.train.labels),
        ledger_head=done.ledger.head,
        attack=AttackResult.of("Loss threshold", roc),
        place="inputs and residual mapping" if perturbation.pi else "residual mapping",
        others=None if others is None else tuple(others),
    )
    record.write(out)
    renew(out)
    remove_working_files(out)
    return RunRecord.read(out)


def _shown(records: Split, on_step: OnStep | None) -> Callable[[int], None]:
    """The progress of asking the network for the scores of records."""

    def show(done: int) -> None:
        if on_step is not None:  # in hundredths: how many records there are may be private
            on_step({"what": "Attacking", "step": max(1, 100 * done // len(records)), "steps": 100})

    return show


def _shortened(schedule: Schedule, epochs: int) -> Schedule:
    milestones = (math.ceil(milestone * epochs / schedule.epochs) for milestone in schedule.milestones)
    return replace(schedule, epochs=epochs, milestones=tuple(each for each in milestones if each < epochs))


def _settings(
    chosen: Comparison, schedule: Schedule, perturbation: ResidualPerturbation, members: int, shrink: int
) -> dict[str, str]:
    noise = f"strategy {perturbation.strategy}, gamma {perturbation.gamma:g} in every residual block, at test too"
    if perturbation.radius is not None:
        noise += f"; pi {perturbation.pi:g} on inputs of norm at most {perturbation.radius:g}"
    averaged = f", on images averaged over squares of {shrink}x{shrink} pixels" if shrink > 1 else ""
    falls = f", divided by {schedule.division:g} after epochs {', '.join(map(str, schedule.milestones))}"
    rate = f"learning rate {schedule.learning_rate:g}{falls if schedule.milestones else ''}"
    return {
        "Recipe": f"{chosen.name}: {chosen.title}",
        "Network": f"{f'an ensemble of {members} ' if members > 1 else ''}ResNet{chosen.depth} with batch norm{averaged}",
        "Noise": noise,
        "Epochs": f"{schedule.epochs}, in shuffled batches of {schedule.batch_size}",
        "Optimizer": f"SGD, {rate}, momentum {schedule.momentum:g}",
    }


def _epochs(done: Perturbed) -> tuple[Epoch, ...]:
    """What can be drawn: an epsilon that is infinite cannot."""
    return tuple(
        Epoch(number, entry["step"], entry["loss"], entry["epsilon"], entry.get("accuracy"))
        for number, entry in enumerate(done.history, 1)
        if math.isfinite(entry["epsilon"])
    )
