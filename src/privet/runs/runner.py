"""The only runner: it runs a method on a task, measures and attacks the release, and writes the run folder."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from privet import __version__
from privet.attacks import Attack, LossThreshold, Target, attack_named
from privet.attacks.pictures import write_internal
from privet.data import Dataset, Progress, Split, set_aside
from privet.errors import InputError, PrivetError
from privet.io import in_bytes
from privet.io.names import LEDGER, RECORD, UNFINISHED
from privet.methods.method import Context, Method, Outcome, Task, TrainedModel, plain_settings
from privet.methods.preparation import scores
from privet.methods.private_accuracy import Measured, MeasuredError, error_exactly, exactly
from privet.methods.recipe import chosen
from privet.methods.synthetic import MOST, Synthetic
from privet.privacy import AccountExhausted, DataAccount, Ledger
from privet.randomness import Randomness
from privet.report import DataSummary, Epoch, MethodSummary, ModelSummary, OtherRun, RunRecord, renew, versions
from privet.report.card import with_files
from privet.report.others import mark_of
from privet.runs.accounts import OWN, account_of, on_account
from privet.runs.release import STAGED, publish_release, write_release
from privet.runs.students import NETWORKS, Student, check_students, default_students, train_student
from privet.training.checkpoint import save_weights
from privet.training.folder import RunFolder, check_not_foreign, remove_working_files, require_there
from privet.training.identity import plain
from privet.training.logs import OnStep, logged
from privet.training.releases import Kept

TargetOf = Callable[[Attack], Target]
"""The target of an attack, from a release."""
TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}


@dataclass(frozen=True)
class Measuring:
    """How a release is measured and attacked.

    Attributes:
        attacks: attacks by key; without any, the quick one that fits the release.
        students: for synthetic data: "cnn", "logistic", or a classifier of scikit-learn by name; by default those that fit.
        epochs: of the students cnn and logistic.
        baseline: also train the students on the real records, without privacy, for comparison.
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
    account: DataAccount | str | Path | None = OWN,
    command: Sequence[str] = (),
    on_step: OnStep | None = None,
    progress: Progress | None = None,
) -> RunRecord:
    """Make the release, measure and attack it, and leave ledger, release, record, card and page in `out`.

    Formal guarantees: the method gets a ledger on disk and records every use of a record there before its result is used.
    What was paid for is on disk before anything else uses the records. Protected test records are measured with noise that the
    ledger holds, or not at all. The record is written before the attacks, so that a failed attack loses nothing else. A run can
    be stopped at any moment and resumed, also after its training: nothing is charged twice.

    Args:
        method, task: what to run, on which records and budget.
        out: the folder of the run; one that holds a run is refused, unless it is resumed.
        measuring: how to measure and attack.
        resume: continue the run in `out`, or start it; its method, settings, budget, seed and records must be the same.
        others: the other runs on these records that the card counts, as `privet.report.find_others` gives them.
        account: the account of the records, which pays for everything in advance: an account, its name or its path. By default
            the one that the records or the run folder name, if any (`privet.runs.accounts.account_of`).
        command: the command line, for the record.
        on_step: called with a dictionary after each step.
        progress: called while features are computed.
    """
    measuring = measuring or Measuring()
    check(method, task, measuring)
    check_space(method, task, out)
    keys = measuring.attacks or (usual_attack(method.makes),)
    if resume and (out / RECORD).exists():
        from privet.runs.after import complete_run

        return complete_run(out, keys, task.dataset, command=command, progress=progress)
    check_not_foreign(out)
    started, created = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
    about, books = summary(task), account_of(task.spec, out, account)
    missing = [folder for folder in (out, *out.parents) if not folder.exists()]
    folder = RunFolder(out, resume=resume, relation=method.relation, unit=method.unit(task))
    with closing(folder), _full_disk(out), ExitStack() as stack:
        try:
            paying = stack.enter_context(on_account(books, method, task, folder))
            outcome = _fitted(method, task, folder, on_step, progress)
        except (InputError, AccountExhausted):
            folder.close()
            if missing and not folder.ledger.used:  # refused before anything was spent
                shutil.rmtree(out)
                with suppress(OSError):  # another process uses it by now
                    for parent in missing[1:]:
                        parent.rmdir()
            raise
        require_there(out)
        record = _record(method, task, outcome, about, created, folder.ledger, out)
        record = replace(record, command=tuple(command), others=None if others is None else tuple(others))
        record, target_of = _measured(record, task, outcome, folder, measuring, on_step)
        if paying is not None:
            paying.close(ended=True)
            record = replace(record, account=paying.account.standing())
        record = with_files(out, record, STAGED)
        require_there(out)
        record.write(out)
        publish_release(out)
        failed: PrivetError | None = None
        try:
            attack_all(record, out, [attack_named(key) for key in keys], target_of, command=command, progress=progress)
        except PrivetError as error:
            failed = error
        finally:
            require_there(out)
            replace(RunRecord.read(out), seconds=round(time.monotonic() - started, 1)).write(out)
            renew(out)
    remove_working_files(out)
    if failed is not None:
        again = f"The run is finished and kept without this attack; repeat it with privet attack {out}."
        raise type(failed)(f"{failed} {again}") from failed
    return RunRecord.read(out)


