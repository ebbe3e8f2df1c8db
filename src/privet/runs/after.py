"""What is done to a run that is over: attacks and audits of what ran, each appended to its record."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from privet.attacks import Attack, AttackResult, Target, attack_named, closeness
from privet.audit import Audit, recorded
from privet.data import Dataset, Progress, Split
from privet.errors import InputError
from privet.io.names import LOOP
from privet.methods import ledger_audits
from privet.methods.method import METHODS, Method, Power, Ran, TrainedModel, with_settings
from privet.models.features import OnFeatures
from privet.privacy import Ledger
from privet.report import RunRecord, load_model, renew
from privet.report.others import KEY_FILE, fits
from privet.runs.own import record_of_loop
from privet.runs.release import read_release
from privet.training import Plan
from privet.training.identity import NotRebuilt, data_fingerprint, rebuild


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
    command: Sequence[str] = (),
    progress: Progress | None = None,
) -> tuple[Audit, ...]:
    """Audit the method, plan, clipping and model of a run, and append the audits to its record; returns the new ones.

    A part that cannot be rebuilt is named in the audits: nothing is called consistent that was not audited.
    """
    record, power = record_of_loop(folder) if (folder / LOOP).exists() else RunRecord.read(folder), power or Power()
    ledger = record.open_ledger(folder)
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
    dated = tuple(replace(one, command=tuple(command)) for one in found)
    replace(record, audits=record.audits + dated).write(folder)
    renew(folder)
    return dated


def _ran(record: RunRecord, folder: Path, ledger: Ledger, model: str) -> Ran:
    try:
        plan = rebuild(record.how.plan) if record.how.plan is not None else None
    except NotRebuilt:
        plan = None  # the audits then say which parts took no part
    assert plan is None or isinstance(plan, Plan)
    own = record.model.weights and not record.synthetic and (model or not record.model.name.startswith("py:"))
    release = None
    if plan is not None and own and record.data.shape:
        network = load_model(record, folder, model)
        part: nn.Module = network.head if isinstance(network, OnFeatures) else network
        generator = torch.Generator().manual_seed(0)
        inputs = torch.rand(4, *record.data.shape, generator=generator)
        if isinstance(network, OnFeatures):
            with torch.no_grad():
                inputs = network.standardise(network.features(inputs))
        with torch.no_grad():
            classes = len(record.data.classes) or part(inputs).shape[-1]
        made_up = Split(inputs, torch.randint(classes, (4,), generator=generator))
        release = TrainedModel(network, part, made_up, made_up, record.model.name, record.model.arguments)
    return Ran(ledger, record.delta, plan, release)


def attack_with(key: str, given: Mapping[str, Any]) -> Attack:
    """A registered attack with other settings: plain values, or text as the command line gives it."""
    attack = attack_named(key)
    known = {each.name: getattr(attack, each.name) for each in dataclasses.fields(attack)}  # type: ignore[arg-type]
    values = {}
    for name, value in given.items():
        if name in ("key", "title") or not isinstance(known.get(name), bool | int | float | str):
            there = ", ".join(
                n for n, v in known.items() if n not in ("key", "title") and isinstance(v, int | float | str)
            )
            raise InputError(f"The attack {key} has no setting {name!r}: it has {there or 'none'}.")
        kind = type(known[name])
        try:
            values[name] = {"true": True, "false": False}[str(value)] if kind is bool else kind(value)
        except (ValueError, KeyError):
            raise InputError(f"The setting {name} is a {kind.__name__}, and {value!r} is not.") from None
    return dataclasses.replace(attack, **values)  # type: ignore[type-var]


def attack_run(
    folder: Path,
    attacks: Sequence[Attack],
    dataset: Dataset,
    *,
    model: str = "",
    command: Sequence[str] = (),
    progress: Progress | None = None,
) -> tuple[list[AttackResult], Path, list[str]]:
    """Attack the release of a run on the records it was made from, and append the results to its record.

    Returns the results, the page, and for synthetic data how close it comes to the records.
    """
    record = record_of_loop(folder) if (folder / LOOP).exists() else RunRecord.read(folder)
    marks = (dataset.origin, dataset.fingerprint, data_fingerprint(dataset.train))
    if not any(fits(record.data.fingerprint, mark, folder) for mark in marks):
        raise InputError(
            f"{folder}: the run used other records than {record.data.name} holds now (or its {KEY_FILE} is missing), so members "
            f"cannot be told; run it again."
        )
    target = target_of(record, folder, dataset, model, progress)
    for attack in attacks:
        if why := attack.fits(target):
            raise InputError(f"{folder}: the attack {attack.key} does not fit this run: {why}.")
    results = []
    for attack in attacks:
        results.append(replace(attack.run(target, progress), command=tuple(command)))
        record = replace(record, attacks=(*record.attacks, results[-1]))
        record.write(folder)  # each is kept as soon as it exists
    said = []
    if target.synthetic is not None:
        said = [str(found) for found in closeness(target)]
    return results, renew(folder), said


def target_of(
    record: RunRecord, folder: Path, dataset: Dataset, model: str = "", progress: Progress | None = None
) -> Target:
    """The release of a run as attacks take it."""
    if record.synthetic:
        return Target.of(dataset, synthetic=read_release(folder))
    return Target.of(dataset, load_model(record, folder, model), aside=record.data.set_aside, progress=progress)
