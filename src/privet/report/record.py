"""The run record: the method, settings and results of a run as plain data, from which the page can be made again at any time.

The record does not state the final epsilon: the privacy spent is always computed from the ledger that it names. The epsilon of
each epoch is stored only for the figures.
"""

from __future__ import annotations

import dataclasses
import json
import math
import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from privet import __version__
from privet.attacks.result import AttackResult
from privet.audit import Audit
from privet.errors import InputError
from privet.io import MisfitError, build, check_inside, from_json, read_text, to_plain, write_whole
from privet.methods.perturbation import ResidualPerturbation
from privet.methods.private_accuracy import Measured, MeasuredError
from privet.models import recorded_model
from privet.privacy import AccountStanding, Event, Ledger, Spent, accountant_named, accountant_names
from privet.privacy.events import tally
from privet.privacy.guarantees import Claimed

FILE = "record.json"
FORMAT = 2
RELEASED = re.compile(r"(?:release/)?[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
"""The names that a released file may have: a record from somebody else must not lead out of its folder."""


@dataclass(frozen=True)
class DataSummary:
    """Public facts about the data; no records.

    `training_records` is the public number of records, or of users if a user is the unit: the stated one, or the true one that
    was taken as public. `test_records` is 0 if the number of test records is not public.
    """

    name: str
    fingerprint: str
    """For public records their SHA-256, for others a keyed one: see `privet.report.others`."""
    training_records: int
    test_records: int
    classes: tuple[str, ...]
    note: str = ""
    source: str = ""
    """The name of the records for `privet.data.load`, to find them again."""
    schema: str = ""
    public: bool = False
    """Whether the records are public: then measurements on them may be published."""
    shape: tuple[int, ...] = ()
    set_aside: int = 0
    """Number of test records that were used as public ones without labels (`privet.data.set_aside`); not in `test_records`."""
    size_is_stated: bool = False
    """Whether the user stated the public number of records; otherwise the true one was taken as public."""
    measured_share: float = 0.0
    """The share of a file's records that was used for measuring, not for training; 0 if the file was not split."""
    unprotected: bool = False
    """Whether the user asked for test records without protection."""
    header: bool = True
    unit: str = "record"
    """What the numbers count: records, or users who may hold several."""
    user: str = ""
    """The column of users, if it was not given in the schema."""
    target: str = ""
    """The column with the number to predict; empty for classes."""
    target_bounds: tuple[float, ...] = ()
    """Its public bounds; runs of version 0.1 have none."""

    @property
    def protects_test(self) -> bool:
        """Whether the test records are protected, too: figures from them are published only with noise."""
        return not (self.public or self.unprotected)

    @property
    def protected_records(self) -> int:
        """The public number of protected records."""
        share = 0.0 if self.unprotected else self.measured_share
        return math.ceil(round(self.training_records / (1 - share), 6))

    @property
    def who_is_unprotected(self) -> str:
        """A sentence about unprotected records; empty if there are none."""
        if self.public or not self.unprotected:
            return ""
        if not self.measured_share:
            also = (
                " For a user who is in both parts, only the training records are protected."
                if self.unit == "user"
                else ""
            )
            return f"NOT PROTECTED: the test records. The statement covers only the training records.{also}"
        share = f"about {100 * self.measured_share:g} % of the {self.unit}s"
        return f"NOT PROTECTED: the hold-out, {share}. The statement covers only the others."


@dataclass(frozen=True)
class ModelSummary:
    """The trained model: how to build it again, and the file of its weights in the run folder."""

    name: str
    parameters: int
    arguments: dict[str, Any] = field(default_factory=dict)
    weights: str = ""
    perturbation: ResidualPerturbation | None = None
    """Noise that the model also adds to its answers."""


@dataclass(frozen=True)
class SyntheticSummary:
    """The synthetic data set that a run releases, and a few of its rows to look at; all of them may be published."""

    rows: int
    files: tuple[str, ...]
    picture: str = ""
    """A PNG with samples in the run folder, if the rows are images."""
    columns: tuple[str, ...] = ()
    samples: tuple[tuple[str, ...], ...] = ()
    counts: tuple[int, ...] = ()
    """The number of rows of each class."""


@dataclass(frozen=True)
class OtherRun:
    """Another run on the same records: it also costs privacy if it was released, or used to choose settings."""

    name: str
    created: str
    method: str
    ledger_head: str
    relation: str
    unit: str
    event: dict[str, Any]
    """Everything in its ledger, as one event."""
    conditions: tuple[str, ...] = ()
    """The facts that its statement takes as public."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """The key that distinguishes it from other runs. The events do not: runs with the same settings have equal events."""
        return self.created, self.name, self.ledger_head


@dataclass(frozen=True)
class Stated:
    """Statements for the card that only a person can make; `privet.report.about` says what each is. Empty: not stated."""

    intended_use: str = ""
    licence: str = ""
    contact: str = ""
    curator: str = ""
    description: str = ""
    data_subjects: str = ""
    collection: str = ""
    legal_basis: str = ""
    retention: str = ""
    region: str = ""
    sector: str = ""
    data_source: str = ""
    threat_model: str = ""
    trust_model: str = ""
    why_epsilon: str = ""
    why_delta: str = ""
    later_releases: str = ""
    preprocessing: str = ""
    publication_date: str = ""
    sources: str = ""
    registry_authors: str = ""


@dataclass(frozen=True)
class Epoch:
    """The state of a run at the end of an epoch: mean loss, privacy spent so far and, if measured, accuracy on test records."""

    epoch: int
    step: int
    loss: float
    epsilon: float
    accuracy: float | None = None


@dataclass(frozen=True)
class MethodSummary:
    """How the release was made, to build the method and its plan again.

    Attributes:
        key: of `privet.methods`; empty in a record of version 0.1.
        settings: the method's settings.
        plan: sampling, clipping, noise and steps, as `privet.training.identity.rebuild` takes them; None without a plan.
        steps: how many steps of the plan were done.
    """

    key: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] | None = None
    steps: int = 0


@dataclass(frozen=True)
class TuningSummary:
    """The choice behind a tuned release, and its cost. Nothing here reveals the number of trials.

    Attributes:
        candidates: the settings in which the candidates differ, one text for each.
        chosen: those of the release.
        trials: the distribution of the number of trials; empty if each candidate was tried once.
        score: the score that chose the release, in words.
        best: the score of the release: the best of several, so it is too optimistic.
        one: the epsilon of one run with the settings and the noise of the release.
        all_once: the epsilon of one run of each candidate, with the same noise.
        event: what the run of the release did to the records, as one event.
    """

    candidates: tuple[str, ...]
    chosen: str
    trials: str
    score: str
    best: float
    one: float
    all_once: float
    event: dict[str, Any]


@dataclass(frozen=True)
class RunRecord:
    """One run. `write` stores it in the run's folder, `read` loads it.

    `ledger_head` is the running hash of the ledger when the run ended. It detects a ledger with lines cut off, or one of another
    run.
    """

    title: str
    method: str
    created: str
    command: tuple[str, ...]
    seconds: float
    delta: float
    seeds: dict[str, str]
    environment: dict[str, str]
    data: DataSummary
    model: ModelSummary
    settings: dict[str, str]
    history: tuple[Epoch, ...]
    test_accuracy: float | None
    """Exact; if the test records are not public, only for people who may see them."""
    training_accuracy: float | None
    attacks: tuple[AttackResult, ...] = ()
    """Every attack that was ever made on the run, in order."""
    audits: tuple[Audit, ...] = ()
    """Every audit that was ever made of the run, in order."""
    how: MethodSummary = field(default_factory=MethodSummary)
    internal: dict[str, str] = field(default_factory=dict)
    """Values computed from the training records without protection: shown on the page, never on a card."""
    place: str = ""
    """Where the noise enters: a path of `privet.report.places`; if empty, it follows from the ledger."""
    synthetic: SyntheticSummary | None = None
    others: tuple[OtherRun, ...] | None = None
    """The other runs found on the same records; None if nobody looked for them."""
    account: AccountStanding | None = None
    """The state of the records' account when the run ended; None if there is no account."""
    utility: Measured | None = None
    """The accuracy in publishable form; None if there is none."""
    error: MeasuredError | None = None
    """The error of a regression in publishable form; None if there is none."""
    tuning: TuningSummary | None = None
    """How the release was chosen among candidates; None for a single run."""
    released: dict[str, str] = field(default_factory=dict)
    """The SHA-256 of each released file, by its name in the folder; empty in records of version 0.1."""
    sizes: dict[str, int] = field(default_factory=dict)
    """The bytes of each released file."""
    stated: Stated = field(default_factory=Stated)
    ledger: str = "ledger.jsonl"
    ledger_head: str = ""
    accountant: str = "pld"
    """The accountant that calibrated the noise."""
    format: int = FORMAT

    @property
    def attack(self) -> AttackResult | None:
        """The most successful attack, which page and comparison show first.

        The lower end of the interval of its AUC decides: on few records a large AUC can be luck.
        """
        return max(self.attacks, key=lambda attack: attack.low, default=None)

    @property
    def seeded(self) -> bool:
        """Whether anybody who knows the seed can draw the noise again: such a model is not for release."""
        return self.seeds.get("noise", "secure") != "secure"

    @property
    def released_utility(self) -> Measured | None:
        """The accuracy that may be published: of public records, or with noise that the ledger holds."""
        return self.utility if self.utility is not None and (self.data.public or self.utility.noise) else None

    @property
    def released_error(self) -> MeasuredError | None:
        """The error of a regression that may be published: of public records, or with noise that the ledger holds."""
        return self.error if self.error is not None and (self.data.public or self.error.noise) else None

    @property
    def accuracy(self) -> float | None:
        """The accuracy for people who may see the data: the publishable one if there is one, otherwise the exact one."""
        return self.utility.accuracy if self.utility is not None else self.test_accuracy

    def to_frame(self, folder: Path | None = None) -> Any:
        """The run as one row of a pandas frame; with its folder, also the statement of the ledger.

        Columns whose names begin with ``internal`` were computed from private records without noise.
        """
        from privet.report.export import run_facts, to_frame

        return to_frame([run_facts(self, folder)])

    def open_ledger(self, folder: Path) -> Ledger:
        """Open the run's ledger for reading; refused if it is not the one that the run wrote."""
        return Ledger.open(folder / self.ledger, head=self.ledger_head or None, read_only=True)

    def made_by(self, ledger: Ledger) -> Ledger:
        """The ledger of the run behind the release; for a tuned release, the events of the chosen trial."""
        if self.tuning is None:
            return ledger
        alone, made = Ledger(relation=ledger.relation, unit=ledger.unit), Event.from_dict(self.tuning.event)
        for event, count in tally(made):
            for _ in range(count):
                alone.record(event if made.guarantee == event.guarantee else event.under(made.guarantee))
        return alone

    def spent(self, ledger: Ledger) -> Spent:
        """The statement of the run by the PLD accountant; for a claim, by the claim's own accountant.

        PLD's figure for claimed steps would be smaller and just as unproved. If PLD has no theorem for the events, as for a
        choice among a random number of trials, the accountant that calibrated the noise makes the statement.
        """
        if not accountant_named("pld").supports(ledger.event, ledger.relation):
            return ledger.spent(self.delta, self.accountant)
        found = ledger.spent(self.delta)
        return ledger.spent(self.delta, self.accountant) if isinstance(found.guarantee, Claimed) else found

    def calibrated(self, ledger: Ledger) -> Spent | None:
        """The statement of the accountant that calibrated the noise, if it is not that of `spent`."""
        other = ledger.spent(self.delta, self.accountant) if self.accountant != "pld" else None
        return other if other is not None and other.accountant != self.spent(ledger).accountant else None

    @property
    def internal_mode(self) -> int:
        """The permissions of files with figures from the records: only the owner reads them, unless the records are public."""
        return 0o644 if self.data.public else 0o600

    def write(self, folder: Path) -> Path:
        """Write `record.json` atomically."""
        text = json.dumps(to_plain(self), indent=1, ensure_ascii=False, allow_nan=False)
        return write_whole(folder / FILE, f"{text}\n".encode(), mode=self.internal_mode)

    @classmethod
    def read(cls, folder: Path) -> RunRecord:
        """Read the record of a run folder; a missing or damaged one is refused with a sentence."""
        path = folder / FILE
        if not folder.is_dir():
            raise InputError(f"{folder}: there is no such folder; give the --out folder of a run, for example runs/a.")
        check_inside(folder)
        if not path.exists():
            raise InputError(f"{path}: this folder holds no run record; {_inside(folder)}")
        try:
            text = read_text(path)
        except InputError:
            raise InputError(
                f"{path}: the run record cannot be read: it is empty or no text; run the command again."
            ) from None
        try:
            record = build(cls, _current(from_json(text, 1 << 63)))
            _check(record)
        except json.JSONDecodeError as error:
            where = f"line {error.lineno}, column {error.colno}"
            raise InputError(f"{path}: the run record is damaged at {where}; run the command again.") from None
        except MisfitError as error:
            raise InputError(f"{path}: {error}; the run record is damaged, so run the command again.") from None
        return record


def _inside(folder: Path) -> str:
    runs = sorted(str(path.parent) for path in folder.glob(f"*/{FILE}"))
    return f"give one of the runs in it: {', '.join(runs)}." if runs else "give the --out folder of a run."


def _current(plain: Any) -> Any:
    """Convert plain data of an earlier format: version 0.1 kept only the last attack."""
    if not isinstance(plain, dict) or plain.get("format") != 1 or "attacks" in plain:
        return plain
    renewed = {name: value for name, value in plain.items() if name != "attack"}
    last = plain.get("attack")
    return renewed | {"format": FORMAT, "attacks": [] if last is None else [last]}


def _check(record: RunRecord) -> None:
    """Check what types cannot express."""
    if record.format != FORMAT:
        raise MisfitError(f"its format is {record.format} and this version of Privet reads {FORMAT}")
    if record.accountant not in accountant_names():
        raise MisfitError(f"'accountant' is {record.accountant!r}, which is none")
    files = {"ledger": record.ledger, "model.weights": record.model.weights}
    if record.synthetic:
        files["synthetic.picture"] = record.synthetic.picture
    for name, file in files.items():
        # A record from somebody else must not point to other files.
        if file and ("/" in file or not RELEASED.fullmatch(file)):
            raise MisfitError(f"'{name}' must name a file of the run folder, and is {file!r}")
    for name in (*record.released, *record.sizes):
        if not RELEASED.fullmatch(name):
            raise MisfitError(f"'released' must name files of the run folder, and has {name[:100]!r}")
    if any(size < 0 for size in record.sizes.values()):
        raise MisfitError("'sizes' has a file of less than no bytes")
    made = record.synthetic
    if made is not None and made.counts and len(made.counts) != len(record.data.classes):
        raise MisfitError("'synthetic.counts' has not one number for each class")
    if made is not None and any(len(row) != len(made.columns) for row in made.samples):
        raise MisfitError("'synthetic.samples' has a row that does not fit its columns")
    if any(len(each.false_positive_rate) != len(each.true_positive_rate) for each in record.attacks):
        raise MisfitError("'attacks' has a ROC whose two halves differ in length")
    for name, value in _numbers(record):
        low, high = next((ends for ending, ends in _RANGES.items() if name.endswith(ending)), (-_LARGEST, _LARGEST))
        if not low <= value <= high:
            raise MisfitError(f"'{name}' is {value:.6g} and should be from {low:g} to {high:g}")
    if any(not each.rates for each in record.attacks):
        raise MisfitError("'attacks' has an attack without rates")


_SHARE, _COUNT, _LARGEST, _TINY = (0.0, 1.0), (0, 10**15), 1e15, 1e-300
_RANGES: dict[str, tuple[float, float]] = {
    "delta": (_TINY, 1 - 1e-16),
    "claim.epsilon": (0.0, 1e300),
    "epsilon": (0.0, 1e300),
    "lower_bound": (0.0, 1e300),
    "ceiling": (0.0, 1e300),
    "seconds": (0.0, 1e12),
    "training_records": (1, 10**15),
    "non_members": (1, 10**15),
    "members": (1, 10**15),
    "test_records": _COUNT,
    "set_aside": _COUNT,
    "parameters": _COUNT,
    "rows": _COUNT,
    "steps": _COUNT,
    "step": _COUNT,
    "epoch": _COUNT,
    "measured_share": (0.0, 0.999),
    "error.low": (0.0, _LARGEST),
    "error.high": (0.0, _LARGEST),
    "error.error": (0.0, _LARGEST),
    "accuracy": _SHARE,
    "auc": _SHARE,
    "fpr": _SHARE,
    "tpr": _SHARE,
    "low": _SHARE,
    "high": _SHARE,
    "majority": _SHARE,
    "recall": _SHARE,
    "precision": _SHARE,
    "level": (0.5, 0.999999),
    "confidence": (0.5, 0.999999),
}
"""The allowed ranges of a record's numbers, by the end of their names. A record may come from somebody else."""


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a record with its name, or that of its list. Infinite numbers were checked when the record was built."""
    if dataclasses.is_dataclass(value):
        for each in dataclasses.fields(value):
            yield from _numbers(getattr(value, each.name), f"{name}.{each.name}" if name else each.name)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _numbers(item, name)
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        yield name, value


PACKAGES = ("torch", "numpy", "scipy", "dp-accounting", "scikit-learn")


def versions() -> dict[str, str]:
    """Versions of Privet, Python, the libraries that compute, and the platform; nothing that names the machine."""
    found = {"privet": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # a trimmed installation is still worth recording
            found[package] = "not installed"
    found["platform"] = f"{platform.system()} {platform.machine()}"
    return found


def load_model(record: RunRecord, folder: Path, model: str = "") -> nn.Module:
    """The saved model of a run; if its answers have noise, with that noise.

    A record can only name a model of `privet.models`. The user names their own as `model`: py:package.module:Net.
    """
    if not record.model.weights:
        raise InputError(f"{folder}: this run kept no weights, so there is no model to load; run the command again.")
    try:
        builder = recorded_model(record.model.name, model)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from None
    path = folder / record.model.weights
    try:
        made: nn.Module = builder(**record.model.arguments)
        made.load_state_dict(load_file(path))
    except FileNotFoundError:
        raise InputError(f"{path}: the weights of the run are missing; run the command again.") from None
    except (SafetensorError, RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{path}: the weights do not fit the record ({reason}); run the command again.") from None
    if record.model.perturbation is not None:
        record.model.perturbation.apply(made)
    return made