@contextmanager
def _full_disk(out: Path) -> Iterator[None]:
    """Turn the error of a file that cannot be written into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise  # not from the operating system
        raise PrivetError(
            f"The run in {out} stopped, because {error.filename or 'a file'} cannot be written: {error.strerror}. Make room, and "
            f"resume it (--resume, or resume=True): nothing that was paid for is lost."
        ) from error


def _fitted(
    method: Method, task: Task, folder: RunFolder, on_step: OnStep | None, progress: Progress | None
) -> Outcome:
    """Run the method, or return what it made before the run was stopped."""
    folder.state_what(_identity(method, task))
    if folder.ledger.used and not folder.has_kept:
        raise InputError(
            f"The method {method.key} has used records in {folder.path} but saved no state, so resuming would cost as much "
            f"again. Start again in another folder; what was used stays in the ledger."
        )
    with logged(folder.path, on_step) as log, torch.random.fork_rng(devices=[]):
        if task.seed is not None:
            torch.manual_seed(task.seed)  # for dropout and for noise that protects nothing
        context = Context(folder.ledger, folder, log, progress, protect_test=task.protects_test)
        context.begin(method, task)
        return method.fit(task, context)


def _identity(method: Method, task: Task) -> dict[str, Any]:
    """The facts that must be equal for a run to be resumed."""
    recipe = getattr(method, "recipe", None)
    return {
        "method": method.key,
        "settings": {each.name: plain(getattr(method, each.name)) for each in fields(method)},
        "recipe": None if recipe is None else plain(chosen(recipe, task.dataset, getattr(method, "model", ""))[0]),
        "epsilon": task.epsilon,
        "delta": task.delta,
        "seed": task.seed,
        "public": None if task.public is None else task.public.named,
        "protects_test": task.protects_test,
        "unit": method.unit(task),
        "data": task.dataset.fingerprint,
    }


def _record(
    method: Method, task: Task, outcome: Outcome, about: DataSummary, created: str, ledger: Ledger, out: Path
) -> RunRecord:
    """The record of a run before anything is measured."""
    about = replace(
        about,
        fingerprint=mark_of(task.dataset.origin, out, public=about.public),
        test_records=max(0, about.test_records - outcome.set_aside),
        set_aside=outcome.set_aside,
        note=" ".join(filter(None, (about.note, outcome.note))),
    )
    return RunRecord(
        title="",
        method=method.full_title,
        created=created,
        command=(),
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
        ledger_head=ledger.head,
    )


def check(method: Method, task: Task, measuring: Measuring | None = None) -> None:
    """Raise, before anything is spent, if the run is known to fail."""
    measuring = measuring or Measuring()
    if task.dataset.target is None and len(task.dataset.classes) < 2:
        raise InputError(
            f"{task.dataset.name} has one class only, and nothing to tell apart: name at least two classes. Nothing was spent."
        )
    if why := method.why_not(task):
        raise InputError(f"The method {method.key} does not fit {task.dataset.name}: {why}.")
    if method.makes == "data":
        check_students(measuring.students or default_students(task.dataset), task.dataset.shape)
    for key in measuring.attacks:
        if why := why_no_attack(key, method, task, measuring):
            raise InputError(f"The attack {key} does not fit this run: {why}.")


def check_space(method: Method, task: Task, out: Path) -> None:
    """Raise, before anything is spent, if the disk has too little room for the run."""
    need = LEAST_FREE
    if method.makes == "data":
        size, shape = getattr(method, "size", None) or min(task.dataset.size, MOST), task.dataset.shape
        need += size * math.prod(shape) * (3 if len(shape) == 3 else 8)  # images in three formats, numbers as text
    there = next(place for place in (out, *out.absolute().parents) if place.exists())
    free = shutil.disk_usage(there).free
    if free < need:
        raise PrivetError(
            f"The disk of {out} has {in_bytes(free)} left, and this run needs about {in_bytes(need)}: make room, or give a "
            f"folder on another disk with --out. Nothing was spent."
        ) from OSError(
            errno.ENOSPC, os.strerror(errno.ENOSPC)
        )  # a tuning goes on after it, instead of dropping the trial


LEAST_FREE = 16 << 20
"""The least number of bytes that a run writes: ledger, checkpoints, record, card and page."""


def usual_attack(makes: str) -> str:
    """The quick attack on a "model" or on "data"."""
    return "loss" if makes == "model" else "distance"


def why_no_attack(key: str, method: Method, task: Task, measuring: Measuring | None = None) -> str:
    """Why an attack does not fit the method's release, as far as that is known in advance; empty if it fits."""
    dataset = set_aside(task.dataset, task.public.aside if task.public is not None else 0)
    made, model = None, True
    if method.makes == "data":
        made = torch.zeros(()).expand(1000, *dataset.shape)
        students = (measuring.students if measuring is not None else ()) or default_students(dataset)
        model = students[0] in NETWORKS
    network = nn.Identity() if model else None
    target = Target(dataset.train, dataset.test, network, made, classes=dataset.classes, shape=tuple(dataset.shape))
    return attack_named(key).fits(target)


