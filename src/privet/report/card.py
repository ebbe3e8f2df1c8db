"""The privacy card: what a regulator asks about a release, from the run's record and ledger alone.

It is made to be published with the release. So it holds nothing that was computed from private records without noise: of
an attack on such records it says that it was tried, and its figures stay on the run's page; an accuracy on such records has
noise that the ledger holds, or is not there; numbers of records are those that are public.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from jinja2 import Environment, PackageLoader, StrictUndefined

from privet.attacks.result import AttackResult
from privet.audit.result import round_down
from privet.io import write_whole
from privet.privacy import Ledger, Spent
from privet.privacy.guarantees import guarantee_to_dict
from privet.privacy.spent import round_up
from privet.report import others, statement, words
from privet.report.record import RunRecord

MARKDOWN, PLAIN = "CARD.md", "card.json"
RELEASE = "release"
"""The folder of a synthetic data set that may leave: its card is there under the name that a hub looks for."""
FORMAT = 1


def write_card(folder: Path) -> Path:
    """Write `CARD.md` and `card.json` of a run folder, each whole or not at all; made again, they have the same bytes."""
    record = RunRecord.read(folder)
    plain = card(record, record.open_ledger(folder))
    text = json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(folder / PLAIN, f"{text}\n".encode(), mode=0o644)
    said = markdown(record, plain).encode()
    if record.synthetic and (folder / RELEASE).is_dir():
        write_whole(folder / RELEASE / "README.md", said, mode=0o644)
    return write_whole(folder / MARKDOWN, said, mode=0o644)


def card(record: RunRecord, ledger: Ledger) -> dict[str, Any]:
    """The card as plain data."""
    spent = record.spent(ledger)
    return {
        "card": FORMAT,
        "title": statement.title(record, spent),
        "released": statement.released(record),
        "not_protected": record.data.who_is_unprotected,
        "not_for_release": statement.not_for_release(record),
        "created": record.created,
        "made_by": f"Privet {record.environment.get('privet', '')}".strip(),
        "method": record.method,
        "privacy": _privacy(record, ledger, spent),
        "accesses": [_access(event, count, ledger.unit) for event, count in ledger],
        "other_runs": _other_runs(record, ledger),
        "assumptions": _assumptions(record, spent),
        "attacks": [_attack(record, attack) for attack in record.attacks],
        "audits": [audit.to_dict() for audit in record.audits],
        "measured": _measured(record),
        "data": _data(record, spent),
        "model": {"name": record.model.name, "parameters": record.model.parameters},
        "synthetic": asdict(record.synthetic) if record.synthetic else None,
        "settings": record.settings,
        "intended_use": record.stated.intended_use,
        "licence": record.stated.licence,
        "contact": record.stated.contact,
        "limits": [f"{name[:-1]}: {text}" for name, text in statement.caveats(record, spent)],
        "ledger": {"file": record.ledger, "head": ledger.head},
    }


def markdown(record: RunRecord, plain: dict[str, Any]) -> str:
    """The card for people, with the metadata that model and data set hubs read."""
    environment = Environment(
        loader=PackageLoader("privet.report"),
        autoescape=False,  # Markdown: what the user named goes through `plainly`
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: "" if value is None else value,
    )
    environment.filters |= {"plainly": _plainly, "share": words.share, "times": words.times}
    environment.filters |= {"at_least": round_down, "epsilon": round_up}
    return environment.get_template("CARD.md.j2").render(metadata=front_matter(record, plain), **plain)


def _privacy(record: RunRecord, ledger: Ledger, spent: Spent) -> dict[str, Any]:
    return spent.to_dict() | {
        "statement": str(spent),
        "opening": statement.opening(record, spent),
        "meaning": statement.meaning(record, spent),
        "standing": statement.standing(record, spent).title,
        "protects": statement.standing(record, spent).protects,
        "explanation": statement.standing(record, spent).explanation,
        "calibration": _calibration(record, ledger, spent),
        "neighbours": spent.relation.describe(spent.unit),
    }


def _calibration(record: RunRecord, ledger: Ledger, spent: Spent) -> str:
    other = record.calibrated(ledger)
    if other is not None:
        return f"the noise was calibrated by the {other.accountant}: epsilon = {round_up(other.epsilon)}"
    return "which calibrated the noise" if record.accountant != "pld" else ""


def _access(event: Any, count: int, unit: str) -> dict[str, Any]:
    said = words.describe(event, unit.split()[0])
    return {"count": count, "what": said, "event": event.to_dict(), **guarantee_to_dict(event.guarantee)}


def _other_runs(record: RunRecord, ledger: Ledger) -> dict[str, Any]:
    total = others.together(record, ledger)
    return {
        "looked_for": record.others is not None,
        "runs": [asdict(other) for other in record.others or ()],
        "together": str(total) if total is not None else None,
    }


def _assumptions(record: RunRecord, spent: Spent) -> list[str]:
    """What has to be true for the statement to hold, beside the proof."""
    found = list(guarantee_to_dict(spent.guarantee).get("assumptions", []))
    found += [
        *spent.conditions,
        f"each {spent.unit} is in the training data once"
        if record.data.unit == "record"
        else "each record has one user, and the column of users says which",
        "nothing was released but what the ledger names and what follows from that alone",
    ]
    found.append(
        "the seeds stay secret, which a run that is meant to be repeated does not promise"
        if record.seeded
        else "the operating system's source of randomness is secure, and the keys of this run, which were never written, are gone"
    )
    return found


def _attack(record: RunRecord, attack: AttackResult) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": attack.name, "key": attack.key, "date": attack.date, "power": attack.power}
    facts["command"] = shlex.join(attack.command)
    if not record.data.public:
        return facts | {"figures": "kept on the run's page: they were computed from private records without noise"}
    return facts | {
        "members": attack.members,
        "non_members": attack.non_members,
        "auc": attack.auc,
        "low": attack.low,
        "high": attack.high,
        "level": attack.level,
        "true_positive_rates": {f"{rate.fpr:g}": rate.tpr for rate in attack.rates},
    }


def _measured(record: RunRecord) -> dict[str, Any]:
    facts: dict[str, Any] = {"said": statement.measured(record)}
    if record.released_utility is not None:
        facts |= asdict(record.released_utility)
    if record.data.public:
        facts |= {"test_records": record.data.test_records, "training_accuracy": record.training_accuracy}
    return facts


def _data(record: RunRecord, spent: Spent) -> dict[str, Any]:
    data = record.data
    return {
        "name": data.name,
        "said": statement.data(record, spent),
        "public": data.public,
        "training_records": data.training_records,
        "unit": data.unit,
        "test_records": data.test_records or None,
        "size_is_stated": data.size_is_stated,
        "measured_share": data.measured_share,
        "classes": list(data.classes),
        "shape": list(data.shape),
        "fingerprint": data.fingerprint,
        "note": data.note,
    }


def _plainly(text: str) -> str:
    """Text that Markdown and HTML leave as it is, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>#|~&])", r"\\\1", " ".join(str(text).split()))


