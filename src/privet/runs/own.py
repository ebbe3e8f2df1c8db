"""Reports on a user's own loop: a record from the files that `make_private(..., folder=...)` wrote."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from privet.attacks import Attack, Target, attack_named
from privet.attacks.classifiers import evaluating
from privet.data import Split
from privet.errors import InputError
from privet.io import check_inside, from_json, read_text
from privet.io.names import LEDGER, LOOP, MODEL, RECORD
from privet.methods.preparation import scores
from privet.methods.private_accuracy import exactly
from privet.privacy import Ledger
from privet.report import DataSummary, MethodSummary, ModelSummary, RunRecord, find_others, renew, versions
from privet.report.card import with_files
from privet.report.others import mark_of
from privet.runs.accounts import standing_of
from privet.runs.runner import attack_all, fraction_right

if TYPE_CHECKING:
    from privet.training import Private

METHOD = "Your own loop, made private"


def read_run(folder: Path) -> RunRecord:
    """The record of a run; a new one for a loop that has none yet."""
    return record_of_loop(folder) if (folder / LOOP).exists() else RunRecord.read(folder)


def record_of_loop(folder: Path, *, name: str = "", command: tuple[str, ...] = ()) -> RunRecord:
    """The record of a loop: the one in its folder, or a new one from its ledger and its description.

    A new record is made when the loop has taken more steps; it keeps the earlier attacks and audits. Nothing is measured,
    because the folder holds no data: `private.report(test=...)` measures.
    """
    check_inside(folder)
    before = RunRecord.read(folder) if (folder / RECORD).exists() else None
    ledger = Ledger.open(folder / LEDGER, read_only=True)
    if before is not None and before.ledger_head == ledger.head:
        return before
    return _new_record(folder, ledger, before, name, command)


def _new_record(
    folder: Path, ledger: Ledger, before: RunRecord | None, name: str, command: tuple[str, ...] = ()
) -> RunRecord:
    try:
        told = from_json(read_text(folder / LOOP), 1 << 63)
        settings, plan = told["settings"], told["settings"]["plan"]
        steps, delta = int(told["steps"]), float(told["delta"])
        models, parameters, seed = [str(each) for each in told["models"]], int(told["parameters"]), told["seed"]
        records = int(plan["records"])
    except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{folder}: the description of the loop cannot be read ({error}); run the loop again, with folder=..."
        ) from None
    name = name or (before.data.name if before is not None else "private records")
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
        account=standing_of(folder),
        accountant=str(settings.get("accountant", "pld")),
        ledger_head=ledger.head,
    )
    if before is not None:
        record = _with_what_was_tried(record, before)
    record = with_files(folder, record)
    record.write(folder)
    return RunRecord.read(folder)


def _with_what_was_tried(record: RunRecord, before: RunRecord) -> RunRecord:
    """The record with the attacks and audits of an earlier one. Each says if it was made after fewer steps; none is dropped."""
    of = "" if before.ledger_head == record.ledger_head else f", after {before.how.steps:,} steps"

    def said(name: str) -> str:
        return name if ", after " in name else f"{name}{of}"

    return replace(
        record,
        attacks=tuple(replace(attack, name=said(attack.name)) for attack in before.attacks),
        audits=tuple(replace(audit, name=said(audit.name)) for audit in before.audits),
        stated=before.stated,
    )


def report_loop(
    private: Private,
    test: Split | tuple[Tensor, Tensor] | None = None,
    *,
    name: str = "",
    unprotected_test: bool = False,
    attacks: tuple[str, ...] = ("loss",),
) -> Path:
    """Measure and attack the model of a loop, and write its record, card and page; returns the page.

    Attacks are appended to those that were made before.

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
    chosen = [attack_named(key) for key in attacks]
    private.save()
    folder = run.path
    before = RunRecord.read(folder) if (folder / RECORD).exists() else None
    record = _new_record(folder, Ledger.open(folder / LEDGER, read_only=True), before, name)
    try:
        if test is not None:
            _measured(private, record, folder, _split(test), unprotected_test, chosen)
    finally:
        page = renew(folder)
    return page


def _measured(
    private: Private, record: RunRecord, folder: Path, test: Split, unprotected: bool, attacks: list[Attack]
) -> None:
    members, model = _split(private.dataset), private.engine.model
    with evaluating(model):
        inside, outside = scores(model, members), scores(model, test)
        classes = int(max(members.labels.max(), test.labels.max())) + 1
        record = replace(
            record,
            data=replace(
                record.data,
                classes=tuple(map(str, range(classes))),
                shape=tuple(test[0][0].shape),
                unprotected=unprotected,
            ),
            test_accuracy=fraction_right(outside, test.labels),
            training_accuracy=fraction_right(inside, members.labels),
            utility=exactly(outside.argmax(1), test.labels, classes) if unprotected else None,
        )
        record.write(folder)
        target = Target(members, test, model, classes=record.data.classes, shape=record.data.shape)
        attack_all(record, folder, attacks, lambda attack: target)


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
