"""Attacks and audits of finished runs, each appended to the run's record."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from privet.attacks import Attack, AttackResult, Target, attack_named, closeness
from privet.attacks.result import settings_in
from privet.audit import Audit, RunPlan, recorded
from privet.data import Dataset, Progress, Split
from privet.errors import InputError
from privet.io import check_inside
from privet.io.names import LOOP, PAGE, RECORD
from privet.methods import ledger_audits
from privet.methods.method import METHODS, Method, Power, Ran, TrainedModel, with_settings
from privet.models.features import OnFeatures
from privet.privacy import Ledger
from privet.report import RunRecord, load_model, renew
from privet.report.others import KEY_FILE, fits
from privet.runs.own import read_run
from privet.runs.release import publish_release, read_release
from privet.runs.runner import attack_all, kept_in
from privet.training.folder import RunFolder, alone_in, remove_working_files, require_there
from privet.training.identity import data_fingerprint

RESUME = "--resume"


def rebuilt(record: RunRecord) -> Method | None:
    """The method of a run with its settings; None for a record of version 0.1, which does not name it."""
    if not record.how.key:
        return None
    if record.how.key not in METHODS:
        raise InputError(
            f"The run was made by the method {record.how.key!r}, which this version of Privet does not have: load its plug-in "
            "with --plugin FILE, or install its package."
        )
    return with_settings(METHODS[record.how.key], record.how.settings)


def audit_run(
    folder: Path,
    power: Power | None = None,
    *,
    model: str = "",
    resume: bool = False,
    command: Sequence[str] = (),
    progress: Progress | None = None,
) -> tuple[Audit, ...]:
    """Audit the method, plan, clipping and model of a run, and append the audits to its record; returns the new ones.

    A part that cannot be rebuilt is named in the audits: nothing is called consistent that was not audited. No audit of a plan
    covers whether a plug-in method follows its plan. If a stopped audit is called again with the same power, it goes on from its
    finished parts; with `resume`, an audit that the same command has finished is not made again.
    """
    with alone_with(folder), kept_in(folder, "audit", power, model):
        made = tuple(one for one in read_run(folder).audits if resume and _same(one.command, command))
        return made or _audited(folder, power or Power(), model, command, progress)


@contextmanager
def alone_with(folder: Path) -> Iterator[None]:
    """Open the folder of a finished run for this process alone."""
    if (folder / LOOP).exists():
        check_inside(folder)
    else:
        RunRecord.read(folder)  # refused if there is none, or if it is damaged
    with alone_in(folder):
        yield


def _same(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether two commands are the same apart from --resume."""
    one, other = ([word for word in command if word != RESUME] for command in (first, second))
    return one == other


def _audited(
    folder: Path, power: Power, model: str, command: Sequence[str], progress: Progress | None
) -> tuple[Audit, ...]:
    record, found = read_run(folder), audits_of(folder, power, model, progress)
    dated = tuple(one.by(command) for one in found)
    require_there(folder)
    if not _has(record, dated):  # it was stopped after they were appended
        replace(record, audits=record.audits + dated).write(folder)
    renew(folder)
    return dated


def audits_of(folder: Path, power: Power, model: str = "", progress: Progress | None = None) -> tuple[Audit, ...]:
    """The audits of a run; nothing is written."""
    record = read_run(folder)
    ledger = record.made_by(record.open_ledger(folder))
    method = rebuilt(record)
    try:
        if method is None and record.how.plan is not None:  # a user's own loop
            method = Method(key="loop", title="your own loop")
        if method is None:
            asked = dataclasses.asdict(power)
            found = recorded(ledger, record.delta, **asked, progress=progress, contributed=ledger_audits())
        else:
            found = method.audits(_ran(record, folder, ledger, model), power, progress)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from None
    unproved = f"whether {method.trusted}" if method is not None and method.trusted else ""
    return tuple(one.within(ledger.guarantee).leaving_out(unproved) for one in found)


