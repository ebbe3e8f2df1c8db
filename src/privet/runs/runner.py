"""The only runner: a method on a task, attacked, and a folder from which everything can be told again."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from privet.attacks import Target, attack_named
from privet.attacks.pictures import write_internal
from privet.data import Dataset, Progress, Split
from privet.errors import InputError
from privet.methods.method import Context, Method, Outcome, Task, TrainedModel, plain_settings
from privet.methods.preparation import RELEASES, scores
from privet.methods.private_accuracy import Measured, exactly
from privet.methods.synthetic import Synthetic
from privet.privacy import Ledger
from privet.randomness import Randomness
from privet.report import (
    DataSummary,
    Epoch,
    MethodSummary,
    ModelSummary,
    OtherRun,
    RunRecord,
    renew,
    save_weights,
    versions,
)
from privet.report.others import mark_of
from privet.runs.release import write_release
from privet.runs.students import Student, check_students, default_students, train_student
from privet.training.folder import LEDGER, RunFolder, remove_working_files
from privet.training.identity import plain
from privet.training.logs import logged
from privet.training.logs import OnStep

TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}


@dataclass(frozen=True)
class Measuring:
    """How a release is measured and attacked.

    Attributes:
        attacks: attacks by key; without any, the quick one that fits the release.
        students: of synthetic data: "cnn", "logistic", or a classifier of scikit-learn by name; without any, those that fit.
        epochs: of the students cnn and logistic.
        baseline: train the students on the records too, without privacy, to compare.
    """

    attacks: tuple[str, ...] = ()
    students: tuple[str, ...] = ()
    epochs: int = 20
    baseline: bool = False


def run(
    method: Method,
    task: Task,
    out: Path,
    *,
    measuring: Measuring | None = None,
    resume: bool = False,
    others: Sequence[OtherRun] | None = None,
    command: Sequence[str] = (),
    on_step: OnStep | None = None,
    progress: Progress | None = None,
) -> RunRecord:
    """Make the release, measure and attack it, and leave ledger, release, record, card and page in `out`.

    Formal guarantees: the method gets a ledger on disk and records every use of a record there before its result is used.
    A synthetic release is written before anything else looks at the records. Where test records are protected, they are
    measured with noise that the ledger holds, or not at all.

    Args:
        method, task: what to do.
        out: the folder of the run; one that holds a run is refused, unless it is resumed.
        measuring: how to measure and attack.
        resume: continue the run in `out`, or start it.
        others: the other runs on these records that the card counts, as `privet.report.find_others` gives them.
        command: the command line, for the record.
        on_step: called with a dictionary after each step.
        progress: called while features are computed.
    """
    check(method, task, out, resume)
    measuring = measuring or Measuring()
    if method.makes == "data":
        check_students(measuring.students or default_students(task.dataset), task.dataset.shape)
    started, created = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    about = summary(task)
    folder = RunFolder(out, resume=resume, relation=method.relation, unit=method.unit(task))
    try:
        with logged(out, on_step) as log:
            context = Context(folder.ledger, folder, log, progress, protect_test=about.protects_test)
            context.begin(method, task)
            outcome = method.fit(task, context)
    finally:
        folder.close()
    about = replace(
        about,
        fingerprint=mark_of(task.dataset.origin, out, public=about.public),
        test_records=max(0, about.test_records - outcome.set_aside),
        set_aside=outcome.set_aside,
        note=" ".join(filter(None, (about.note, outcome.note))),
    )
    record = RunRecord(
        title="",
        method=method.title,
        created=created,
        command=tuple(command),
        seconds=0.0,
        delta=task.delta,
        seeds=dict.fromkeys(("model", "sampling", "noise"), "secure" if task.seed is None else str(task.seed)),
        environment=versions(),
        data=about,
        model=ModelSummary("", 0),
        settings=outcome.settings,
        history=_epochs(outcome.history),
        test_accuracy=None,
        training_accuracy=None,
        internal=outcome.internal,
        place=outcome.noise_path or method.noise_path,
        accountant=outcome.accountant,
        how=MethodSummary(
            method.key, plain_settings(method), plain(outcome.plan) if outcome.plan is not None else None, outcome.steps
        ),
        others=None if others is None else tuple(others),
        ledger_head=folder.ledger.head,
    )
    measure = _measured_model if isinstance(outcome.release, TrainedModel) else _measured_data
    record = measure(record, method, task, outcome, out, folder.ledger, measuring, on_step)
    replace(record, seconds=round(time.monotonic() - started, 1)).write(out)
    renew(out)
    (out / RELEASES).unlink(missing_ok=True)
    remove_working_files(out)
    return RunRecord.read(out)


def check(method: Method, task: Task, out: Path, resume: bool = False) -> None:
    """Raise for what can be known to fail before anything is spent."""
    if why := method.why_not(task):
        raise InputError(f"The method {method.key} does not fit {task.dataset.name}: {why}.")
    if resume and not method.resumes and (out / LEDGER).exists():
        raise InputError(f"A run of {method.key} cannot be continued: start it anew, in another folder.")


def _measured_model(
    record: RunRecord,
    method: Method,
    task: Task,
    outcome: Outcome,
    out: Path,
    ledger: Ledger,
    measuring: Measuring,
    on_step: OnStep | None,
) -> RunRecord:
    release = outcome.release
    assert isinstance(release, TrainedModel)
    inside, outside = (scores(release.part, part, _shown(part, on_step)) for part in (release.train, release.test))
    answers = Target(
        Split(inside, release.train.labels),
        Split(outside, release.test.labels),
        nn.Identity(),
        classes=task.dataset.classes,
        shape=task.dataset.shape,
    )
    real = replace(answers, members=release.train, others=release.test, model=release.part)
    found = []
    for key in measuring.attacks or ("loss",):
        attack = attack_named(key)
        # The records went through the model once; attacks on the answers alone look at what came out.
        target = answers if key in ("loss", "confidence") else real
        if why := attack.fits(target):
            raise InputError(f"The attack {key} does not fit this run: {why}.")
        found.append(replace(attack.run(target), command=record.command))
    return replace(
        record,
        title=f"A private classifier of {TITLES.get(task.dataset.name, task.dataset.name)}",
        model=ModelSummary(
            name=release.name,
            parameters=sum(parameter.numel() for parameter in release.model.parameters()),
            arguments=dict(release.arguments),
            weights=save_weights(release.model, out),
            perturbation=release.perturbation,
        ),
        test_accuracy=fraction_right(outside, release.test.labels),
        training_accuracy=fraction_right(inside, release.train.labels),
        utility=measure(record.data, outcome, outside.argmax(1), release.test, ledger, task.seed),
        attacks=tuple(found),
    )


def _measured_data(
    record: RunRecord,
    method: Method,
    task: Task,
    outcome: Outcome,
    out: Path,
    ledger: Ledger,
    measuring: Measuring,
    on_step: OnStep | None,
) -> RunRecord:
    made, dataset = outcome.release, task.dataset
    assert isinstance(made, Synthetic)
    released = write_release(out, made, len(dataset.classes), task.schema)
    names = measuring.students or default_students(dataset)
    trained = [
        train_student(
            name,
            made.inputs,
            made.targets,
            len(dataset.classes),
            epochs=measuring.epochs,
            seed=task.seed or 0,
            on_step=on_step,
        )
        for name in names
    ]
    said = {f"Student {s.name}": f"{100 * s.accuracy(dataset.test):.2f} % of the test records right" for s in trained}
    internal = {} if record.data.public else said
    baselines = _baselines(names, dataset, measuring.epochs) if measuring.baseline else {}
    target = Target.of(dataset, synthetic=made.inputs)
    write_internal(out, target, said | baselines)
    found = []
    for key in measuring.attacks or ("distance",):
        attack = attack_named(key)
        if why := attack.fits(target):
            raise InputError(f"The attack {key} does not fit this run: {why}.")
        found.append(replace(attack.run(target), command=record.command))
    first = trained[0]
    return replace(
        record,
        title=f"Synthetic {TITLES.get(dataset.name, dataset.name)}",
        model=_student_summary(first, out),
        settings=record.settings if internal else record.settings | said,
        internal=record.internal | internal,
        test_accuracy=first.accuracy(dataset.test),
        training_accuracy=first.accuracy(dataset.train),
        utility=measure(record.data, outcome, first.answers(dataset.test), dataset.test, ledger, task.seed),
        attacks=tuple(found),
        synthetic=released,
    )


def _student_summary(student: Student, out: Path) -> ModelSummary:
    """The first student is the run's model; one of scikit-learn is named and not kept: its files can run code."""
    if isinstance(student.model, nn.Module):
        parameters = sum(parameter.numel() for parameter in student.model.parameters())
        return ModelSummary(student.network, parameters, student.arguments, save_weights(student.model, out))
    return ModelSummary(student.name, 0)