HUB_NAMES = {"mnist": "ylecun/mnist", "fashion-mnist": "zalando-datasets/fashion_mnist", "cifar10": "uoft-cs/cifar10"}
"""Where the Hub keeps the data sets that `privet data get` fetches."""
SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M")
TAGS = ["differential-privacy", "privet"]


def front_matter(record: RunRecord, card: dict[str, Any]) -> str:
    """The metadata of a card, as YAML."""
    facts = _data_set(record, card) if record.synthetic else _model(record, card)
    if record.stated.licence:
        facts = {"license": record.stated.licence} | facts
    facts["privacy"] = {
        name: card["privacy"][name]
        for name in (
            "standing",
            "statement",
            "epsilon",
            "delta",
            "relation",
            "unit",
            "sampling",
            "accountant",
            "guarantee",
            "conditions",
            "vacuous",
        )
    }
    text: str = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, width=100)
    return text


def _tags(card: dict[str, Any]) -> list[str]:
    """What is not protected is not listed among what is."""
    return [tag for tag in TAGS if tag != "differential-privacy" or card["privacy"]["protects"]]


def _model(record: RunRecord, card: dict[str, Any]) -> dict[str, Any]:
    task = _task(record)
    source = HUB_NAMES.get(record.data.name) if record.data.public else None
    facts: dict[str, Any] = {"library_name": "pytorch", "pipeline_tag": task, "tags": _tags(card)}
    if source:
        facts["datasets"] = [source]
    if record.released_utility is None:
        return facts
    accuracy = {"type": "accuracy", "name": "Accuracy", "value": round(record.released_utility.accuracy, 6)}
    result = {
        "task": {"type": task, "name": task.replace("-", " ").capitalize()},
        "dataset": {
            "type": source or (record.data.name if record.data.public else "private"),
            "name": record.data.name,
            "split": "test",
        },
        "metrics": [accuracy],
    }
    return facts | {"metrics": ["accuracy"], "model-index": [{"name": card["title"], "results": [result]}]}


def _data_set(record: RunRecord, card: dict[str, Any]) -> dict[str, Any]:
    assert record.synthetic is not None
    size = sum(record.synthetic.rows >= 1000 * 10**power for power in range(len(SIZES) - 1))
    source = HUB_NAMES.get(record.data.name) if record.data.public else None
    facts: dict[str, Any] = {
        "pretty_name": card["title"],
        "annotations_creators": ["machine-generated"],
        "task_categories": [_task(record)],
        "size_categories": [SIZES[size]],
        "tags": [*_tags(card), "synthetic"],
    }
    return facts | ({"source_datasets": [source]} if source else {})


def _task(record: RunRecord) -> str:
    return "image-classification" if len(record.data.shape) == 3 else "tabular-classification"