def fitting_attacks(keys: Sequence[str], method: Method, task: Task, measuring: Measuring) -> tuple[str, ...]:
    """The attacks that fit the method's release. Synthetic data is attacked itself, not only a student of it."""
    found = tuple(key for key in keys if not why_no_attack(key, method, task, measuring))
    if method.makes == "data":
        itself = replace(measuring, students=("no network",))
        if not any(not why_no_attack(key, method, task, itself) for key in found):
            found += (usual_attack(method.makes),)
    return found or (usual_attack(method.makes),)


def attack_all(
    record: RunRecord,
    folder: Path,
    attacks: Sequence[Attack],
    target_of: TargetOf,
    *,
    command: Sequence[str] = (),
    progress: Progress | None = None,
) -> RunRecord:
    """Run the attacks in order, and append each result to the record in the folder as soon as it exists.

    If one of them does not fit, none is run.
    """
    for attack in attacks:
        if why := attack.fits(target_of(attack)):
            raise InputError(f"The attack {attack.key} does not fit this run: {why}.")

    def hundredths(what: str, done: int, total: int | None) -> None:
        """Progress in hundredths: the number of steps depends on the number of records, which may be private."""
        if progress is not None:
            progress(what, 100 * done // total if total else done, 100 if total else None)

    for attack in attacks:
        target = target_of(attack)
        with kept_in(folder, attack.key, attack):
            found = replace(attack.run(target, hundredths), command=tuple(command))
            if target.synthetic is not None and not attack.fits(replace(target, synthetic=None)):
                found = replace(found, name=f"{found.name}, on the student {record.model.name}")
            record = replace(record, attacks=(*record.attacks, found))
            require_there(folder)
            record.write(folder)
    return record


@contextmanager
def kept_in(folder: Path, what: str, *asked: object) -> Iterator[Kept]:
    """The folder in which an attack or audit keeps its finished parts; removed at the end, kept if it is stopped."""
    head = Ledger.open(folder / LEDGER, read_only=True).head
    told = json.dumps([what, __version__, head, *map(repr, asked)])
    place = folder / UNFINISHED
    kept = Kept(place / f"{what}-{hashlib.sha256(told.encode()).hexdigest()[:16]}")
    with kept.in_use():
        yield kept
    kept.remove()
    with suppress(OSError):  # something else was stopped, or nothing was kept
        place.rmdir()


def _measured(
    record: RunRecord,
    task: Task,
    outcome: Outcome,
    folder: RunFolder,
    measuring: Measuring,
    on_step: OnStep | None,
) -> tuple[RunRecord, TargetOf]:
    """The record with the measurements, and the target of the attacks."""
    out = folder.path
    if isinstance(outcome.release, TrainedModel):
        record, predicted, target_of = _model_measured(record, task, outcome.release, out, on_step)
        test = outcome.release.test
    else:
        record, predicted, target_of = _data_measured(record, task, outcome.release, out, measuring, on_step)
        test = task.dataset.test

    def measured() -> dict[str, Any] | None:
        found: Measured | MeasuredError | None
        if task.dataset.target is not None:
            span = task.dataset.target.high - task.dataset.target.low
            found = measure_error(record.data, outcome, predicted, test, span, folder.ledger, task.seed)
        else:
            found = measure(record.data, outcome, predicted, test, folder.ledger, task.seed)
        return None if found is None else asdict(found)

    # A noisy accuracy is charged once, so it is drawn once: a resumed run must not draw its noise again.
    found = folder.releases.keep("measured-accuracy", measured)
    if task.dataset.target is not None:
        return replace(record, error=None if found is None else MeasuredError(**found)), target_of
    return replace(record, utility=None if found is None else Measured(**found)), target_of


def _model_measured(
    record: RunRecord, task: Task, release: TrainedModel, out: Path, on_step: OnStep | None
) -> tuple[RunRecord, Tensor, TargetOf]:
    dataset = task.dataset
    summary = ModelSummary(
        name=release.name,
        parameters=sum(parameter.numel() for parameter in release.model.parameters()),
        arguments=dict(release.arguments),
        weights=save_weights(release.model, out),
        perturbation=release.perturbation,
    )
    inside, outside = (scores(release.part, part, _shown(part, on_step)) for part in (release.train, release.test))
    real = Target(release.train, release.test, release.part, classes=dataset.classes, shape=tuple(dataset.shape))
    # The records went through the model once; attacks on the answers alone reuse them.
    answers = replace(
        real,
        members=Split(inside, release.train.labels),
        others=Split(outside, release.test.labels),
        model=nn.Identity(),
    )
    shown: TargetOf = lambda attack: answers if isinstance(attack, LossThreshold) else real  # noqa: E731
    if dataset.target is not None:
        span = dataset.target.high - dataset.target.low
        exact = {
            f"Error on the {name} records, exactly": f"{error_exactly(given[:, 0], part.labels, span).error:.4g}"
            for name, given, part in (("training", inside, release.train), ("test", outside, release.test))
        }
        title = f"A private regression of {dataset.target.name}"
        return replace(record, title=title, model=summary, internal=record.internal | exact), outside[:, 0], shown
    record = replace(
        record,
        title=f"A private classifier of {TITLES.get(dataset.name, dataset.name)}",
        model=summary,
        test_accuracy=fraction_right(outside, release.test.labels),
        training_accuracy=fraction_right(inside, release.train.labels),
    )
    return record, outside.argmax(1), shown


def _data_measured(
    record: RunRecord, task: Task, made: Synthetic, out: Path, measuring: Measuring, on_step: OnStep | None
) -> tuple[RunRecord, Tensor, TargetOf]:
    dataset = task.dataset
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
    first = trained[0]
    network = first.model if isinstance(first.model, nn.Module) else None
    target = Target.of(dataset, network, synthetic=made.inputs)
    write_internal(out, target, said | baselines)
    record = replace(
        record,
        title=f"Synthetic {TITLES.get(dataset.name, dataset.name)}",
        model=_student_summary(first, out),
        settings=record.settings if internal else record.settings | said,
        internal=record.internal | internal,
        test_accuracy=first.accuracy(dataset.test),
        training_accuracy=first.accuracy(dataset.train),
        synthetic=released,
    )
    return record, first.answers(dataset.test), lambda attack: target


def _student_summary(student: Student, out: Path) -> ModelSummary:
    """The first student is the run's model. A student of scikit-learn is only named, not kept: its files can run code."""
    if isinstance(student.model, nn.Module):
        parameters = sum(parameter.numel() for parameter in student.model.parameters())
        return ModelSummary(student.network, parameters, student.arguments, save_weights(student.model, out))
    return ModelSummary(student.name, 0)


def _baselines(names: Sequence[str], dataset: Dataset, epochs: int) -> dict[str, str]:
    """The accuracies of the same students trained on the real records; not part of the release or of the record."""
    x, y = dataset.train.tensors
    found = {}
    for name in names:
        student = train_student(name, x, y, len(dataset.classes), epochs=epochs)
        right = 100 * student.accuracy(dataset.test)
        found[f"Student {name} of the records, without privacy"] = f"{right:.2f} % of the test records right"
    return found


def summary(task: Task) -> DataSummary:
    """The public facts about the records that were used.

    The number of test records is left out if it is not public: after the split of a file it depends on the records.
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
        target=dataset.target.name if dataset.target is not None else "",
        target_bounds=(dataset.target.low, dataset.target.high) if dataset.target is not None else (),
    )


def measure(
    about: DataSummary, outcome: Outcome, predicted: Tensor, test: Split, ledger: Ledger, seed: int | None
) -> Measured | None:
    """The accuracy on the test records: with noise if they are protected, and None if nothing was charged for it."""
    if not about.protects_test:
        return exactly(predicted, test.labels, len(about.classes))
    if outcome.accuracy is None:
        return None
    randomness = Randomness.apart("accuracy", seed)
    classes = len(about.classes)
    return outcome.accuracy.read(
        predicted, test.labels, classes, ledger=ledger, randomness=randomness, shares=test.shares
    )


def measure_error(
    about: DataSummary,
    outcome: Outcome,
    predicted: Tensor,
    test: Split,
    span: float,
    ledger: Ledger,
    seed: int | None,
) -> MeasuredError | None:
    """The error of a regression on the test records, as `measure` measures an accuracy; `span` is the target's range."""
    if not about.protects_test:
        return error_exactly(predicted, test.labels, span)
    if outcome.accuracy is None:
        return None
    randomness = Randomness.apart("accuracy", seed)
    return outcome.accuracy.read_error(
        predicted, test.labels, span, ledger=ledger, randomness=randomness, shares=test.shares
    )


def fraction_right(outputs: Tensor, labels: Tensor) -> float:
    """The fraction of records whose likeliest class is the label."""
    return int((outputs.argmax(1) == labels).sum()) / len(labels)


def _shown(records: Split, on_step: OnStep | None) -> Callable[[int], None]:
    """Progress of computing the scores of records, in hundredths: the number of records may be private."""

    def show(done: int) -> None:
        if on_step is not None:
            on_step({"what": "Attacking", "step": max(1, 100 * done // len(records)), "steps": 100})

    return show


def _epochs(history: Sequence[Mapping[str, Any]]) -> tuple[Epoch, ...]:
    """The entries of the history that have a loss; a step that drew no record has none."""
    return tuple(
        Epoch(max(1, round(entry["epoch"])), entry["step"], entry["loss"], entry["epsilon"], entry.get("accuracy"))
        for entry in history
        if "loss" in entry
    )
