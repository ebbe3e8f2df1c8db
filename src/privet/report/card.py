"""The privacy card: answers to a regulator's questions about a release, from the run's record and ledger alone.

It is published with the release, so it contains nothing computed from private records without noise. It says that such
records were attacked, but the figures stay on the run's page; an accuracy on them has noise that the ledger holds, or is left
out; numbers of records are the public ones.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from jinja2 import Environment, PackageLoader, StrictUndefined

from privet.attacks.result import AttackResult
from privet.audit.result import Audit, round_down
from privet.data.files import sha256
from privet.errors import InputError
from privet.io import write_whole
from privet.io.names import MODEL_CODE, PICTURES, TABLE
from privet.models import MODELS
from privet.models.standalone import standalone
from privet.privacy import Ledger, Spent
from privet.privacy.guarantees import guarantee_to_dict
from privet.privacy.spent import round_up
from privet.report import others, statement, words
from privet.report.about import answers
from privet.report.record import RunRecord
from privet.report.signatures import SignOff, sign_off

MARKDOWN, PLAIN = "CARD.md", "card.json"
RELEASE, HUB = "release", "README.md"
"""The folder of a synthetic data set for release, and its card there, which has the file name that hubs expect."""
FORMAT = 2
"""Version 0.1 wrote 1."""


def write_card(folder: Path) -> Path:
    """Write `CARD.md` and `card.json` of a run folder, each complete or not at all; writing them again gives the same bytes.

    Beside them is `model.py`, if the release is a model of Privet: with it the script on the card needs torch only.
    """
    record = RunRecord.read(folder)
    if code := _code(record):
        write_whole(folder / MODEL_CODE, code.encode(), mode=0o644)
    check_released(folder, record)
    record = with_files(folder, record)
    plain = card(record, record.open_ledger(folder))
    text = json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(folder / PLAIN, f"{text}\n".encode(), mode=0o644)
    said = markdown(record, plain, sign_off(folder, plain)).encode()
    if record.synthetic and (folder / RELEASE).is_dir():
        write_whole(folder / RELEASE / HUB, said, mode=0o644)
    return write_whole(folder / MARKDOWN, said, mode=0o644)


def hash_released(folder: Path, record: RunRecord, release: str = RELEASE) -> dict[str, str]:
    """The SHA-256 of each released file: the model, or the files of `release` without its card.

    Only released files are hashed: with a plain hash of private data, anybody who knows a record could check whether it is in
        them.
    """
    if record.synthetic is None:
        files = {record.model.weights: folder / record.model.weights} if record.model.weights else {}
    else:
        files = {f"{RELEASE}/{path.name}": path for path in sorted((folder / release).glob("*")) if path.name != HUB}
    return {name: sha256(path) for name, path in files.items() if path.is_file()}


def with_files(folder: Path, record: RunRecord, release: str = RELEASE) -> RunRecord:
    """The record with the hash and the size of each released file; what the record has already is kept."""
    hashes = record.released or hash_released(folder, record, release)
    places = {name: folder / name.replace(RELEASE, release, 1) if "/" in name else folder / name for name in hashes}
    sizes = record.sizes or {name: path.stat().st_size for name, path in places.items() if path.is_file()}
    return replace(record, released=hashes, sizes=sizes)


def check_released(folder: Path, record: RunRecord) -> None:
    """Raise if a released file was changed since the run: no card is made for it."""
    found = hash_released(folder, record)
    for name, known in record.released.items():
        if name in found and found[name] != known:
            raise InputError(
                f"{folder / name} is not the file that the run released: its SHA-256 is not the one in the run's record. Put the "
                f"released file back, or remove this one."
            )


def card(record: RunRecord, ledger: Ledger) -> dict[str, Any]:
    """The card as plain data."""
    spent = record.spent(ledger)
    return {
        "card": FORMAT,
        "schema": f"urn:privet:card:{FORMAT}",
        "title": statement.title(record, spent),
        "released": statement.released(record),
        "first": first_screen(record, ledger, spent),
        "not_protected": record.data.who_is_unprotected,
        "not_for_release": statement.not_for_release(record),
        "created": record.created,
        "made_by": f"Privet {record.environment.get('privet', '')}".strip(),
        "method": record.method,
        "privacy": _privacy(record, ledger, spent),
        "accesses": [access(event, count, ledger.unit) for event, count in ledger],
        "other_runs": _other_runs(record, ledger),
        "account": _account(record),
        "tuning": _tuning(record, spent),
        "assumptions": _assumptions(record, spent),
        "attacks": [_attack(record, attack) for attack in record.attacks],
        "audits": [_audit(audit) for audit in record.audits],
        "measured": _measured(record),
        "data": _data(record, spent),
        "model": {"name": record.model.name, "parameters": record.model.parameters, "script": _script(record)},
        "synthetic": asdict(record.synthetic) if record.synthetic else None,
        "settings": record.settings,
        "about": asdict(record.stated),
        "limits": [f"{name[:-1]}: {text}" for name, text in statement.caveats(record, spent)],
        "files": record.released,
        "sizes": record.sizes,
        "ledger": {"file": record.ledger, "head": ledger.head},
    }


def markdown(record: RunRecord, plain: dict[str, Any], signed: SignOff | None = None) -> str:
    """The card for people, with the metadata that model and data set hubs read, and the block of signatures."""
    environment = Environment(
        loader=PackageLoader("privet.report"),
        autoescape=False,  # Markdown: the user's texts go through `plainly`
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: "" if value is None else value,
    )
    environment.filters |= {"plainly": _plainly, "share": words.share, "times": words.times}
    environment.filters |= {"at_least": round_down, "epsilon": round_up, "bytes": words.size}
    return environment.get_template("CARD.md.j2").render(
        metadata=front_matter(record, plain),
        signed=signed or SignOff(),
        answers=answers(record.stated),
        use=_said_of_script(record) if plain["model"]["script"] else "",
        weights=record.model.weights if record.model.perturbation is None else "",
        **plain,
    )


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
        "numbers": statement.in_numbers(record, spent),
    }


def first_screen(record: RunRecord, ledger: Ledger, spent: Spent) -> dict[str, list[str]]:
    """The questions of somebody who must sign, with their answers; the files and the signatures are not here."""
    shown = statement.standing(record, spent)
    return {
        "Who is protected": [statement.protected(record, spent)],
        "The statement in numbers": [statement.numbers(record, spent)],
        "Its mark": [f"{shown.title}. {shown.explanation}"],
        "Spent on these data so far": [statement.spent_so_far(record, others.together(record, ledger))],
        "What was attacked and audited": statement.tried(record),
        "What is not protected": statement.not_protected(record, spent),
    }


def _calibration(record: RunRecord, ledger: Ledger, spent: Spent) -> str:
    other = record.calibrated(ledger)
    if other is not None:
        return f"the noise was calibrated by the {other.accountant}: epsilon = {round_up(other.epsilon)}"
    return "which calibrated the noise" if record.accountant != "pld" else ""


def access(event: Any, count: int, unit: str) -> dict[str, Any]:
    """One entry of the ledger in words and as plain data."""
    said = words.describe(event, unit.split()[0])
    return {"count": count, "what": said, "event": event.to_dict(), **guarantee_to_dict(event.guarantee)}


def _tuning(record: RunRecord, spent: Spent) -> dict[str, Any] | None:
    """How the release was chosen; the event of its run is among the accesses."""
    if record.tuning is None:
        return None
    facts = {name: value for name, value in asdict(record.tuning).items() if name != "event"}
    return facts | {"said": statement.choice(record, spent)}


def _other_runs(record: RunRecord, ledger: Ledger) -> dict[str, Any]:
    total = others.together(record, ledger)
    return {
        "looked_for": record.others is not None,
        "runs": [asdict(other) for other in record.others or ()],
        "together": str(total) if total is not None else None,
    }


def _account(record: RunRecord) -> dict[str, Any] | None:
    """The account of the records when the run ended; None if there is none."""
    return None if record.account is None else asdict(record.account) | {"said": f"{record.account}."}


def _assumptions(record: RunRecord, spent: Spent) -> list[str]:
    """The assumptions that the statement needs in addition to the proof."""
    found = list(guarantee_to_dict(spent.guarantee).get("assumptions", []))
    found += [
        *spent.conditions,
        f"each {spent.unit} is in the training data once"
        if record.data.unit == "record"
        else "each record has one user, and the column of users says which",
        "only the releases in the ledger, and what follows from them alone, were published",
    ]
    found.append(
        "the seeds stay secret, which a run that is meant to be repeated does not promise"
        if record.seeded
        else "the operating system's source of randomness is secure, and the keys of this run, which were never written, are gone"
    )
    return found


def _attack(record: RunRecord, attack: AttackResult) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": attack.name,
        "key": attack.key,
        "date": attack.date[:10],
        "power": attack.power,
        "command": _command(attack.command),
    }
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


def _audit(audit: Audit) -> dict[str, Any]:
    return audit.to_dict() | {"date": audit.date[:10], "command": _command(audit.command)}


def _command(command: Sequence[str]) -> str:
    """A command in the form that may be published: files and folders without their paths, and no seed."""
    shown: list[str] = []
    for part in command:
        if shown and shown[-1] == "--seed":
            part = "..."
        elif part.startswith("--seed="):
            part = "--seed=..."
        shown.append(re.sub(r"[^=:]*[/\\]", "", part.rstrip("/\\")))
    return " ".join(shlex.join(shown).split())


def _measured(record: RunRecord) -> dict[str, Any]:
    facts: dict[str, Any] = {"said": statement.measured(record)}
    if record.released_utility is not None:
        facts |= asdict(record.released_utility)
    if record.released_error is not None:
        facts |= asdict(record.released_error)
    if record.data.public:
        facts |= {"test_records": record.data.test_records, "training_accuracy": record.training_accuracy}
    return facts


def _data(record: RunRecord, spent: Spent) -> dict[str, Any]:
    data = record.data
    return {
        "name": data.name,
        "said": statement.data(record, spent),
        "record": statement.a_record(record),
        "public": data.public,
        "training_records": data.training_records,
        "unit": data.unit,
        "test_records": data.test_records or None,
        "size_is_stated": data.size_is_stated,
        "measured_share": data.measured_share,
        "classes": list(data.classes),
        "target": data.target,
        "shape": list(data.shape),
        "fingerprint": data.fingerprint,
        "note": data.note,
    }


def _code(record: RunRecord) -> str:
    """The source of the released model without Privet; empty if it is not one of Privet's own, or answers with noise."""
    summary = record.model
    if record.synthetic or not summary.weights or summary.perturbation is not None or summary.name not in MODELS:
        return ""
    try:
        return standalone(MODELS[summary.name])
    except InputError:
        return ""