def _has(record: RunRecord, audits: Sequence[Audit]) -> bool:
    """Whether the record ends with these audits. Dates are compared too: a repeated audit is a new one."""
    last = record.audits[-len(audits) :] if audits else ()
    return bool(audits) and [(one, one.date) for one in last] == [(one, one.date) for one in audits]


def _ran(record: RunRecord, folder: Path, ledger: Ledger, model: str) -> Ran:
    """The parts of a run that can be rebuilt; the others are named, with the reason."""
    if record.how.plan is None:
        return Ran(ledger, record.delta, steps=record.how.steps)
    if record.how.steps < 1:
        raise InputError("no step of its plan was done, so there is nothing to audit.")
    run = RunPlan.rebuilt(record.how.plan, ledger)
    release, missing = None, dict(run.missing)
    try:
        release = _rebuilt_model(record, folder, model)
    except Exception as error:  # a model of the user's own may raise anything
        missing["model"] = str(error).removeprefix(f"{folder}: ").rstrip(".") or type(error).__name__
    return Ran(ledger, record.delta, run.plan, release, record.how.steps, missing)


def _rebuilt_model(record: RunRecord, folder: Path, model: str) -> TrainedModel:
    """The run's model with a few made-up records of its shape."""
    if record.synthetic or not record.model.weights:
        raise InputError("the run released data and not the model that it trained")
    if record.data.target:
        raise InputError("an audit knows the losses of classifiers, and the model predicts a number")
    if not record.data.shape:
        raise InputError("the record does not give the shape of the records")
    network = load_model(record, folder, model)
    part: nn.Module = network.head if isinstance(network, OnFeatures) else network
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(4, *record.data.shape, generator=generator)
    with torch.no_grad():
        if isinstance(network, OnFeatures):
            inputs = network.standardise(network.features(inputs))
        classes = len(record.data.classes) or part(inputs).shape[-1]
    made_up = Split(inputs, torch.randint(classes, (4,), generator=generator))
    return TrainedModel(network, part, made_up, made_up, record.model.name, record.model.arguments)


def attacks_with(keys: Sequence[str], given: Mapping[str, Any]) -> list[Attack]:
    """Registered attacks with the given settings, each with those that it has.

    Values are plain, or text from the command line. A setting that no attack has is refused.
    """
    attacks = [attack_named(key) for key in keys]
    known = [_settings(attack) for attack in attacks]
    for name in given:
        if not any(name in each for each in known):
            there = ", ".join(dict.fromkeys(each for one in known for each in one)) or "none"
            have = f"The attack {keys[0]} has" if len(keys) == 1 else f"The attacks {' and '.join(keys)} have"
            raise InputError(f"{have} no setting {name!r}: there are {there}.")
    found = []
    for attack, own in zip(attacks, known, strict=True):
        values: dict[str, Any] = {name: _parsed(name, own[name], value) for name, value in given.items() if name in own}
        found.append(dataclasses.replace(attack, **values) if values else attack)  # type: ignore[type-var]
    return found


def _settings(attack: Attack) -> dict[str, bool | int | float | str]:
    """The fields of an attack that users can set, with their values."""
    if not dataclasses.is_dataclass(attack):
        return {}
    values = {each.name: getattr(attack, each.name) for each in dataclasses.fields(attack)}
    return {
        name: value
        for name, value in values.items()
        if name not in ("key", "title") and isinstance(value, bool | int | float | str)
    }


def _parsed(name: str, default: bool | int | float | str, value: Any) -> Any:
    kind = type(default)
    try:
        found = {"true": True, "false": False}[str(value).lower()] if kind is bool else kind(value)
    except (ValueError, KeyError, OverflowError):
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        raise InputError(f"The setting {name} is {words[kind]}, and {value!r} is not.") from None
    most = MOST.get(name, 1e9)
    if isinstance(found, int | float) and not abs(found) <= most:
        raise InputError(
            f"The setting {name} is at most {most:,.15g}, and {value!r} is more: such an attack would not end."
        )
    return found