def _baselines(names: Sequence[str], dataset: Dataset, epochs: int) -> dict[str, str]:
    """The same students trained on the records themselves: no part of any release, nor of the record."""
    x, y = dataset.train.tensors
    found = {}
    for name in names:
        student = train_student(name, x, y, len(dataset.classes), epochs=epochs)
        right = 100 * student.accuracy(dataset.test)
        found[f"Student {name} of the records, without privacy"] = f"{right:.2f} % of the test records right"
    return found


@contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A folder beside `out` whose run takes its place at the end: an interrupted one leaves the last one as it was."""
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
        yield staging
        out.mkdir(parents=True, exist_ok=True)
        # The ledger first: the record names the ledger's hash, so a crash in between is noticed, not hidden.
        for path in sorted(staging.iterdir(), key=lambda path: path.name != LEDGER):
            if (out / path.name).is_dir():
                shutil.rmtree(out / path.name)
            path.replace(out / path.name)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def summary(task: Task) -> DataSummary:
    """Which records were used, as far as that may be said.

    The number of test records is left out where it is not public: one that came from dividing a file depends on the records.
    """
    dataset, spec = task.dataset, task.spec
    return DataSummary(
        name=dataset.name,
        fingerprint="",
        training_records=dataset.size,
        test_records=len(dataset.test) if task.is_public else 0,
        classes=dataset.classes,
        note=spec.note,
        source=spec.source,
        schema=spec.schema,
        public=task.is_public,
        shape=tuple(dataset.shape),
        size_is_stated=dataset.size_is_stated,
        measured_share=dataset.measured_share,
        unprotected=dataset.unprotected,
        header=spec.header,
        unit=dataset.train.unit,
        user=spec.user,
    )


def measure(
    about: DataSummary, outcome: Outcome, predicted: Tensor, test: Split, ledger: Ledger, seed: int | None
) -> Measured | None:
    """The accuracy on the test records: with noise where they are protected, and None where nothing was charged for it."""
    if not about.protects_test:
        return exactly(predicted, test.labels, len(about.classes))
    if outcome.accuracy is None:
        return None
    randomness = Randomness.apart("accuracy", seed)
    classes = len(about.classes)
    return outcome.accuracy.read(
        predicted, test.labels, classes, ledger=ledger, randomness=randomness, shares=test.shares
    )


def fraction_right(outputs: Tensor, labels: Tensor) -> float:
    """The fraction of records whose likeliest class is the label."""
    return int((outputs.argmax(1) == labels).sum()) / len(labels)


def _shown(records: Split, on_step: OnStep | None) -> Callable[[int], None]:
    """Progress of computing the scores of records, in hundredths: how many records there are may be private."""

    def show(done: int) -> None:
        if on_step is not None:
            on_step({"what": "Attacking", "step": max(1, 100 * done // len(records)), "steps": 100})

    return show


def _epochs(history: Sequence[Mapping[str, Any]]) -> tuple[Epoch, ...]:
    """The entries of the history; one in which no record was drawn has no loss, and is left out."""
    return tuple(
        Epoch(max(1, round(entry["epoch"])), entry["step"], entry["loss"], entry["epsilon"], entry.get("accuracy"))
        for entry in history
        if "loss" in entry
    )