OWN = re.compile(r"py:(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)")


def _script(record: RunRecord) -> list[str]:
    """The lines that load the model and predict without Privet; empty if that is not possible.

    A model of the user's own is imported from where it was for the training. How a loop of the user's own made its model is not
    known.
    """
    summary, data = record.model, record.data
    own = OWN.fullmatch(summary.name) if data.source else None
    if own is not None and summary.weights and summary.perturbation is None:
        home, name = own["module"], own["name"]
    else:
        home, name = MODEL_CODE.removesuffix(".py"), summary.name if _code(record) else ""
    if not name or not all(given.isidentifier() for given in summary.arguments):
        return []
    given = ", ".join(f"{name}={value!r}" for name, value in summary.arguments.items())
    shape = (1, *data.shape)
    one = f"torch.zeros({shape}, dtype=torch.long)" if "vocabulary" in summary.arguments else f"torch.rand{shape}"
    low, high = data.target_bounds or (0.0, 1.0)
    scaled = f"{low:g} + {high - low:g} * model({one})" if data.target else f"model({one}).softmax(-1)"
    return [
        "import torch, safetensors.torch",
        f"from {home} import {name}",
        f"model = {name}({given}).eval()",
        f'model.load_state_dict(safetensors.torch.load_file("{summary.weights}"))',
        f"print({scaled})",
    ]