MOST = {"shadows": 1000, "epochs": 10_000, "records": 10**8, "seed": 2**63 - 1}
"""The largest values of some settings of attacks; for all others it is a billion."""


def attack_run(
    folder: Path,
    attacks: Sequence[Attack],
    dataset: Dataset,
    *,
    model: str = "",
    resume: bool = False,
    command: Sequence[str] = (),
    progress: Progress | None = None,
) -> tuple[tuple[AttackResult, ...], Path, list[str]]:
    """Attack the release of a run on the records it was made from, and append the results to its record.

    Returns the results, the page and, for synthetic data, how close it comes to the records. A stopped attack goes on with its
    shadow models; with `resume`, attacks that the same command has finished are not made again.
    """
    with alone_with(folder):
        made = [one for one in read_run(folder).attacks if resume and _same(one.command, command)]
        left = [each for each in attacks if not any(_made(each, one) for one in made)]
        found, page, said = _attacked(folder, left, dataset, model, command, progress)
        for each in attacks:
            with kept_in(folder, each.key, each):
                pass  # it is finished: remove files that a kill may have left
    return (*made, *found), page, said


def _made(attack: Attack, result: AttackResult) -> bool:
    """Whether this attack, with these settings, gave the result."""
    return (attack.key, settings_in(attack)) == (result.key, result.settings)


def _attacked(
    folder: Path,
    attacks: Sequence[Attack],
    dataset: Dataset,
    model: str,
    command: Sequence[str],
    progress: Progress | None,
) -> tuple[tuple[AttackResult, ...], Path, list[str]]:
    record = read_run(folder)
    if not any(fits(record.data.fingerprint, mark, folder) for mark in _marks(dataset)):
        raise InputError(
            f"{folder}: the run used other records than {record.data.name} holds now (or its {KEY_FILE} is missing), so its "
            f"members are not known; run it again."
        )
    target, before = target_of(record, folder, dataset, model, progress), len(record.attacks)
    try:
        record = attack_all(record, folder, attacks, lambda attack: target, command=command, progress=progress)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from None
    finally:
        page = renew(folder) if (folder / RECORD).exists() else folder / PAGE
    said = [str(found) for found in closeness(target)] if target.synthetic is not None else []
    return record.attacks[before:], page, said


def _marks(dataset: Dataset) -> Iterator[str]:
    """The fingerprints that a run may have of these records; that of a loop depends on the kind of its data set."""
    yield from (dataset.origin, dataset.fingerprint, data_fingerprint(dataset.train))
    inputs, labels = dataset.train.tensors
    yield data_fingerprint(TensorDataset(inputs, labels))
    yield data_fingerprint(list(zip(inputs, labels, strict=True)))
    yield data_fingerprint(list(zip(inputs, labels.tolist(), strict=True)))


def complete_run(
    folder: Path,
    attacks: Sequence[str],
    dataset: Dataset,
    *,
    command: Sequence[str] = (),
    progress: Progress | None = None,
) -> RunRecord:
    """Finish a run that was stopped after its record was written: make the missing attacks, the card and the page.

    Nothing is charged again, and working files are removed.
    """
    with closing(RunFolder(folder, resume=True)):
        record = RunRecord.read(folder)
        publish_release(folder)
        made = {attack.key for attack in record.attacks}
        if missing := [attack_named(key) for key in attacks if key not in made]:
            model = str(record.how.settings.get("model", ""))
            _attacked(folder, missing, dataset, model, command, progress)
        renew(folder)
    remove_working_files(folder)
    return RunRecord.read(folder)


def target_of(
    record: RunRecord, folder: Path, dataset: Dataset, model: str = "", progress: Progress | None = None
) -> Target:
    """The release of a run, in the form that attacks take."""
    if record.synthetic:
        student = load_model(record, folder) if record.model.weights else None
        return Target.of(dataset, student, synthetic=read_release(folder))
    return Target.of(dataset, load_model(record, folder, model), aside=record.data.set_aside, progress=progress)
