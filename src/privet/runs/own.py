"""A user's own loop gets the page: from what `make_private(..., folder=...)` left in its folder to a record."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from privet.attacks import Target, attack_named
from privet.data import Split
from privet.errors import InputError
from privet.io.names import LEDGER, LOOP, MODEL, RECORD
from privet.methods.preparation import scores
from privet.methods.private_accuracy import exactly
from privet.privacy import Ledger
from privet.report import DataSummary, MethodSummary, ModelSummary, RunRecord, find_others, renew, versions
from privet.report.others import mark_of
from privet.runs.runner import fraction_right

if TYPE_CHECKING:
    from privet.training import Private

METHOD = "Your own loop, made private"


def record_of_loop(folder: Path, *, name: str = "private records", command: tuple[str, ...] = ()) -> RunRecord:
    """The record of a loop in its folder: the one that is there, or a new one from its ledger and its description.

    Nothing is measured, because the folder holds no records: `private.report(test=...)` does that.
    """
    if (folder / RECORD).exists():
        return RunRecord.read(folder)
    try:
        told = json.loads((folder / LOOP).read_text(encoding="utf-8"))
        settings, plan = told["settings"], told["settings"]["plan"]
        steps, delta = int(told["steps"]), float(told["delta"])
        models, parameters, seed = [str(each) for each in told["models"]], int(told["parameters"]), told["seed"]
        records = int(plan["records"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder}: the description of the loop cannot be read ({error}); run the loop again, with folder=..."
        ) from None
    ledger = Ledger.open(folder / LEDGER, read_only=True)
    record = RunRecord(
        title=f"A private model of {name}",
        method=METHOD,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        seconds=0.0,
        delta=delta,
        seeds=dict.fromkeys(("sampling", "noise"), "secure" if seed is None else str(seed)),
        environment=versions(),
        data=DataSummary(
            name=name,
            fingerprint=mark_of(str(told["data"]), folder, public=False),
            training_records=records,
            test_records=0,
            classes=(),
            shape=tuple(int(side) for side in told.get("shape", ())),
            size_is_stated=not ledger.conditions,
            unit=ledger.unit,
        ),
        model=ModelSummary(f"py:{models[0]}", parameters, weights=MODEL),
        settings=_said(settings, steps),
        history=(),
        test_accuracy=None,
        training_accuracy=None,
        how=MethodSummary("", {}, plan, steps),
        others=find_others(folder, str(told["data"])),
        accountant=str(settings.get("accountant", "pld")),
        ledger_head=ledger.head,
    )
    record.write(folder)
    return RunRecord.read(folder)


def report_loop(
    private: Private,
    test: Split | tuple[Tensor, Tensor] | None = None,
    *,
    name: str = "private records",
    unprotected_test: bool = False,
    attacks: tuple[str, ...] = ("loss",),
) -> Path:
    """Measure and attack the model of a loop, and write its record, card and page; returns the page.

    Formal guarantees: exact figures stay on the page, which is internal, unless `unprotected_test` says that the test records
    need no protection.

    Args:
        private: of `make_private(..., folder=...)`.
        test: records that were not trained on; without them nothing is measured.
        name: of the records, for the page.
        unprotected_test: the test records need no protection: the card may give the accuracy on them.
        attacks: attacks by key.
    """
    run = private.run_folder
    if run is None:
        raise InputError("A report needs a folder: give make_private(..., folder=...).")
    if private.steps_done == 0:
        raise InputError("There is nothing to report before the first step.")
    private.save()
    folder = run.path
    (folder / RECORD).unlink(missing_ok=True)
    record = record_of_loop(folder, name=name)
    if test is not None:
        record = _measured(private, record, _split(test), unprotected_test, attacks)
        record.write(folder)
    return renew(folder)


def _measured(
    private: Private, record: RunRecord, test: Split, unprotected: bool, attacks: tuple[str, ...]
) -> RunRecord:
    members = _split(private.dataset)
    model = private.engine.model
    was_training = model.training
    inside, outside = scores(model, members), scores(model, test)
    classes = int(max(members.labels.max(), test.labels.max())) + 1
    about = replace(
        record.data,
        classes=tuple(map(str, range(classes))),
        shape=tuple(test[0][0].shape),
        unprotected=unprotected,
    )
    target = Target(members, test, model, classes=about.classes, shape=about.shape)
    found = []
    for key in attacks:
        attack = attack_named(key)
        if why := attack.fits(target):
            raise InputError(f"The attack {key} does not fit this loop: {why}.")
        found.append(attack.run(target))
    model.train(was_training)
    return replace(
        record,
        data=about,
        test_accuracy=fraction_right(outside, test.labels),
        training_accuracy=fraction_right(inside, members.labels),
        utility=exactly(outside.argmax(1), test.labels, classes) if unprotected else None,
        attacks=record.attacks + tuple(found),
    )


def _split(records: Any) -> Split:
    """Records as inputs and labels."""
    if isinstance(records, Split):
        return records
    parts = getattr(records, "tensors", records)
    if isinstance(parts, tuple | list) and len(parts) == 2 and all(isinstance(each, Tensor) for each in parts):
        return Split(parts[0], parts[1])
    raise InputError(
        "A report measures records with inputs and labels: give a privet.data.Split, a TensorDataset of two tensors, or a pair "
        "of tensors; or leave test out."
    )


def _said(settings: dict[str, Any], steps: int) -> dict[str, str]:
    """The settings as page and card show them."""
    plan = settings["plan"]
    names = {part: str(plan[part].get("kind", "")).rpartition(":")[2] for part in ("sampling", "clipping", "noise")}
    shown = {
        "Steps": f"{steps:,} of {int(plan['steps']):,} planned",
        "Sampling": _with_fields(names["sampling"], plan["sampling"]),
        "Clipping": _with_fields(names["clipping"], plan["clipping"]),
        "Noise": _with_fields(names["noise"], plan["noise"]),
        "Optimizer": ", ".join(map(str, settings.get("optimizers", ()))),
    }
    return {name: value for name, value in shown.items() if value}


def _with_fields(name: str, plain: dict[str, Any]) -> str:
    fields = (f"{key} {value:g}" for key, value in plain.items() if isinstance(value, int | float))
    return ", ".join([name, *fields])