def _said_of_script(record: RunRecord) -> str:
    """What the script needs, what it is to be given, and what it prints."""
    data, own = record.data, OWN.fullmatch(record.model.name)
    if own is None:
        needs = "but not Privet. Run it in the folder of this card, which has the weights and `model.py`"
    else:
        needs = f"and the module `{own['module']}` of those who trained the model, but not Privet. Run it where the weights are"
    kind = {3: ", pixels between 0 and 1", 1: ", columns encoded as in the training"}.get(len(data.shape), "")
    prints = "the probability of each class"
    if data.target:
        bounds = "" if data.target_bounds else ", scaled so that its bounds are 0 and 1"
        prints = f"the prediction of {_plainly(data.target)}{bounds}"
    return (
        f"This script needs torch and safetensors, {needs}. Replace the random\nnumbers by your records: float32, one row for "
        f"each{kind}. It prints {prints}."
    )


def _plainly(text: str) -> str:
    """Escape text for Markdown and HTML, on one line."""
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
    """The tags of the card; a run without protection does not get the tag "differential-privacy"."""
    return [tag for tag in TAGS if tag != "differential-privacy" or card["privacy"]["protects"]]


def _model(record: RunRecord, card: dict[str, Any]) -> dict[str, Any]:
    task = _task(record)
    source = HUB_NAMES.get(record.data.name) if record.data.public else None
    facts: dict[str, Any] = {"library_name": "pytorch", "pipeline_tag": task, "tags": _tags(card)}
    if source:
        facts["datasets"] = [source]
    if record.released_error is not None:
        metric = {
            "type": "rmse",
            "name": "Root mean squared error",
            "value": float(f"{record.released_error.error:.6g}"),
        }
    elif record.released_utility is not None:
        metric = {"type": "accuracy", "name": "Accuracy", "value": round(record.released_utility.accuracy, 6)}
    else:
        return facts
    result = {
        "task": {"type": task, "name": task.replace("-", " ").capitalize()},
        "dataset": {
            "type": source or (record.data.name if record.data.public else "private"),
            "name": record.data.name,
            "split": "test",
        },
        "metrics": [metric],
    }
    return facts | {"metrics": [metric["type"]], "model-index": [{"name": card["title"], "results": [result]}]}


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
    names = [Path(file).name for file in record.synthetic.files]
    if (rows := next((name for name in (TABLE, PICTURES) if name in names), None)) is not None:
        files = [{"split": "train", "path": rows}]  # for `datasets.load_dataset`, which would read the other files too
        facts["configs"] = [{"config_name": "default", "data_files": files}]
    return facts | ({"source_datasets": [source]} if source else {})


def _task(record: RunRecord) -> str:
    if record.data.target:
        return "tabular-regression"
    return "image-classification" if len(record.data.shape) == 3 else "tabular-classification"
