"""A run: make artificial data, train students on it, attack it, and leave the folder with what may leave it apart."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from torch import nn

from privet.data import Dataset, Schema
from privet.errors import InputError
from privet.methods.private_accuracy import PrivateAccuracy, left_for_others
from privet.methods.synthetic import Order, Synthesizer
from privet.privacy import Budget, Gaussian, Ledger, UnsupportedEventError
from privet.recipes.recipe import kind_of
from privet.recipes.run import marked, measure, summary
from privet.report import DataSummary, ModelSummary, OtherRun, RunRecord, renew, save_weights, versions
from privet.synthesis import attacks
from privet.synthesis.release import write_release
from privet.synthesis.students import Student, check_students, train_student
from privet.training.folder import remove_working_files
from privet.training.logs import OnStep, logged


def run(
    method: Synthesizer,
    dataset: Dataset,
    order: Order,
    out: Path,
    *,
    command: Sequence[str],
    students: Sequence[str] = (),
    epochs: int = 20,
    baseline: bool = False,
    source: str = "",
    schema: Schema | None = None,
    schema_path: str = "",
    header: bool = True,
    user: str = "",
    others: Sequence[OtherRun] | None = None,
    on_step: OnStep | None = None,
) -> RunRecord:
    """Make the data, then leave in `out`: the ledger, ``release/``, the first student's weights, the record and the page.

    Formal guarantees: the method gets the training records and never the test records; ``release/`` is written before
    anything else looks at the records; students learn from the artificial examples alone. Where the test records are not
    public, they are protected, too: the method gets a budget without the share of `private_accuracy`, and the first student is
    measured with that share. The ledger holds it before it is read.
    """
    names = check_students(students or default_students(dataset), dataset.shape)
    started, created = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    out.mkdir(parents=True, exist_ok=True)
    about = summary(dataset, source, schema_path, header=header, user=user)
    unit = dataset.train.unit
    with Ledger(out / "ledger.jsonl", relation=method.relation, unit=unit) as ledger, logged(out, on_step) as log:
        if not dataset.size_is_stated:
            ledger.size_is_public()
        made = method.synthesize(dataset.train, _for_method(order, method, about), ledger, log)
        measuring = _charged(order, ledger, made.accountant) if about.protects_test else None
    head = made.ledger.head
    title = f"Artificial {_TITLES.get(dataset.name, dataset.name)}"
    released = write_release(out, made, order.classes, schema)
    trained = [
        train_student(
            name, made.inputs, made.targets, order.classes, epochs=epochs, seed=order.seed or 0, on_step=on_step
        )
        for name in names
    ]
    measured = {
        f"Student {s.name}": f"{100 * s.accuracy(dataset.test):.2f} % of the test records right" for s in trained
    }
    internal = measured if about.protects_test or not about.public else {}
    inside = measured | (_baselines(names, dataset, epochs) if baseline else {})
    attacks.write_internal(out, made.inputs, dataset, inside)
    record = RunRecord(
        title=title,
        method=method.title,
        created=created,
        command=tuple(command),
        seconds=0.0,
        delta=order.delta,
        seeds=dict.fromkeys(("noise", "examples", "students"), "secure" if order.seed is None else str(order.seed)),
        environment=versions(),
        data=marked(about, dataset, out),
        model=_summary(trained[0], out),
        settings=made.settings if internal else made.settings | measured,
        internal=internal,
        history=(),
        test_accuracy=trained[0].accuracy(dataset.test),
        utility=measure(about, measuring, trained[0].answers(dataset.test), dataset.test, made.ledger, order.seed),
        training_accuracy=trained[0].accuracy(dataset.train),
        attack=attacks.membership(made.inputs, dataset),
        synthetic=released,
        others=None if others is None else tuple(others),
        ledger_head=head,
        accountant=made.accountant,
        place=made.place,
    )
    replace(record, seconds=round(time.monotonic() - started, 1)).write(out)
    renew(out)
    remove_working_files(out)
    return RunRecord.read(out)


def _for_method(order: Order, method: Synthesizer, about: DataSummary) -> Order:
    """The order without the share of the accuracy, where that is to be measured with noise."""
    if not about.protects_test:
        return order
    return replace(order, epsilon=left_for_others(order.epsilon, order.delta, method.relation))


def _charged(order: Order, ledger: Ledger, accountant: str) -> PrivateAccuracy | None:
    """The accuracy with its share of the budget, or with less where less is left, charged; None where nothing is left.

    What is left is counted by the accountant of the method, which is the one of a claim.
    """
    # The share of the accuracy and the noise of the method were fixed by the order, before anything was released.
    budget = Budget(order.epsilon, order.delta, ledger.relation, accountant).after(ledger, fixed_beforehand=True)
    planned = PrivateAccuracy.within(order.epsilon, order.delta, ledger.relation)
    try:
        measuring = PrivateAccuracy(max(budget.least(Gaussian), planned.noise_multiplier))
    except (InputError, UnsupportedEventError):
        return None  # the method has spent everything
    measuring.charge(ledger)
    return measuring


def default_students(dataset: Dataset) -> tuple[str, ...]:
    """The source's two students for images, and the second one for everything else."""
    return ("cnn", "logistic") if kind_of(dataset.shape) == "images" else ("logistic",)


def _summary(student: Student, out: Path) -> ModelSummary:
    """The first student is the run's model; one of scikit-learn's is named and not kept: its files can run code."""
    if isinstance(student.model, nn.Module):
        parameters = sum(parameter.numel() for parameter in student.model.parameters())
        return ModelSummary(student.network, parameters, student.arguments, save_weights(student.model, out))
    return ModelSummary(student.name, 0)


def _baselines(names: Sequence[str], dataset: Dataset, epochs: int) -> dict[str, str]:
    """The same students of the records themselves: no part of any release, nor of the record from which cards are made."""
    x, y = dataset.train.tensors
    found = {}
    for name in names:
        plain = train_student(name, x, y, len(dataset.classes), epochs=epochs)
        right = 100 * plain.accuracy(dataset.test)
        found[f"Student {name} of the records, without privacy"] = f"{right:.2f} % of the test records right"
    return found


_TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
